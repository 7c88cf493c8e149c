"""Modeling the Background (MiB): the two unbiased losses and the initialization (eq. 1, 3 to 9).

With the student's softmax q, the teacher's p, b the background, Y the old channels with b and C the
new ones with b, the loss of a pixel labeled y is

    -log q~[y]  -  weight * 1/|Y| * sum over c in Y of p[c] log q^[c]
    q~[b] = sum of q over Y,   q~[c] = q[c] for new c    (eq. 3, 4)
    q^[b] = sum of q over C,   q^[c] = q[c] for old c    (eq. 5, 7)

The rows of b and of each new class start with b's old weights and with its bias - log |C|, so that
their probabilities sum to the old one of b (eq. 8, 9).

A pixel labeled background may be any old class, so the cross-entropy compares background with the
sum of all old channels. A pixel that the teacher calls background may be any new class, so the
distillation compares background with the sum of all new channels. Each part can be switched off;
without all three and with the weight 100 this is `lwf`.

The paper's weight is 10, but 100 in the task 15-1. The rows of its ablation (Table 3), with the
weights of the preset `paper`:

    LwF                      lwf                              100
    + CE                     mib with kd=plain, init=random   100
    + CE + KD                mib with init=random             10, in 15-1 100
    + CE + KD + init (MiB)   mib                              10, in 15-1 100

The paper prints the weights of the first and the last row only. In between it must change from 100
to 10; here it changes together with the distillation. So a plain distillation always has LwF's
weight, and each row differs from the one above in one part.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

from pydantic import Field
from torch import Tensor

from nacre.labels.channels import Growth
from nacre.methods.base import (
    Batch,
    DistillingConfig,
    Method,
    MethodConfig,
    NewRows,
    label_cross_entropy,
    label_losses,
    require_teacher,
)
from nacre.methods.lwf import LWF_WEIGHT, Lwf
from nacre.models.network import Output

Bias = Literal["unbiased", "plain"]


class MibConfig(DistillingConfig):
    """The weight of the distillation, and switches for the three parts of the method."""

    name: Literal["mib"] = Field("mib", description="modeling the background")
    weight: float = Field(
        10.0, ge=0, description="weight of the distillation (paper: 10; 100 in the task 15-1)"
    )
    ce: Bias = Field("unbiased", description="cross-entropy: unbiased (eq. 3, 4) or plain (eq. 2)")
    kd: Bias = Field("unbiased", description="distillation: unbiased (eq. 7) or plain (eq. 6)")
    init: NewRows = "background"  # eq. 8, 9


class Mib(Method):
    """Unbiased cross-entropy and distillation, and the initialization from the background."""

    name = "mib"
    Config = MibConfig
    # The paper's results in 15-1 need another weight than its text gives.
    presets = {
        "paper voc/15-1": {"weight": 100},
        "text": {"average": "pixels"},
        "small": {"weight": 100},
        "demo": {"weight": 50},
    }
    tunable = ("weight",)
    uses_teacher = True
    # The unbiased cross-entropy allows old classes in the background.
    unsure: Literal["ignored", "kept"] = "kept"
    config: MibConfig

    def __init__(self, config: MethodConfig, growth: Growth) -> None:
        super().__init__(config, growth)
        if self.config.ce == "plain":
            self.unsure = "ignored"

    @classmethod
    def preset_values(cls, places: Sequence[str], chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return MiB's values in a preset; the plain distillation has LwF's weight."""
        values = super().preset_values(places, chosen)
        if {"paper", "small"} & set(places) and chosen.get("kd") == "plain":
            values["weight"] = Lwf.preset_values(places, {}).get("weight", LWF_WEIGHT)
        return values

    @classmethod
    def hides_old(cls, config: MethodConfig) -> bool:
        """Return whether the cross-entropy is unbiased."""
        assert isinstance(config, MibConfig)
        return config.ce == "unbiased"

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy, eq. 3 and 4, and the distillation, eq. 5 and 7."""
        if not self.num_old:
            return label_cross_entropy(batch, student)
        config, teacher = self.config, require_teacher(teacher)
        origins = self.growth.new_origins
        return label_losses(
            config, batch, student, teacher, ce=config.ce, kd=config.kd, new_origins=origins
        )
