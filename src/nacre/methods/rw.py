"""Riemannian walk (RW): the Fisher information of `ewc` together with a score along the path.

F is as in `ewc`. Every tenth iteration adds to the score s of a parameter how much its movement
lowered the loss, relative to the distance in the metric of F, with the gradient g of the
cross-entropy (without the penalty) and theta_prev of ten iterations before:

    s <- s + g (theta_prev - theta) / (F (theta - theta_prev)^2 / 2 + 1e-8)
    F <- 0.9 g^2 + 0.1 F
    score <- (score + max(0, s)) / 2   at the end of a step
    omega = normalized(F) + normalized(score)   of the step before
    loss = cross-entropy + weight * sum of omega (theta - theta*)^2
    normalized(w) = (w - min w) / (max w - min w + 1e-8),   for each tensor

s is 0 at the start of a step. F continues from step to step, is updated in each iteration after s,
and is 1 for new parameters. The first score of a parameter is max(0, s). theta* are the parameters
at the end of the step before.

Memory after step 0: six times the parameters (F, s, theta_prev, score, the normalized sum,
theta*); in step 0 three times. The model file contains F and the score.
"""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from nacre.methods._regularizer import (
    ParameterRegularizer,
    RegularizerConfig,
    begin_fisher,
    clone_tensors,
    normalize,
    select,
    trainable_parameters,
    update_fisher,
    with_gradients,
)
from nacre.methods.base import Step
from nacre.models.network import Network

EPSILON = 1e-8
EVERY = 10


class RwConfig(RegularizerConfig):
    """The weight of the penalty."""

    name: Literal["rw"] = Field("rw", description="Riemannian walk")
    weight: float = Field(100.0, ge=0, description="weight of the penalty (paper: 100)")


class Rw(ParameterRegularizer):
    """Penalty weighted by the Fisher information and the score of the walk."""

    name = "rw"
    Config = RwConfig
    presets = {"learn": {"weight": 10}, "small": {"weight": 500}, "demo": {"weight": 1}}
    persistent_state = frozenset({"fisher", "walk_score"})

    @torch.no_grad()
    def begin_step(self, step: Step) -> None:
        """Set the penalty by Fisher information and score so far, and start a new walk."""
        fisher, score = self.require_state("fisher"), self.require_state("walk_score")
        parameters = trainable_parameters(step.network)
        self.values = {
            "fisher": begin_fisher(fisher, step.network),
            "walk_score": score,
            "walk": {name: torch.zeros_like(value) for name, value in parameters.items()},
            "previous": clone_tensors(parameters),
            "count": {"iterations": torch.zeros((), dtype=torch.int64)},
        }
        if self.num_old:
            both = {k: normalize(value) + normalize(score[k]) for k, value in fisher.items()}
            self.hold(step, both)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors; the count stays on the CPU, as every update reads it."""
        super().load_state(state)
        self.values["count"] = {k: v.cpu() for k, v in self.values.get("count", {}).items()}

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        """Update the walk, every tenth iteration, and the Fisher information."""
        iterations = self.values["count"]["iterations"]
        if iterations and iterations % EVERY == 0:
            self._walk(step.network)
        iterations += 1
        update_fisher(self.values["fisher"], step.network)

    def _walk(self, network: Network) -> None:
        names, values, gradients = with_gradients(network)
        if not names:
            return
        fisher, walk, previous = (
            select(self.values[key], names) for key in ("fisher", "walk", "previous")
        )
        moved = torch._foreach_sub(previous, values)
        distance = torch._foreach_mul(moved, moved)
        torch._foreach_mul_(distance, fisher)
        torch._foreach_mul_(distance, 0.5)
        torch._foreach_add_(distance, EPSILON)
        torch._foreach_mul_(moved, gradients)
        torch._foreach_addcdiv_(walk, moved, distance)
        torch._foreach_copy_(previous, values)

    @torch.no_grad()
    def end_step(self, step: Step) -> None:
        """Average this step's score with the earlier one."""
        score = self.values["walk_score"]
        for name, value in self.values["walk"].items():
            gain = value.clamp_(min=0)
            earlier = score.get(name)
            score[name] = gain if earlier is None else gain.add_(earlier).mul_(0.5)
        super().end_step(step)
