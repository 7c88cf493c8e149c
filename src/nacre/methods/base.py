"""The base of all methods: growing the classifier, the losses, and what is remembered.

`nacre.training.loop` owns everything else. It learns a step in this order:

    method.grow(network, num_new)            # only after step 0
    method.prepare(step)                     # add rows: before optimizer and DDP are made
    frozen = freeze(method, step)
    optimizer = SGD(method.param_groups(step, groups))
    method.begin_step(step)
    find_thresholds(method, step)            # these two not when an interrupted step goes on,
    method.survey(step)                      # see `state`
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

The four functions (freeze, pseudo_labels, auxiliary_row, fuse) are in `nacre.methods.components`:
they combine with any method, and each does nothing unless the method's config says so.

A method returns named values and never calls ``backward()``. `student` and `teacher` are the
outputs of the networks, at low resolution; the fused losses upsample them strip by strip and are
equal to the plain functions of `nacre.losses` on upsampled logits. The teacher is evaluated only if
`uses_teacher` says so, the backbone's stages are kept only if `uses_stages` does. For inference the
greatest of `Output.scores` is the answer; what a network needs for it (such as a row for what is
unknown) is part of the network and so of the model file.

A method that learns without gradients alone says so (`learns_by_gradient`): then there is neither
optimizer nor loop, and `fit` follows `prepare`.
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
"""torch's: `params` and what is other for them, `lr_scale` or `weight_decay`."""

Freeze = Annotated[
    tuple[Literal["backbone", "decoder", "batch_norm", "old_rows"], ...],
    Field(
        description="what does not learn after step 0: backbone, decoder, batch_norm (nor its "
        "statistics), old_rows (of the classifier, the background's too)"
    ),
]
Fusion = Annotated[
    Literal["off", "sqrt"] | Annotated[float, Field(ge=0, le=1)],
    Field(description="fuse old and new weights after a step: sqrt (EWF), or the new one's part"),
]
PseudoLabels = Annotated[
    Literal["off", "entropy", "released"] | Annotated[float, Field(gt=0, le=1)],
    Field(
        description="how sure the teacher must be to name what is labeled background: its least "
        "probability, such as 0.7, or entropy (PLOP), or as PLOP's code has it (released)"
    ),
]
NewRows = Annotated[
    Literal["random", "background", "auxiliary"],
    Field(description="how new rows start: random, from the background's, or auxiliary (DKD)"),
]


