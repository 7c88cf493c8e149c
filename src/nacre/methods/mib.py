"""Modeling the Background (MiB): the two unbiased losses and the initialization (eq. 1, 3 to 9).

With the student's softmax q, the teacher's p, b the background, Y the old channels with b and C the
new ones with b, a pixel labeled y has the loss

    -log q~[y]  -  weight * 1/|Y| * sum over c in Y of p[c] log q^[c]
    q~[b] = sum of q over Y,   q~[c] = q[c] for new c    (eq. 3, 4)
    q^[b] = sum of q over C,   q^[c] = q[c] for old c    (eq. 5, 7)

and the classifiers of b and of every new class begin with b's old weights and, so that together
they are as probable as b was, with its bias - log |C| (eq. 8, 9).

A pixel labeled background may be any old class, so the cross-entropy compares background with
the sum of all that is old. What the teacher calls background may be any new class, so the
distillation compares it with the sum of all that is new. Each part can be switched off: with all
three off and the weight 100 this is `lwf`.

The paper's weight is 10, but 100 in the task 15-1. The rows of its ablation (Table 3), with the
weights that the preset `paper` gives them:

    LwF                      lwf                              100
    + CE                     mib with kd=plain, init=random   100
    + CE + KD                mib with init=random             10, in 15-1 100
    + CE + KD + init (MiB)   mib                              10, in 15-1 100

The paper prints the weights of the first and the last row alone. Somewhere between them it falls
from 100 to 10; here it falls with the distillation whose weight it is. So a plain distillation has
LwF's weight, "+ CE" differs from LwF in the cross-entropy alone, and "+ init" from the row above it
in the initialization alone.
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
    """The weight of the distillation and the three parts of the method."""

    name: Literal["mib"] = Field("mib", description="modeling the background")
    weight: float = Field(
        10.0, ge=0, description="weight of the distillation (paper: 10; 100 in the task 15-1)"
    )
    ce: Bias = Field("unbiased", description="cross-entropy: unbiased (eq. 3, 4) or plain (eq. 2)")
    kd: Bias = Field("unbiased", description="distillation: unbiased (eq. 7) or plain (eq. 6)")
    init: NewRows = "background"  # eq. 8, 9


class Mib(Method):
    """Cross-entropy and distillation that know what the background may hide."""

    name = "mib"
    Config = MibConfig
    # The one task for which the paper's figures were made with another weight.
    presets = {
        "paper voc/15-1": {"weight": 100},
        "text": {"average": "pixels"},
        "small": {"weight": 100},
        "demo": {"weight": 50},
    }
    tunable = ("weight",)
    uses_teacher = True
    unsure: Literal["ignored", "kept"] = (
        "kept"  # the unbiased cross-entropy knows what background may be
    )
    config: MibConfig

    def __init__(self, config: MethodConfig, growth: Growth) -> None:
        super().__init__(config, growth)
        if self.config.ce == "plain":
            self.unsure = "ignored"

    @classmethod
    def preset_values(cls, places: Sequence[str], chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Return MiB's values under a preset; LwF's distillation has LwF's weight."""
        values = super().preset_values(places, chosen)
        if {"paper", "small"} & set(places) and chosen.get("kd") == "plain":
            values["weight"] = Lwf.preset_values(places, {}).get("weight", LWF_WEIGHT)
        return values

    @classmethod
    def hides_old(cls, config: MethodConfig) -> bool:
        """Return whether its cross-entropy is unbiased."""
        assert isinstance(config, MibConfig)
        return config.ce == "unbiased"

    def losses(self, batch: Batch, student: Output, teacher: Output | None) -> dict[str, Tensor]:
        """Return the cross-entropy, eq. 3 and 4, and the distillation, eq. 5 and 7."""
        if not self.num_old:
            return label_cross_entropy(batch, student)
        config, seen = self.config, require_teacher(teacher)
        origins = self.growth.new_origins
        return label_losses(
            config, batch, student, seen, ce=config.ce, kd=config.kd, new_origins=origins
        )
