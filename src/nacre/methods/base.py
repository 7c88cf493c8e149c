"""What a method is: how the classifier grows, which losses are summed, and what it remembers.

The trainer owns everything else. For a step it does, in this order:

    method = Method(config, num_old)         # channels known before this step, 0 in step 0
    method.grow(network, num_new)            # only after step 0
    method.begin_step(step)
    for batch in batches:
        losses = method.losses(batch, student, teacher)
        sum(losses.values()).backward()      # the trainer's, once or over micro-batches
        method.after_backward(step)
        sum(method.penalties(step).values()).backward()
        optimizer.step()
    method.end_step(step)

A method returns named values and never calls ``backward()``. `student` and `teacher` are the
outputs of the networks, at low resolution; the fused losses upsample them strip by strip and are
equal to the plain functions of `nacre.losses` on upsampled logits. The teacher is evaluated only if
`uses_teacher` says so.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from pydantic import Field
from torch import Tensor

from nacre.losses.fused import fused_losses
from nacre.losses.kernels import Variant
from nacre.models.network import Network, Output, Part
from nacre.utils.config import Config
from nacre.utils.distributed import Distributed


@dataclass(frozen=True)
class Batch:
    """What one call of `losses` sees.

    Attributes:
        images: N,3,H,W, uint8 RGB.
        targets: N,H,W, channel numbers; 255 is ignored.
        num_valid_pixels: How many pixels a loss on the targets is averaged over. It is the share
            of the whole batch, so that gradient accumulation and several processes change nothing.
        hidden: N,C, bool: the channels that may hide in the background of each image, where that is
            known of the data and not simply all old ones. Cross-entropies take it into account.
    """

    images: Tensor
    targets: Tensor
    num_valid_pixels: float | None = None
    hidden: Tensor | None = None

    def ce(self, usual: Variant) -> Variant:
        """Return which cross-entropy is right: the usual one unless the data say what hides."""
        return usual if self.hidden is None else "unbiased"


@dataclass(frozen=True)
class Step:
    """The step that is being learnt, as the hooks of a method see it.

    Attributes:
        index: Its number; 0 is the base.
        class_names: Class name by channel, all that is known after the step.
        num_old: Channels known before the step, background included; 0 in step 0.
        network: The student, already grown.
        teacher: The frozen network of the step before, where the method uses one.
        dist: Who computes, and where.
        iterations: Updates of the whole step.
        hidden: One row of channels per data set, see `Batch`; None where all old ones may hide.
    """

    index: int
    class_names: tuple[str, ...]
    num_old: int
    network: Network
    teacher: Network | None
    dist: Distributed
    iterations: int
    hidden: Tensor | None = None

    @property
    def num_new(self) -> int:
        """Channels that the step adds; in step 0 all of them."""
        return len(self.class_names) - self.num_old


class MethodConfig(Config):
    """What the configs of all methods have in common: the method's name."""

    name: str = Field(description="the method's name, as in `nacre methods`")


class DistillingConfig(MethodConfig):
    """The weight of a distillation of the old channels, and over what it is averaged.

    The paper's released implementation averages over the old classes as well as over the pixels,
    and the paper's weights are meant that way; its eq. 5 averages over the pixels alone.
    """

    weight: float = Field(1.0, ge=0, description="weight of the distillation")
    average: Literal["classes", "pixels"] = Field(
        "classes",
        description="distillation: mean over old classes and pixels, or pixels alone (eq. 5)",
    )

    def distillation_weight(self, num_old: int) -> float:
        """Return the factor of a distillation that is averaged over so many old channels."""
        return self.weight * num_old if self.average == "pixels" else self.weight


class Method(ABC):
    """The base of all methods: says what is learnt; remembers nothing unless told to."""

    name: ClassVar[str]
    title: ClassVar[str] = ""
    """As tables write it; the name where there is none."""
    summary: ClassVar[str]
    paper: ClassVar[str]
    Config: ClassVar[type[MethodConfig]]
    regularizes: ClassVar[str] = "nothing"
    tunable: ClassVar[tuple[str, ...]] = ()
    """The keys of the config that weigh remembering against learning."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Values of its config under a preset, by ``preset`` or ``preset data/task``."""
    uses_teacher: ClassVar[bool] = False
    extra_param_copies: ClassVar[int] = 0
    """Tensors as large as the parameters that it keeps on the device, beside a teacher."""
    is_joint: ClassVar[bool] = False
    """True for joint training: all classes are learnt in one step."""
    takes_hidden: ClassVar[bool] = True
    """Whether its loss on labels can take which channels hide in the background of an image."""
    step_0: ClassVar[str] = "cross-entropy"
    """The loss that learns step 0: methods may share a step 0 only if theirs is the same."""
    needs: ClassVar[frozenset[Part]] = frozenset()
    """What it asks of a network beside logits; not every foreign network gives it."""
    persistent_state: ClassVar[frozenset[str]] = frozenset()
    """What `state` holds at the end of a step: the parts of its keys before the first dot."""

    def __init__(self, config: MethodConfig, num_old: int) -> None:
        self.config = config
        self.num_old = num_old

    def grow(self, network: Network, num_new: int) -> None:
        """Give the network its new channels; by default at random."""
        network.grow(num_new, "random")

    @abstractmethod
    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the named losses of a batch, already weighted: the trainer sums them."""

    def penalties(self, step: Step) -> dict[str, Tensor]:
        """Return named losses on the parameters, already weighted; asked for once per batch."""
        return {}

    def begin_step(self, step: Step) -> None:
        """Called when the network has grown, before the first iteration of a step."""

    def after_backward(self, step: Step) -> None:
        """Called when the gradients of a batch's `losses` are there, without the penalties'."""

    def end_step(self, step: Step) -> None:
        """Called after the last iteration of a step."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that must survive from step to step and through a checkpoint."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Take back what `state` returned."""
        assert not state, f"{self.name} keeps no state, but was given {sorted(state)}"


def label_cross_entropy(batch: Batch, student: Output) -> dict[str, Tensor]:
    """Return the cross-entropy on the labels, eq. 2: all of fine-tuning and of joint training.

    Where the data say what their background hides, it is eq. 3 and 4 with these channels.
    """
    return fused_losses(
        student.logits,
        batch.targets,
        ce=batch.ce("plain"),
        hidden=batch.hidden,
        num_pixels=batch.num_valid_pixels,
    )


def require_teacher(teacher: Output | None) -> Output:
    """Return the teacher's output; a method that uses one always has it after step 0."""
    assert teacher is not None, "the trainer evaluates the teacher where `uses_teacher` is set"
    return teacher
