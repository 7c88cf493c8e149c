"""DKD: one sigmoid per class, and distillation of the positive and negative parts of logits.

There is no background channel: its logit is the constant 0, so a pixel is background where no
sigmoid is above 1/2. With B(t, x) the binary cross-entropy of a logit to a target,

    loss = sum over new c of B([y = c], x[c])            mean over pixels, positives weigh g
         + 5 * sum over old c of B(sigmoid(x_old[c]), x[c])                                   kd
         + 5 * the same with the positive parts x+ of the logits, and with the negative x-   dkd
         + the loss of the auxiliary row

x+ and x- are the sums over the features d of max(f[d] w[d], 0) and min(f[d] w[d], 0), at low
resolution and without bias (`nacre.losses.distillations`). The auxiliary row learns to be negative
on every pixel, and new rows start as copies of it (`init=auxiliary`). After step 0 batch norm is
frozen and weight decay only applies to new rows. In the preset `paper` the learning rate of the
backbone is a tenth of the others' (0.001 in the released scripts is the backbone's).

g is 1 on VOC and 35 on ADE20K, but at least 2 in step 0. In the released implementation pixels with
the label 255 are negatives; here `labels.border` decides. On ADE20K its learning rate rises over
the first fifth of a step; set `train.warmup_iterations` to that number.
"""

from typing import Any, Literal

import torch
from pydantic import Field, model_validator
from torch import Tensor

from nacre.errors import NacreError
from nacre.losses.distillations import decomposed_distillation
from nacre.losses.reference import binary_cross_entropy, binary_distillation, pixel_count
from nacre.losses.strips import by_strips
from nacre.methods.base import (
    Batch,
    Freeze,
    Method,
    MethodConfig,
    NewRows,
    ParamGroup,
    Step,
    classifier_of,
    require_teacher,
)
from nacre.models.network import Network, Output

SLOW_BACKBONE: dict[str, dict[str, Any]] = {
    "paper": {"backbone_lr_scale": 0.1},
}
"""Presets of `train` with a tenth of the learning rate for the backbone."""
MIN_POSITIVE_WEIGHT_IN_STEP_0 = 2.0


class SigmoidConfig(MethodConfig):
    """The config of a method with sigmoids and without a background channel."""

    has_sigmoids = True

    @model_validator(mode="after")
    def _refuse_background(self) -> "SigmoidConfig":
        if self.init == "background":
            raise ValueError(f"init: {self.name} has no background row to start from")
        return self


class DkdConfig(SigmoidConfig):
    """The weights of the two distillations and of positive pixels."""

    name: Literal["dkd"] = Field("dkd", description="decomposed distillation")
    weight: float = Field(5.0, ge=0, description="weight of the distillation of logits")
    decomposed_weight: float = Field(5.0, ge=0, description="weight of the distillation of parts")
    positive_weight: float = Field(1.0, gt=0, description="weight of positive pixels")
    freeze: Freeze = ("batch_norm",)
    init: NewRows = "auxiliary"

    @property
    def positive_weight_in_step_0(self) -> float:
        """The weight of positive pixels in step 0."""
        return max(self.positive_weight, MIN_POSITIVE_WEIGHT_IN_STEP_0)


class SigmoidMethod(Method):
    """A method with sigmoids and without a background channel: its logit is the constant 0."""

    step_0 = "binary cross-entropy without background"
    uses_teacher = True
    # The background has no sigmoid that could be certain.
    unsure = "kept"
    requires = frozenset({"classifier"})

    def prepare(self, step: Step) -> None:
        """Make the background's logit 0 in step 0; no loss or weight decay changes it later."""
        if not self.num_old:
            zero_background_row(step.network)
        elif not has_zero_background(step.network):
            raise NacreError(
                f"{self.name} cannot continue this model, as it has learned a background channel; "
                f"learn step 0 with {self.name}, too"
            )
        super().prepare(step)

    def begin_step(self, step: Step) -> None:
        """Keep the step: the losses need the rows of its classifiers."""
        self.step = step

    def logit_losses(
        self, batch: Batch, student: Output, teacher: Output | None, positive_weight: float
    ) -> dict[str, Tensor]:
        """Return `bce` of the new classes and, if there is a teacher, `kd` of the old ones."""
        first_new = self.growth.first_new
        first = first_new if teacher is None else 1
        labeled = pixel_count(student.logits, batch.targets, batch.num_valid_pixels)

        def terms(
            x: Tensor, z: Tensor | None, y: Tensor, hidden: Tensor | None
        ) -> dict[str, Tensor]:
            bce = binary_cross_entropy(
                x[:, first_new - first :],
                y,
                first=first_new,
                positive_weight=positive_weight,
                hidden=hidden,
                num_pixels=labeled,
            )
            if z is None:
                return {"bce": bce}
            return {"bce": bce, "kd": binary_distillation(x, z, num_pixels=batch.targets.numel())}

        hidden = None if batch.hidden is None else batch.hidden[:, first_new:]
        old_logits = None if teacher is None else teacher.logits[:, 1:]
        return by_strips(terms, student.logits[:, first:], old_logits, batch.targets, hidden)


