"""What a method is: how the classifier grows, which losses are summed, and what it remembers.

The trainer owns everything else. For a step it does, in this order:

    method = Method(config, growth)          # what the step adds to the channels of the model
    method.grow(network, num_new)            # only after step 0
    method.prepare(step)                     # freeze, add rows: before optimizer and DDP are made
    optimizer = SGD(method.param_groups(step, groups))
    method.begin_step(step)
    method.survey(step)                      # not when an interrupted step goes on: see `state`
    for batch in batches:
        student, teacher = network(batch.images), teacher_network(batch.images)
        batch = method.relabel(batch, student, teacher)
        losses = method.losses(batch, student, teacher)
        sum(losses.values()).backward()      # the trainer's, once or over micro-batches
        method.after_backward(step)
        sum(method.penalties(step).values()).backward()
        optimizer.step()
    method.end_step(step)

A method returns named values and never calls ``backward()``. `student` and `teacher` are the
outputs of the networks, at low resolution; the fused losses upsample them strip by strip and are
equal to the plain functions of `nacre.losses` on upsampled logits. The teacher is evaluated only if
`uses_teacher` says so, the backbone's stages are kept only if `uses_stages` does. For inference the
greatest of `Output.scores` is the answer; what a network needs for it (such as a row for what is
unknown) is part of the network and so of the model file.

What is learned without gradients comes after the last update:

    method.fit(step)                         # passes over step.images(), each image once

A method that learns nothing else says so (`learns_by_gradient`): then there is no optimizer, and
`fit` follows `prepare`.

What combines with any method (freezing, fusion, pseudo-labels, rates) is in `nacre.methods.parts`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor

from nacre.labels.channels import Growth
from nacre.losses.softmax import Variant, fused_losses
from nacre.methods.parts import ParamGroup, Parts, PartsConfig, fill_parts
from nacre.methods.step import Batch, Step
from nacre.models.classifier import ExtraRow
from nacre.models.config import ModelConfig
from nacre.models.network import Network, Output, Part
from nacre.utils.config import Config

__all__ = [
    "Batch",
    "DistillingConfig",
    "Judged",
    "Method",
    "MethodConfig",
    "ParamGroup",
    "Step",
    "label_cross_entropy",
    "label_losses",
    "require_teacher",
]


class MethodConfig(Config):
    """What the configs of all methods have in common: the method's name, and its parts."""

    has_sigmoids: ClassVar[bool] = False
    """Whether there is one sigmoid per channel instead of a softmax over all."""

    name: str = Field(description="the method's name, as in `nacre methods`")
    parts: PartsConfig = Field(
        default_factory=PartsConfig, description="what combines with any method"
    )

    @property
    def saliency_maps(self) -> Path | None:
        """The folder with maps of what is salient, where the method learns from such."""
        return None

    @classmethod
    def own_parts(cls) -> dict[str, Any]:
        """Return the parts that the method has on unless a user says otherwise."""
        return {}

    @classmethod
    def refused_parts(cls) -> dict[str, str]:
        """Return the parts that make no sense for the method, and why."""
        return {}

    @model_validator(mode="before")
    @classmethod
    def _fill_parts(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        parts = fill_parts(values.get("parts", {}), cls.own_parts())
        return {**values, "parts": parts}

    @model_validator(mode="after")
    def _refuse_parts(self) -> "MethodConfig":
        own = PartsConfig(**self.own_parts())
        for key, reason in self.refused_parts().items():
            if getattr(self.parts, key) != getattr(own, key):
                raise ValueError(f"parts.{key} cannot be set for {self.name}: {reason}")
        if self.has_sigmoids and self.parts.pseudo_labels in ("entropy", "released"):
            raise ValueError(
                f"parts.pseudo_labels: {self.parts.pseudo_labels!r} needs a softmax, and "
                f"{self.name} has one sigmoid per channel; use 'probability'"
            )
        return self


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


@dataclass(frozen=True)
class Judged:
    """Whether what updates changed was worth keeping.

    Attributes:
        before: Mean IoU without the updates.
        after: With them; they are kept if it is greater.
        classes: The channels that the updated part has a say in.
    """

    before: float
    after: float
    classes: list[int]


class Method:
    """The base of all methods: says what is learnt; remembers nothing unless told to."""

    name: ClassVar[str]
    Config: ClassVar[type[MethodConfig]]
    tunable: ClassVar[tuple[str, ...]] = ()
    """The keys of the config that weigh remembering against learning."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Values of its config under a preset, by ``preset`` or ``preset data/task``."""
    train_presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The same for the section `train`: where a paper learns with a recipe of its own."""
    learns_by_gradient: ClassVar[bool] = True
    """Whether it is learned by `losses`, in iterations; else by `fit` alone."""
    holds_out: ClassVar[bool] = False
    """Whether `fit` judges by images that no update is made from."""
    uses_teacher: ClassVar[bool] = False
    uses_stages: bool = False
    """Whether `losses` needs the features at the end of the backbone's stages."""
    unsure: ClassVar[Literal["ignored", "kept"]] = "ignored"
    """What becomes of background that gets no pseudo-label."""
    weighs_images: ClassVar[bool] = False
    """Whether images weigh by how much of their background got pseudo-labels (PLOP)."""
    is_joint: ClassVar[bool] = False
    """True for joint training: all classes are learnt in one step."""
    step_0: ClassVar[str] = "cross-entropy"
    """The loss that learns step 0: methods may share a step 0 only if theirs is the same."""
    needs: frozenset[Part] = frozenset()
    """What it asks of a network beside logits; not every foreign network gives it."""
    is_usable: bool = False
    """Whether the network is of use already when updates begin (`begin_step`)."""
    judged: Judged | None = None
    """What `fit` found the updates to be worth, where it judges them."""
    extra_rows: ClassVar[frozenset[ExtraRow]] = frozenset()
    """Rows of the classifier that are no classes and that it learns; others' are dropped."""
    persistent_state: ClassVar[frozenset[str]] = frozenset()
    """What `state` holds at the end of a step: the parts of its keys before the first dot."""

    def __init__(self, config: MethodConfig, growth: Growth) -> None:
        self.config = config
        self.growth = growth
        self.parts = Parts(
            config.parts,
            growth.num_old,
            score="sigmoid" if config.has_sigmoids else "probability",
            unsure=self.unsure,
            weigh_images=self.weighs_images,
            extra_rows=self.extra_rows,
        )

    @property
    def num_old(self) -> int:
        """Channels that were there before the step, the background included; 0 in step 0."""
        return self.growth.num_old

    @classmethod
    def preset_values(cls, places: Sequence[str], chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of its config under a preset.

        Args:
            places: Keys of `presets`, later over earlier.
            chosen: The values that a user set, for methods whose variants have other presets.
        """
        return {key: value for place in places for key, value in cls.presets.get(place, {}).items()}

    @classmethod
    def hides_old(cls, config: MethodConfig) -> bool:
        """Whether its own loss lets old classes stand in the background of a step's pictures."""
        return False

    @property
    def needs_teacher(self) -> bool:
        """Whether there must be a teacher, for the method's losses or for pseudo-labels."""
        return self.uses_teacher or self.parts.labels_anew

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Say how step 0 is learnt: runs may share it only if that is the same."""
        return ", ".join([cls.step_0, *Parts(config.parts, 0).step_0()])

    def grow(self, network: Network, num_new: int) -> None:
        """Give the network its new channels; by default at random."""
        network.grow(num_new, "random")

    def network_config(self, model: ModelConfig) -> ModelConfig:
        """Return the network that step 0 begins with, given the one that a user chose."""
        return model

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the named losses of a batch, already weighted: the trainer sums them."""
        raise NotImplementedError(f"{self.name} has no losses")

    def fit(self, step: Step) -> None:
        """Learn what is learned without gradients; `state` keeps what later steps need."""

    def prepare(self, step: Step) -> None:
        """Freeze, add rows: called before optimizer and DDP are made, the network in train mode."""
        self.parts.prepare(step)

    def param_groups(self, step: Step, groups: list[ParamGroup]) -> list[ParamGroup]:
        """Return what learns, and at which rate.

        Args:
            step: With the student prepared.
            groups: What the config says: each has `params`, `lr_scale` (its learning rate over the
                step's) and, if it is not the config's, `weight_decay`.
        """
        return groups

    def survey(self, step: Step) -> None:
        """Look at the step's images before the first iteration; `state` must keep what is found."""

    def relabel(self, batch: Batch, student: Output, teacher: Output | None) -> Batch:
        """Return the batch with the targets that `losses` is to see."""
        return self.parts.relabel(batch, student, teacher)

    def penalties(self, step: Step) -> dict[str, Tensor]:
        """Return named losses on the parameters, already weighted; asked for once per batch."""
        return {}

    def begin_step(self, step: Step) -> None:
        """Called when the network has grown, before the first iteration of a step."""

    def after_backward(self, step: Step) -> None:
        """Called when the gradients of a batch's `losses` are there, without the penalties'.

        In float16 on a GPU they are 0 in an update that the loss scale makes impossible: whether it
        does is not asked, as nothing here may wait for the device.
        """

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
        may_be=batch.may_be,
        weights=batch.weights,
        num_pixels=batch.num_valid_pixels,
    )


def label_losses(
    config: DistillingConfig,
    batch: Batch,
    student: Output,
    teacher: Output,
    *,
    ce: Variant = "plain",
    kd: Variant = "plain",
    new_origins: Sequence[int] | None = None,
) -> dict[str, Tensor]:
    """Return the cross-entropy and the weighted distillation of the old channels, `ce` and `kd`."""
    losses = fused_losses(
        student.logits,
        batch.targets,
        teacher.logits,
        ce=batch.ce(ce),
        # Without a background that hid the new classes, only the old ones are compared (eq. 6)
        kd=kd if student.has_background else "plain",
        may_be=batch.may_be,
        new_origins=new_origins,
        num_pixels=batch.num_valid_pixels,
    )
    weight = config.distillation_weight(teacher.logits.shape[1])
    return {"ce": losses["ce"], "kd": weight * losses["kd"]}


def require_teacher(teacher: Output | None) -> Output:
    """Return the teacher's output; a method that uses one always has it after step 0."""
    assert teacher is not None, "the trainer evaluates the teacher where `uses_teacher` is set"
    return teacher
