"""Methods that hold on to parameters: what `ewc`, `pi` and `rw` have in common.

Their loss on the labels is the plain cross-entropy (eq. 2). After step 0 they add

    weight * sum over the old parameters of  omega (theta - theta*)^2

where theta* are the parameters before the step and omega says how important each of them was for
what had been learned. The methods differ in how they find omega. It is normalized, tensor by
tensor, to 0..1:

    normalized(w) = (w - min w) / (max w - min w + 1e-8)

The parameters of the new classes' classifier have no past and are not held.

The weight goes with the learning rate lr: with a momentum of 0.9 the penalty alone overshoots,
further with every update, where lr * weight * omega is above 0.68. The paper's 0.001 * 500 is
below it; with ten times the rate take a tenth of the weight, as `nacre learn` and the preset `demo`
do: more lets the penalty overshoot until nothing is finite. (AdamW, as in the preset `small`,
divides by the size of the gradient and does not.)

A method remembers tensors by the names of the parameters they belong to. All of
them go into a checkpoint; those in `persistent_state` remain at the end of a step.
"""

from collections.abc import Sequence
from typing import Any

import torch
from pydantic import Field
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import Growth
from nacre.methods.base import Method, MethodConfig, Step
from nacre.models.network import Network

NamedTensors = dict[str, Tensor]

FISHER_SHARE = 0.9
"""Share of the present gradient in the running Fisher information."""


class RegularizerConfig(MethodConfig):
    """The weight of the penalty."""

    weight: float = Field(1.0, ge=0, description="weight of the penalty")


class ParameterRegularizer(Method):
    """Cross-entropy and a penalty on what moves important parameters."""

    tunable = ("weight",)
    requires = frozenset({"classifier"})
    config: RegularizerConfig

    def __init__(self, config: MethodConfig, growth: Growth) -> None:
        super().__init__(config, growth)
        self.values: dict[str, NamedTensors] = {}

    def penalties(self, step: Step) -> dict[str, Tensor]:
        """Return the weighted squares of how far the old parameters have moved."""
        if "omega" not in self.values:
            return {}
        omega, anchor = self.values["omega"], self.values["anchor"]
        held = {
            name: parameter
            for name, parameter in step.network.named_parameters()
            if name in omega and parameter.requires_grad
        }
        if not held:
            return {}
        total: Tensor = _WeightedSquares.apply(  # type: ignore[no-untyped-call]
            [anchor[name] for name in held], [omega[name] for name in held], *held.values()
        )
        return {self.name: self.config.weight * total}

    def hold(self, step: Step, omega: NamedTensors) -> None:
        """Hold the old parameters where they are now, each by its importance."""
        parameters = trainable_parameters(step.network)
        self.values["omega"] = omega
        self.values["anchor"] = clone_tensors({k: v for k, v in parameters.items() if k in omega})

    def end_step(self, step: Step) -> None:
        """Forget what only this step needed."""
        self.values = {key: self.values[key] for key in self.persistent_state}

    def state(self) -> dict[str, Tensor]:
        """Return all tensors under one name each."""
        return {
            f"{key}.{name}": value
            for key, tensors in self.values.items()
            for name, value in tensors.items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors."""
        # An empty entry, such as a score in step 0, leaves no trace in a state.
        self.values = {key: {} for key in self.persistent_state}
        for key, value in state.items():
            key, _, name = key.partition(".")
            self.values.setdefault(key, {})[name] = value

    def require_state(self, key: str) -> NamedTensors:
        """Return what the steps before collected; there is nothing before step 0."""
        found = self.values.get(key, {})
        if self.num_old and not found:
            raise NacreError(
                f"{self.name} needs {key!r} of the steps before this one, and their model has "
                f"none: learn step 0 with {self.name} too"
            )
        return found


class _WeightedSquares(torch.autograd.Function):
    """Sum of omega (theta - anchor)^2 over all parameters; keeps no tensor that is not kept anyway.

    A GPU is given one kernel for many parameters: a network has hundreds, most of them small.
    """

    @staticmethod
    def forward(ctx: Any, anchor: list[Tensor], omega: list[Tensor], *theta: Tensor) -> Tensor:
        ctx.save_for_backward(*theta)
        ctx.remembered = anchor, omega
        moved = torch._foreach_sub(theta, anchor)
        torch._foreach_mul_(moved, moved)
        torch._foreach_mul_(moved, omega)
        return torch.stack([one.sum() for one in moved]).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        anchor, omega = ctx.remembered
        moved = torch._foreach_sub(ctx.saved_tensors, anchor)
        torch._foreach_mul_(moved, omega)
        torch._foreach_mul_(moved, 2 * grads[0])
        return None, None, *moved


def trainable_parameters(network: Network) -> NamedTensors:
    """Return the parameters that are learned, without their history."""
    return {
        name: parameter.detach()
        for name, parameter in network.named_parameters()
        if parameter.requires_grad
    }


def with_gradients(network: Network) -> tuple[list[str], list[Tensor], list[Tensor]]:
    """Return names, values and gradients of all parameters that have a gradient."""
    found = [(name, one) for name, one in network.named_parameters() if one.grad is not None]
    gradients = [one.grad for _, one in found if one.grad is not None]
    return [name for name, _ in found], [one.detach() for _, one in found], gradients


def rows_of(tensors: NamedTensors, names: Sequence[str]) -> list[Tensor]:
    """Return the tensors of some parameters."""
    return [tensors[name] for name in names]


def clone_tensors(tensors: NamedTensors) -> NamedTensors:
    """Return copies of tensors by name."""
    return {name: value.clone() for name, value in tensors.items()}


def normalize(importance: Tensor) -> Tensor:
    """Bring the importances of one tensor to 0..1."""
    low, high = importance.aminmax()
    return (importance - low).div_(high - low + 1e-8)


def begin_fisher(fisher: NamedTensors, network: Network) -> NamedTensors:
    """Return the running Fisher information at the start of a step: 1 for new parameters."""
    new = {
        name: value for name, value in trainable_parameters(network).items() if name not in fisher
    }
    return fisher | {name: torch.ones_like(value) for name, value in new.items()}


def update_fisher(fisher: NamedTensors, network: Network) -> None:
    """F <- 0.9 g^2 + 0.1 F, with the gradient g of a batch."""
    names, _, gradients = with_gradients(network)
    if names:
        running = rows_of(fisher, names)
        torch._foreach_mul_(running, 1 - FISHER_SHARE)
        torch._foreach_addcmul_(running, gradients, gradients, value=FISHER_SHARE)