class MethodConfig(Config):
    """The common part of the configs of all methods: a name and the components.

    Without a value of its own each of these is off, and changes no bit. `nacre.methods.components`
    carries them out.
    """

    has_sigmoids: ClassVar[bool] = False
    """True if there is one sigmoid per channel instead of a softmax over all."""
    refused: ClassVar[Mapping[str, str]] = {}
    """The common keys that make no sense for the method, and why."""

    name: str = Field(description="the method's name, as in `nacre methods`")
    freeze: Freeze = ()
    freeze_step_0: bool = Field(
        False, description="freeze the backbone in step 0 too: it stays as its weights are"
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
                f"pseudo_labels: {self.pseudo_labels!r} needs a softmax, and {self.name} has one "
                "sigmoid per channel; use a least probability, such as 0.7"
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


class Method:
    """The base of all methods: says what is learned; remembers nothing unless told to."""

    name: ClassVar[str]
    Config: ClassVar[type[MethodConfig]]
    tunable: ClassVar[tuple[str, ...]] = ()
    """The keys of the config that weigh remembering against learning."""
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """Values of its config under a preset, by ``preset`` or ``preset data/task``."""
    train_presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    """The same for the section `train`: where a paper learns with a recipe of its own."""
    learns_by_gradient: ClassVar[bool] = True
    """True if it is learned by `losses`, in iterations; else by `fit` alone."""
    holds_out: ClassVar[bool] = False
    """True if `fit` judges by images that no update is made from."""
    uses_teacher: ClassVar[bool] = False
    uses_stages: bool = False
    """True if `losses` needs the features at the end of the backbone's stages."""
    unsure: Literal["ignored", "kept"] = "ignored"
    """What becomes of background that gets no pseudo-label."""
    weighs_images: ClassVar[bool] = False
    """True if images weigh by how much of their background got pseudo-labels (PLOP)."""
    is_joint: ClassVar[bool] = False
    """True for joint training: all classes are learned in one step."""
    step_0: ClassVar[str] = "cross-entropy"
    """The loss that learns step 0: methods may share a step 0 only if theirs is the same."""
    requires: frozenset[Capability] = frozenset()
    """What it asks of a network beside logits; not every external network gives it."""
    is_usable: bool = False
    """True if the network is of use already when updates begin (`begin_step`)."""
    judged: Judged | None = None
    """What `fit` found the updates to be worth, where it judges them."""
    extra_rows: ClassVar[frozenset[ExtraRow]] = frozenset()
    """Rows of the classifier that are no classes and that it learns; others' are dropped."""
    persistent_state: ClassVar[frozenset[str]] = frozenset()
    """What `state` holds at the end of a step: the parts of its keys before the first dot."""

    def __init__(self, config: MethodConfig, growth: Growth) -> None:
        self.config = config
        self.growth = growth

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
        """Return whether its own loss lets old classes stand in a step's background."""
        return False

    @property
    def needs_teacher(self) -> bool:
        """True if there must be a teacher, for the method's losses or for pseudo-labels."""
        return self.uses_teacher or (bool(self.num_old) and self.config.pseudo_labels != "off")

    @property
    def freezes_backbone(self) -> bool:
        """True if the backbone does not learn in this step."""
        config = self.config
        return config.freeze_step_0 or (bool(self.num_old) and "backbone" in config.freeze)

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Describe how step 0 is learned: runs may share it only if that is the same."""
        how = [cls.step_0]
        how += ["an auxiliary row"] if config.init == "auxiliary" else []
        how += ["a frozen backbone"] if config.freeze_step_0 else []
        return ", ".join(how)

    def grow(self, network: Network, num_new: int) -> None:
        """Give the network its new channels, which start as `init` says."""
        init = self.config.init
        if init != "auxiliary":
            network.grow(num_new, init, self.growth.new_origins)
            return
        rows = classifier_of(network)
        if rows.auxiliary is None:
            raise NacreError(
                "method.init: the model has no auxiliary row to start new classes from; learn step "
                "0 with init=auxiliary too"
            )
        rows.grow_from("auxiliary", num_new)

    def network_config(self, model: ModelConfig) -> ModelConfig:
        """Return the network that step 0 begins with, given the one that a user chose."""
        return model

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the named losses of a batch, already weighted: the trainer sums them.

        By default it is the cross-entropy on the labels, eq. 2.
        """
        return label_cross_entropy(batch, student)

    def fit(self, step: Step) -> None:
        """Learn what is learned without gradients; `state` keeps what later steps need."""

    def prepare(self, step: Step) -> None:
        """Add rows: called before optimizer and DDP are made, the network in train mode.

        By default the classifier gets the rows that are no classes and that the method learns;
        those that another method learned are dropped, as nothing would train them here.
        """
        step.network.zero_grad()  # what does not learn must not keep the last step's gradient
        is_auxiliary = self.config.init == "auxiliary"
        if isinstance(step.network, DeepLab):
            own: frozenset[ExtraRow] = frozenset({"auxiliary"} if is_auxiliary else ())
            step.network.classifier.keep_rows(self.extra_rows | own)
        if is_auxiliary:
            classifier_of(step.network).add_row("auxiliary")

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

    def penalties(self, step: Step) -> dict[str, Tensor]:
        """Return named losses on the parameters, already weighted; asked for once per batch."""
        return {}

    def begin_step(self, step: Step) -> None:
        """Begin a step: the network has grown, the first iteration follows."""

    def after_backward(self, step: Step) -> None:
        """Use the gradients of a batch's `losses`, before the penalties' are added.

        In float16 on a GPU they are 0 in an update that the loss scale makes impossible: whether it
        does is not asked, as nothing here may wait for the device.
        """

    def end_step(self, step: Step) -> None:
        """End a step after its last iteration."""

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


def deeplab(network: Network) -> DeepLab:
    """Return the network as one of nacre's; `requires` ensures that it is one."""
    assert isinstance(network, DeepLab), type(network)
    return network


def backbone_of(network: Network) -> nn.Module:
    """Return the backbone of a network; `requires` ensures that it has one."""
    assert network.backbone_or_none is not None
    return network.backbone_or_none


def classifier_of(network: Network) -> Classifier:
    """Return the classifier of a network of ours."""
    return deeplab(network).classifier
