"""The base class of all methods: its config, its hooks, and helpers that many methods use.

`nacre.training.loop` learns a step in this order:

    method.grow(network, num_new)            # only after step 0
    method.prepare(step)                     # add rows: before the optimizer and DDP are made
    frozen = freeze(method, step)
    optimizer = SGD(method.param_groups(step, groups))
    method.begin_step(step)
    find_thresholds(method, step)            # not when an interrupted step is resumed
    for batch in batches:
        student, teacher = network(batch.images), teacher_network(batch.images)
        batch = pseudo_labels(method, step, batch, teacher)
        losses = method.losses(batch, student, teacher) | auxiliary_row(method, batch, student)
        sum(losses.values()).backward()      # once, or over micro-batches
        method.after_backward(step)
        sum(method.penalties(step).values()).backward()
        optimizer.step()
    fuse(method, step)
    method.end_step(step)
    method.fit(step)                         # without gradients: passes over step.images()

The functions freeze, pseudo_labels, auxiliary_row and fuse are in `nacre.methods.components`.
They combine with any method, and each does nothing unless the method's config asks for it.

A method returns named losses and never calls ``backward()``. `student` and `teacher` are the
outputs of the networks at low resolution; the fused losses upsample them strip by strip and equal
the functions of `nacre.losses.reference` on upsampled logits. The teacher is only evaluated if
`uses_teacher` is set, and the features of the backbone's stages are only kept if `uses_stages` is.
At inference the class with the greatest `Output.scores` is predicted. Whatever a network needs for
that (such as SSUL's row for unknown classes) is part of the network and of the model file.

For a method that learns without gradients (`learns_by_gradient = False`) there is neither an
optimizer nor a loop: `fit` follows `prepare`.
"""

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Literal

from pydantic import Field, model_validator
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.labels.channels import Growth
from nacre.losses.softmax import Variant, fused_losses
from nacre.methods.step import Batch, Judged, Step
from nacre.models.classifier import Classifier, ExtraRow
from nacre.models.config import ModelConfig
from nacre.models.deeplab import DeepLab
from nacre.models.network import Capability, Network, Output
from nacre.utils.config import Config

__all__ = [
    "Batch",
    "DistillingConfig",
    "Freeze",
    "Fusion",
    "Judged",
    "Method",
    "MethodConfig",
    "NewRows",
    "ParamGroup",
    "PseudoLabels",
    "Step",
    "backbone_of",
    "classifier_of",
    "deeplab",
    "label_cross_entropy",
    "label_losses",
    "require_teacher",
]

ParamGroup = dict[str, Any]
"""A parameter group of torch: `params`, and their own `lr_scale` or `weight_decay`."""

Freeze = Annotated[
    tuple[Literal["backbone", "decoder", "batch_norm", "old_rows"], ...],
    Field(
        description="modules that are frozen after step 0: backbone, decoder, batch_norm "
        "(statistics included), old_rows (of the classifier, background included)"
    ),
]
Fusion = Annotated[
    Literal["off", "sqrt"] | Annotated[float, Field(ge=0, le=1)],
    Field(
        description="interpolation of old and new weights after a step: off, sqrt (EWF), or the "
        "share of the new weights"
    ),
]
PseudoLabels = Annotated[
    Literal["off", "entropy", "released"] | Annotated[float, Field(gt=0, le=1)],
    Field(
        description="criterion by which the teacher's predictions become labels of background "
        "pixels: off, a minimum probability such as 0.7, entropy (PLOP), or released (PLOP's code)"
    ),
]
NewRows = Annotated[
    Literal["random", "background", "auxiliary"],
    Field(
        description="initialization of new rows: random, background (eq. 8, 9), or auxiliary (DKD)"
    ),
]


class MethodConfig(Config):
    """The keys that all methods have: the name and the components.

    A component that is not set does nothing (`nacre.methods.components`).
    """

    has_sigmoids: ClassVar[bool] = False
    """True if there is one sigmoid per channel instead of a softmax over all."""
    refused: ClassVar[Mapping[str, str]] = {}
    """The common keys that the method does not allow, with the reasons."""

    name: str = Field(description="the method's name, as in `nacre methods`")
    freeze: Freeze = ()
    freeze_step_0: bool = Field(
        False,
        description="also freeze the backbone in step 0, with its pretrained weights",
    )
    fusion: Fusion = "off"
    pseudo_labels: PseudoLabels = "off"
    init: NewRows = "random"

    @model_validator(mode="after")
    def _refuse(self) -> "MethodConfig":
        for key, reason in self.refused.items():
            if getattr(self, key) != type(self).model_fields[key].default:
                raise ValueError(f"{key} cannot be set for {self.name}: {reason}")
        if self.has_sigmoids and self.pseudo_labels in ("entropy", "released"):
            raise ValueError(
                f"pseudo_labels: {self.pseudo_labels!r} needs a softmax, but {self.name} has one "
                "sigmoid per channel; use a minimum probability such as 0.7"
            )
        return self


