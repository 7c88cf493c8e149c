"""Elastic weight consolidation (EWC): holds the parameters whose gradients were large.

The importance is the diagonal of the empirical Fisher information, as a running mean over the
iterations with the gradient g of the cross-entropy (the penalty's is not in it):

    F <- 0.9 g^2 + 0.1 F
    omega = normalised(F)   of the step before
    loss = cross-entropy + weight * sum of omega (theta - theta*)^2
    normalised(w) = (w - min w) / (max w - min w + 1e-8),   tensor by tensor

F goes on from step to step and is 1 for parameters that are new; theta* are the parameters at the
end of the step before. The original has a factor 1/2 in the penalty, the paper's released
implementation has none, nor has this one.

Memory on the device after step 0: three times the parameters (F, normalised(F), theta*); in step
0 once (F). A finished step keeps F.
"""

from typing import Literal

import torch
from pydantic import Field

from nacre.methods._regularizer import (
    Holding,
    HoldingConfig,
    begin_fisher,
    copied,
    learnt,
    normalised,
    update_fisher,
)
from nacre.models.network import Network


class EwcConfig(HoldingConfig):
    """The weight of the penalty."""

    name: Literal["ewc"] = Field("ewc", description="elastic weight consolidation")
    weight: float = Field(500.0, ge=0, description="weight of the penalty (paper: 500)")


class Ewc(Holding):
    """Holds parameters by their Fisher information."""

    name = "ewc"
    summary = "holds parameters whose gradients were large"
    regularises = "parameters with large gradients"
    paper = "Kirkpatrick et al. 2017"
    Config = EwcConfig
    collects = frozenset({"fisher"})
    copies = 3

    @torch.no_grad()
    def begin_step(self, network: Network) -> None:
        """Freeze the importance found so far, and go on measuring it."""
        fisher = self.collected("fisher")
        self.tables = {"fisher": begin_fisher(fisher, network)}
        if self.old:
            parameters = learnt(network)
            self.tables["omega"] = {name: normalised(value) for name, value in fisher.items()}
            self.tables["anchor"] = copied({name: parameters[name] for name in fisher})

    @torch.no_grad()
    def after_backward(self, network: Network) -> None:
        """Count a batch."""
        update_fisher(self.tables["fisher"], network)
