"""Path integral (PI), or synaptic intelligence: a penalty by how much a movement lowered the loss.

Each iteration adds to the path integral d of a parameter, with the gradient g of the cross-entropy
at the current theta (without the penalty) and theta_prev of the iteration before. At the end of a
step its score is added to that of the steps before:

    d <- d + g (theta_prev - theta)
    score <- score + max(0, d / ((theta - theta_start)^2 + 1e-20))
    omega = normalized(score)   of the step before
    loss = cross-entropy + weight * sum of omega (theta - theta_start)^2
    normalized(w) = (w - min w) / (max w - min w + 1e-8),   for each tensor

At the start of a step d is 0 and theta_start are the current parameters. 1e-20 is the value of the
paper's released implementation; the original damps the quotient far more.

Memory after step 0: five times the parameters (theta_start, theta_prev, d, score,
normalized(score)); in step 0 three times. The model file contains the score.
"""

from typing import Literal

import torch
from pydantic import Field

from nacre.methods._regularizer import (
    ParameterRegularizer,
    RegularizerConfig,
    clone_tensors,
    normalize,
    select,
    trainable_parameters,
    with_gradients,
)
from nacre.methods.base import Step

EPSILON = 1e-20


class PiConfig(RegularizerConfig):
    """The weight of the penalty."""

    name: Literal["pi"] = Field("pi", description="path integral")
    weight: float = Field(500.0, ge=0, description="weight of the penalty (paper: 500)")


class Pi(ParameterRegularizer):
    """Penalty weighted by the path integral."""

    name = "pi"
    Config = PiConfig
    presets = {"learn": {"weight": 50}, "small": {"weight": 5000}}
    persistent_state = frozenset({"score"})

    @torch.no_grad()
    def begin_step(self, step: Step) -> None:
        """Set the penalty by the score so far, and start a new path."""
        score = self.require_state("score")
        parameters = trainable_parameters(step.network)
        self.values = {
            "score": score,
            "anchor": clone_tensors(parameters),
            "previous": clone_tensors(parameters),
            "path": {name: torch.zeros_like(value) for name, value in parameters.items()},
        }
        if self.num_old:
            self.values["omega"] = {
                name: normalize(score[name]) for name, value in parameters.items() if name in score
            }

    @torch.no_grad()
    def after_backward(self, step: Step) -> None:
        """Add the movement of the last update to the path integral."""
        names, values, gradients = with_gradients(step.network)
        path, previous = (select(self.values[key], names) for key in ("path", "previous"))
        if names:
            torch._foreach_sub_(previous, values)
            torch._foreach_addcmul_(path, gradients, previous)
            torch._foreach_copy_(previous, values)

    @torch.no_grad()
    def end_step(self, step: Step) -> None:
        """Add this step's score to the earlier ones."""
        path, start, score = (self.values[key] for key in ("path", "anchor", "score"))
        for name, value in trainable_parameters(step.network).items():
            moved = (value - start[name]).square_().add_(EPSILON)
            gain = path[name].div(moved).clamp_(min=0)
            score[name] = gain + score[name] if name in score else gain
        super().end_step(step)