class Dkd(SigmoidMethod):
    """Distillation of the logits and of their positive and negative parts."""

    name = "dkd"
    Config = DkdConfig
    presets = {
        "paper ade20k": {"positive_weight": 35},
        "small": {"weight": 10, "decomposed_weight": 10},
    }
    train_presets = {
        **SLOW_BACKBONE,
        "paper voc": {"epochs": 60, "batch_size": 32, "lr": 0.01, "incremental_lr": 0.001},
        "paper ade20k": {"epochs": 100, "lr": 0.025, "incremental_lr": 0.0025},
    }
    tunable = ("weight", "decomposed_weight")
    config: DkdConfig

    @classmethod
    def step_0_of(cls, config: MethodConfig) -> str:
        """Describe how step 0 is learned, including the weight of positive pixels."""
        assert isinstance(config, DkdConfig)
        return f"{super().step_0_of(config)}, positives x {config.positive_weight_in_step_0:g}"

    def param_groups(self, step: Step, groups: list[ParamGroup]) -> list[ParamGroup]:
        """Restrict weight decay to new rows after step 0."""
        if not self.num_old:
            return groups
        new, old = split_new_rows(step, groups)
        return new + [{**group, "weight_decay": 0.0} for group in old]

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy of new classes and the distillations of old ones."""
        config, num_old = self.config, self.num_old
        if not num_old:
            return self.logit_losses(batch, student, None, config.positive_weight_in_step_0)
        teacher = require_teacher(teacher)
        losses = self.logit_losses(batch, student, teacher, config.positive_weight)
        positive, negative = self._decomposed(student, teacher)
        return {
            "bce": losses["bce"],
            "kd": config.weight * losses["kd"],
            "dkd+": config.decomposed_weight * positive,
            "dkd-": config.decomposed_weight * negative,
        }

    def _decomposed(self, student: Output, teacher: Output) -> tuple[Tensor, Tensor]:
        old, step = slice(1, self.num_old), self.step
        assert step.teacher is not None
        return decomposed_distillation(
            student.decoder_features,
            classifier_of(step.network).weight(old),
            teacher.decoder_features,
            classifier_of(step.teacher).weight(old),
        )


@torch.no_grad()
def zero_background_row(network: Network) -> None:
    """Set the row of channel 0 to zero, so that its logit is 0."""
    rows = classifier_of(network).rows[0]
    assert isinstance(rows, torch.nn.Conv2d)
    assert rows.bias is not None
    rows.weight[0] = 0
    rows.bias[0] = 0


def has_zero_background(network: Network) -> bool:
    """Return whether the row of channel 0 is zero."""
    rows, first = classifier_of(network), slice(0, 1)
    return bool((rows.weight(first) == 0).all() & (rows.bias(first) == 0).all())


def split_new_rows(
    step: Step, groups: list[ParamGroup]
) -> tuple[list[ParamGroup], list[ParamGroup]]:
    """Split parameter groups into those of the new classes' rows and those of the rest."""
    rows = {id(value) for value in classifier_of(step.network).rows[-1].parameters()}

    def select(is_new: bool) -> list[ParamGroup]:
        selected = []
        for group in groups:
            params = [value for value in group["params"] if (id(value) in rows) == is_new]
            if params:
                selected.append({**group, "params": params})
        return selected

    return select(True), select(False)