class DistillingConfig(MethodConfig):
    """The weight of a distillation of the old channels, and how it is averaged.

    The paper's eq. 5 averages over the pixels. Its released implementation also averages over the
    old classes, and the paper's weights are meant for that.
    """

    weight: float = Field(1.0, ge=0, description="weight of the distillation")
    average: Literal["classes", "pixels"] = Field(
        "classes",
        description="mean of the distillation: over old classes and pixels, or over pixels (eq. 5)",
    )

    def distillation_weight(self, num_old: int) -> float:
        """Return the factor of a distillation that is a mean over `num_old` channels."""
        return self.weight * num_old if self.average == "pixels" else self.weight


class Method:
    """The base class of all methods: fine-tuning, unless a subclass overrides its hooks."""

    name: ClassVar[str]
    Config: ClassVar[type[MethodConfig]]
    tunable: ClassVar[tuple[str, ...]] = ()
    """The config keys that `nacre tune` searches: they trade old classes against new ones."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Values of the config in a preset, by ``preset`` or ``preset data/task``."""
    train_presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The same for the section `train`, where a paper has its own training recipe."""
    learns_by_gradient: ClassVar[bool] = True
    """False if the method is learned by `fit` alone, without updates."""
    holds_out: ClassVar[bool] = False
    """True if `fit` needs held-out images, which no update uses."""
    uses_teacher: ClassVar[bool] = False
    uses_stages: bool = False
    """True if `losses` needs the features at the end of the backbone's stages."""
    unsure: Literal["ignored", "kept"] = "ignored"
    """The treatment of background pixels without a pseudo-label."""
    weight_by_acceptance: ClassVar[bool] = False
    """True if an image is weighted by the share of its background with pseudo-labels (PLOP)."""
    is_joint: ClassVar[bool] = False
    """True for joint training, which learns all classes in one step."""
    step_0: ClassVar[str] = "cross-entropy"
    """The loss of step 0. Methods can share a step 0 if they learn it in the same way."""
    requires: frozenset[Capability] = frozenset()
    """What the method needs of a network beside logits; some external networks lack it."""
    is_usable: bool = False
    """True if the network can be used before the first update (after `begin_step`)."""
    judged: Judged | None = None
    """The verdict of `fit` on the updates, if the method has one."""
    extra_rows: ClassVar[frozenset[ExtraRow]] = frozenset()
    """Auxiliary rows of the classifier that the method learns; it drops those of others."""
    persistent_state: ClassVar[frozenset[str]] = frozenset()
    """The prefixes (before the first dot) of the keys of `state` at the end of a step."""

    def __init__(self, config: MethodConfig, growth: Growth) -> None:
        self.config = config
        self.growth = growth

    @property
    def num_old(self) -> int:
        """Number of channels before the step, background included; 0 in step 0."""
        return self.growth.num_old

    @classmethod
    def preset_values(cls, places: Sequence[str], chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return the values of the config in a preset.

        Args:
            places: Keys of `presets`; later ones override earlier ones.
            chosen: The user's values, for methods whose variants have presets of their own.
        """
        return {key: value for place in places for key, value in cls.presets.get(place, {}).items()}

    @classmethod
    def hides_old(cls, config: MethodConfig) -> bool:
        """Return whether the method's own loss allows old classes in a step's background."""
        return False

    @property
    def needs_teacher(self) -> bool:
        """True if the losses or the pseudo-labels need a teacher in this step."""
        return self.uses_teacher or (bool(self.num_old) and self.config.pseudo_labels != "off")

    @property
    def freezes_backbone(self) -> bool:
        """True if the backbone is frozen in this step."""
        config = self.config
        return config.freeze_step_0 or (bool(self.num_old) and "backbone" in config.freeze)

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Describe how step 0 is learned; runs with equal descriptions can share it."""
        how = [cls.step_0]
        how += ["an auxiliary row"] if config.init == "auxiliary" else []
        how += ["a frozen backbone"] if config.freeze_step_0 else []
        return ", ".join(how)

    def grow(self, network: Network, num_new: int) -> None:
        """Add the new channels to the network, initialized by `init`."""
        init = self.config.init
        if init != "auxiliary":
            network.grow(num_new, init, self.growth.new_origins)
            return
        rows = classifier_of(network)
        if rows.auxiliary is None:
            raise NacreError(
                "method.init: the model has no auxiliary row to initialize new classes from; learn "
                "step 0 with init=auxiliary, too"
            )
        rows.grow_from("auxiliary", num_new)

    def network_config(self, model: ModelConfig) -> ModelConfig:
        """Return the config of the network of step 0, given the user's."""
        return model

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the named, weighted losses of a batch, which the trainer sums.

        The default is the cross-entropy on the labels, eq. 2.
        """
        return label_cross_entropy(batch, student)

    def fit(self, step: Step) -> None:
        """Learn without gradients; `state` returns what later steps need."""

    def prepare(self, step: Step) -> None:
        """Add rows to the network, which is in train mode, before optimizer and DDP are made.

        By default the classifier gets the auxiliary rows that the method learns, and drops those
        that another method learned, as nothing would train them.
        """
        step.network.zero_grad()  # frozen parameters must not keep the last step's gradients
        is_auxiliary = self.config.init == "auxiliary"
        if isinstance(step.network, DeepLab):
            own: frozenset[ExtraRow] = frozenset({"auxiliary"} if is_auxiliary else ())
            step.network.classifier.keep_rows(self.extra_rows | own)
        if is_auxiliary:
            classifier_of(step.network).add_row("auxiliary")

    def param_groups(self, step: Step, groups: list[ParamGroup]) -> list[ParamGroup]:
        """Return the parameter groups of the optimizer.

        Args:
            step: The step, after `prepare`.
            groups: The groups that follow from the config: `params`, `lr_scale` (a factor of the
                step's learning rate) and, if it differs from the config's, `weight_decay`.
        """
        return groups

    def penalties(self, step: Step) -> dict[str, Tensor]:
        """Return named, weighted losses on the parameters; called once per batch."""
        return {}

    def begin_step(self, step: Step) -> None:
        """Prepare the method for the first iteration; the network has grown.

        When an interrupted step is resumed, this runs again and `load_state` follows.
        """

    def after_backward(self, step: Step) -> None:
        """Use the gradients of a batch's `losses`, before those of the penalties are added.

        In float16 on a GPU they are 0 in an update that the loss scaler skips: to ask the scaler
        would wait for the device.
        """

    def end_step(self, step: Step) -> None:
        """Finish a step after its last iteration."""

    def state(self) -> dict[str, Tensor]:
        """Return the tensors that checkpoints and later steps need."""
        return {}

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore what `state` returned."""
        assert not state, f"{self.name} keeps no state, but was given {sorted(state)}"


def label_cross_entropy(batch: Batch, student: Output) -> dict[str, Tensor]:
    """Return the cross-entropy on the labels, eq. 2: the loss of fine-tuning.

    If the data sets declare hidden classes, it is eq. 3 and 4 with these classes.
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
        # Without a background that could contain new classes only eq. 6 makes sense.
        kd=kd if student.has_background else "plain",
        may_be=batch.may_be,
        new_origins=new_origins,
        num_pixels=batch.num_valid_pixels,
    )
    weight = config.distillation_weight(teacher.logits.shape[1])
    return {"ce": losses["ce"], "kd": weight * losses["kd"]}


def require_teacher(teacher: Output | None) -> Output:
    """Return the teacher's output, which exists after step 0 if `uses_teacher` is set."""
    assert teacher is not None, "the trainer evaluates the teacher where `uses_teacher` is set"
    return teacher


def deeplab(network: Network) -> DeepLab:
    """Return the network as a DeepLab; `requires` ensures that it is one."""
    assert isinstance(network, DeepLab), type(network)
    return network


def backbone_of(network: Network) -> nn.Module:
    """Return the backbone; `requires` ensures that the network has one."""
    assert network.backbone_or_none is not None
    return network.backbone_or_none


def classifier_of(network: Network) -> Classifier:
    """Return the classifier of a DeepLab."""
    return deeplab(network).classifier
