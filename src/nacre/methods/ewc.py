"""Elastic weight consolidation (EWC): a penalty on parameters whose gradients were large.

The importance is the diagonal of the empirical Fisher information: a running mean over the
iterations, with the gradient g of the cross-entropy (without the penalty):

    F <- 0.9 g^2 + 0.1 F
    omega = normalized(F)   of the step before
    loss = cross-entropy + weight * sum of omega (theta - theta*)^2
    normalized(w) = (w - min w) / (max w - min w + 1e-8),   for each tensor

F continues from step to step and is 1 for new parameters; theta* are the parameters at the end of
the step before. The original has a factor 1/2 in the penalty. The paper's released implementation
has none, so neither has this one.

Memory on the device after step 0: three times the parameters (F, normalized(F), theta*); in step
0 once (F). The model file contains F.
"""

from typing import Literal

import torch
from pydantic import Field

from nacre.methods._regularizer import (
    ParameterRegularizer,
    RegularizerConfig,
    begin_fisher,
    normalize,
    update_fisher,
)
from nacre.methods.base import Step


class EwcConfig(RegularizerConfig):
    """The weight of the penalty."""

    name: Literal["ewc"] = Field("ewc", description="elastic weight consolidation")
    weight: float = Field(500.0, ge=0, description="weight of the penalty (paper: 500)")


class Ewc(ParameterRegularizer):
    """Penalty weighted by the Fisher information."""

    name = "ewc"
    Config = EwcConfig
    presets = {"learn": {"weight": 50}, "small": {"weight": 1000}, "demo": {"weight": 10}}
    persistent_state = frozenset({"fisher"})

    @torch.no_grad()
    def begin_step(self, step: Step) -> None:
        """Set the penalty by the Fisher information so far, which goes on running."""
        fisher = self.require_state("fisher")
        self.values = {"fisher": begin_fisher(fisher, step.network)}
        if self.num_old:
            self.hold(step, {name: normalize(value) for name, value in fisher.items()})

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        """Update the Fisher information."""
        update_fisher(self.values["fisher"], step.network)
