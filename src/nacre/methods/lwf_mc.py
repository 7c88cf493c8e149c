"""LwF-MC: learning without forgetting with one sigmoid per class (as iCaRL has) and no softmax.

With s = sigmoid of the student's logits, p = sigmoid of the teacher's, y the label, b the
background, Y the old channels (b included), and the binary cross-entropy

    B(t, s) = -t log s - (1 - t) log(1 - s)

every pixel's loss is a sum over channels. Step 0 of all three variants, and then

    step 0     sum over all c of B([c is y], s[c])
    lwf-mc     the same + weight * sum over c in Y of B(p[c], s[c])
    lwf-mc-d   sum over c in Y of B(p[c], s[c]) + sum over the new c of B([c is y], s[c])
    lwf-mc-c   as lwf-mc-d, but B([b is y], s[b]) for the background

The background belongs to both worlds: `lwf-mc` takes it from the labels and from the teacher,
-d (distillation) from the teacher alone, -c (classification) from the labels alone; -c and -d
differ in that channel only and have nothing to weigh. The paper gives the sums no formula; they
are those of its released implementation. Step 0 is learnt with sigmoids too, so it cannot be
shared with methods that use a softmax.
"""

from abc import abstractmethod
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from nacre.losses.fused import fused_binary_losses
from nacre.losses.kernels import OldTargets
from nacre.methods.base import Batch, Method, MethodConfig, require_teacher
from nacre.models.network import Output


class _SigmoidConfig(MethodConfig):
    """One sigmoid per channel."""

    has_sigmoids = True


class LwfMcConfig(_SigmoidConfig):
    """The weight of the distillation."""

    name: Literal["lwf-mc"] = Field("lwf-mc", description="LwF with binary classifiers")
    weight: float = Field(10.0, ge=0, description="weight of the distillation (paper: 10)")


class LwfMcCConfig(_SigmoidConfig):
    """The variant has nothing to set."""

    name: Literal["lwf-mc-c"] = Field("lwf-mc-c", description="LwF-MC, background from labels")


class LwfMcDConfig(_SigmoidConfig):
    """The variant has nothing to set."""

    name: Literal["lwf-mc-d"] = Field("lwf-mc-d", description="LwF-MC, background from the teacher")


class _Binary(Method):
    """What the three have in common: the teacher, and step 0."""

    uses_teacher = True
    step_0 = "binary cross-entropy"

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the binary cross-entropy in step 0, later the variant's losses."""
        if self.num_old:
            return self.later_losses(batch, student, require_teacher(teacher))
        return fused_binary_losses(
            student.logits,
            batch.targets,
            hidden=batch.hidden,
            num_pixels=batch.num_valid_pixels,
        )

    @abstractmethod
    def later_losses(self, batch: Batch, student: Output, teacher: Output) -> dict[str, Tensor]:
        """Return the losses after step 0."""


class LwfMc(_Binary):
    """Binary cross-entropy to the labels and to the teacher, weighted."""

    name = "lwf-mc"
    Config = LwfMcConfig
    presets = {"small": {"weight": 1}}
    tunable = ("weight",)
    config: LwfMcConfig

    def later_losses(self, batch: Batch, student: Output, teacher: Output) -> dict[str, Tensor]:
        """Return both sums, the teacher's weighted."""
        losses = fused_binary_losses(
            student.logits,
            batch.targets,
            teacher.logits,
            distil=True,
            hidden=batch.hidden,
            num_pixels=batch.num_valid_pixels,
        )
        return {"bce": losses["bce"], "kd": self.config.weight * losses["kd"]}


class _Mixed(_Binary):
    """One sum, whose targets are the teacher's for old channels and the labels' for new ones."""

    old_targets: ClassVar[OldTargets]

    def later_losses(self, batch: Batch, student: Output, teacher: Output) -> dict[str, Tensor]:
        """Return the sum over all channels."""
        return fused_binary_losses(
            student.logits,
            batch.targets,
            teacher.logits,
            old_targets=self.old_targets,
            hidden=batch.hidden,
            num_pixels=batch.num_valid_pixels,
        )


class LwfMcC(_Mixed):
    """The background's target is the label's."""

    name = "lwf-mc-c"
    Config = LwfMcCConfig
    old_targets = "teacher_but_background"


class LwfMcD(_Mixed):
    """The background's target is the teacher's."""

    name = "lwf-mc-d"
    Config = LwfMcDConfig
    old_targets = "teacher"
