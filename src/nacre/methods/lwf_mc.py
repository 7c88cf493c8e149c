"""LwF-MC: learning without forgetting with one sigmoid per class, as in iCaRL, and no softmax.

With s = sigmoid of the student's logits, p = sigmoid of the teacher's, y the label, b the
background, Y the old channels (b included), and the binary cross-entropy

    B(t, s) = -t log s - (1 - t) log(1 - s)

the loss of a pixel is a sum over channels:

    step 0     sum over all c of B([c is y], s[c])
    lwf-mc     the same + weight * sum over c in Y of B(p[c], s[c])
    lwf-mc-d   sum over c in Y of B(p[c], s[c]) + sum over new c of B([c is y], s[c])
    lwf-mc-c   as lwf-mc-d, but B([b is y], s[b]) for the background

The variants differ in the target of the background: `lwf-mc` uses the labels and the teacher, -d
(distillation) only the teacher, -c (classification) only the labels. -c and -d have no weight. The
paper does not print these sums; they are those of its released implementation. As step 0 is learned
with sigmoids, it cannot be shared with methods that use a softmax.
"""

from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from nacre.losses.reference import (
    binary_cross_entropy,
    binary_distillation,
    binary_mixed,
    pixel_count,
)
from nacre.losses.strips import by_strips
from nacre.methods.base import Batch, Method, MethodConfig, require_teacher
from nacre.models.network import Output


class _SigmoidConfig(MethodConfig):
    """The config of a method with one sigmoid per channel."""

    has_sigmoids = True


class LwfMcConfig(_SigmoidConfig):
    """The weight of the distillation."""

    name: Literal["lwf-mc"] = Field("lwf-mc", description="LwF with binary classifiers")
    weight: float = Field(10.0, ge=0, description="weight of the distillation (paper: 10)")


class LwfMcCConfig(_SigmoidConfig):
    """The config of variant C, without keys of its own."""

    name: Literal["lwf-mc-c"] = Field("lwf-mc-c", description="LwF-MC, background from labels")


class LwfMcDConfig(_SigmoidConfig):
    """The config of variant D, without keys of its own."""

    name: Literal["lwf-mc-d"] = Field("lwf-mc-d", description="LwF-MC, background from the teacher")


class _Binary(Method):
    """One sigmoid per channel in every step.

    Attributes:
        background: The background's target after step 0: that of the labels and the teacher's, in
            two sums, or only one of them, in one sum.
    """

    uses_teacher = True
    step_0 = "binary cross-entropy"
    background: ClassVar[Literal["both", "labels", "teacher"]] = "both"

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the binary cross-entropy in step 0, and the variant's losses afterwards."""
        old_logits = require_teacher(teacher).logits if self.num_old else None
        labeled = pixel_count(student.logits, batch.targets, batch.num_valid_pixels)
        num_pixels = batch.targets.numel()

        def terms(
            x: Tensor, z: Tensor | None, y: Tensor, hidden: Tensor | None
        ) -> dict[str, Tensor]:
            if z is None:
                return {"bce": binary_cross_entropy(x, y, hidden=hidden, num_pixels=labeled)}
            if self.background == "both":
                return {
                    "bce": binary_cross_entropy(x, y, hidden=hidden, num_pixels=labeled),
                    "kd": binary_distillation(x, z, num_pixels=num_pixels),
                }
            of_label = self.background == "labels"
            mixed = binary_mixed(
                x, y, z, labeled_background=of_label, hidden=hidden, num_pixels=labeled
            )
            return {"bce": mixed}

        return by_strips(terms, student.logits, old_logits, batch.targets, batch.hidden)


class LwfMc(_Binary):
    """Binary cross-entropy to the labels, and a weighted one to the teacher."""

    name = "lwf-mc"
    Config = LwfMcConfig
    presets = {"small": {"weight": 1}}
    tunable = ("weight",)
    config: LwfMcConfig

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return both sums, that of the teacher weighted."""
        losses = super().losses(batch, student, teacher)
        return losses | ({"kd": self.config.weight * losses["kd"]} if self.num_old else {})


class LwfMcC(_Binary):
    """LwF-MC with the background's target from the labels."""

    name = "lwf-mc-c"
    Config = LwfMcCConfig
    background = "labels"


class LwfMcD(_Binary):
    """LwF-MC with the background's target from the teacher."""

    name = "lwf-mc-d"
    Config = LwfMcDConfig
    background = "teacher"
