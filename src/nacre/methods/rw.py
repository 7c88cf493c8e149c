"""Riemannian walk (RW): the Fisher information of `ewc` and a score along the path, together.

F runs as in `ewc`. Every tenth iteration adds to the score s of a parameter what its movement
gained for the distance it went, in the metric of F, with the gradient g of the cross-entropy (the
penalty's is not in it) and theta_prev of ten iterations before:

    s <- s + g (theta_prev - theta) / (F (theta - theta_prev)^2 / 2 + 1e-8)
    F <- 0.9 g^2 + 0.1 F
    score <- (score + max(0, s)) / 2   at the end of a step
    omega = normalized(F) + normalized(score)   of the step before
    loss = cross-entropy + weight * sum of omega (theta - theta*)^2
    normalized(w) = (w - min w) / (max w - min w + 1e-8),   tensor by tensor

s is 0 when a step begins, F goes on from step to step, in every iteration and after s, and is 1
for parameters that are new; the first score of a parameter is max(0, s). theta* are the
parameters at the end of the step before.

Memory after step 0: six times the parameters (F, s, theta_prev, score, the sum of the normalized
two, theta*); in step 0 three times. A finished step keeps F and the score.
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
    rows_of,
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
    """Holds parameters by their Fisher information and by what their movement gained."""

    name = "rw"
    Config = RwConfig
    presets = {"learn": {"weight": 10}, "small": {"weight": 500}, "demo": {"weight": 1}}
    persistent_state = frozenset({"fisher", "walk_score"})

    @torch.no_grad()
    def begin_step(self, step: Step) -> None:
        """Freeze what was found so far, and begin a walk."""
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
            both = {k: normalize(one) + normalize(score[k]) for k, one in fisher.items()}
            self.hold(step, both)

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors; the count stays on the CPU, since every update reads it."""
        super().load_state(state)
        self.values["count"] = {k: v.cpu() for k, v in self.values.get("count", {}).items()}

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        """Count a batch."""
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
            rows_of(self.values[key], names) for key in ("fisher", "walk", "previous")
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
            found = value.clamp_(min=0)
            past = score.get(name)
            score[name] = found if past is None else found.add_(past).mul_(0.5)
        super().end_step(step)
