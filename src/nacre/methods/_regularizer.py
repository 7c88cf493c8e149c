"""The common part of `ewc`, `pi` and `rw`: a penalty on changes of important parameters.

The loss on the labels is the plain cross-entropy (eq. 2). After step 0 the methods add

    weight * sum over the old parameters of  omega (theta - theta*)^2

where theta* are the parameters before the step and omega is the importance of each of them. The
methods differ in how they compute omega, which is normalized to 0..1 for each tensor:

    normalized(w) = (w - min w) / (max w - min w + 1e-8)

The new classes' rows of the classifier have no old values and no penalty.

The weight depends on the learning rate lr: with momentum 0.9 the penalty alone diverges if
lr * weight * omega is above 0.68. The paper's 0.001 * 500 is below. With ten times the learning
rate, use a tenth of the weight, as `nacre learn` and the preset `demo` do. (AdamW, as in the preset
`small`, divides by the size of the gradient and does not diverge.)

The methods store tensors by the names of their parameters. A checkpoint contains all of them;
those in `persistent_state` remain after the step.
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
"""Weight of the current gradient in the running Fisher information."""


class RegularizerConfig(MethodConfig):
    """The weight of the penalty."""

    weight: float = Field(1.0, ge=0, description="weight of the penalty")


class ParameterRegularizer(Method):
    """Cross-entropy and a penalty on changes of important parameters."""

    tunable = ("weight",)
    requires = frozenset({"classifier"})
    config: RegularizerConfig

    def __init__(self, config: MethodConfig, growth: Growth) -> None:
        super().__init__(config, growth)
        self.values: dict[str, NamedTensors] = {}

    def penalties(self, step: Step) -> dict[str, Tensor]:
        """Return the weighted squares of the changes of the old parameters."""
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
        """Penalize changes from the current parameters, each by its importance."""
        parameters = trainable_parameters(step.network)
        self.values["omega"] = omega
        self.values["anchor"] = clone_tensors({k: v for k, v in parameters.items() if k in omega})

    def end_step(self, step: Step) -> None:
        """Drop the tensors that no later step needs."""
        self.values = {key: self.values[key] for key in self.persistent_state}

    def state(self) -> dict[str, Tensor]:
        """Return all tensors, with keys ``group.parameter``."""
        return {
            f"{key}.{name}": value
            for key, tensors in self.values.items()
            for name, value in tensors.items()
        }

    def load_state(self, state: dict[str, Tensor]) -> None:
        """Restore the tensors."""
        # A group without tensors, such as a score in step 0, has no keys in a state.
        self.values = {key: {} for key in self.persistent_state}
        for key, value in state.items():
            key, _, name = key.partition(".")
            self.values.setdefault(key, {})[name] = value

    def require_state(self, key: str) -> NamedTensors:
        """Return the tensors that the steps before collected; none in step 0."""
        tensors = self.values.get(key, {})
        if self.num_old and not tensors:
            raise NacreError(
                f"the model has no {key!r}, which {self.name} needs of the steps before; learn "
                f"step 0 with {self.name}, too"
            )
        return tensors


class _WeightedSquares(torch.autograd.Function):
    """The sum of omega (theta - anchor)^2 over all parameters.

    Plain autograd would keep another copy of all parameters for the backward pass. The foreach
    functions start one kernel for many small parameters.
    """

    @staticmethod
    def forward(ctx: Any, anchor: list[Tensor], omega: list[Tensor], *theta: Tensor) -> Tensor:
        ctx.save_for_backward(*theta)
        ctx.remembered = anchor, omega
        moved = torch._foreach_sub(theta, anchor)
        torch._foreach_mul_(moved, moved)
        torch._foreach_mul_(moved, omega)
        return torch.stack([value.sum() for value in moved]).sum()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        anchor, omega = ctx.remembered
        moved = torch._foreach_sub(ctx.saved_tensors, anchor)
        torch._foreach_mul_(moved, omega)
        torch._foreach_mul_(moved, 2 * grads[0])
        return None, None, *moved


def trainable_parameters(network: Network) -> NamedTensors:
    """Return the trainable parameters, detached."""
    return {
        name: parameter.detach()
        for name, parameter in network.named_parameters()
        if parameter.requires_grad
    }


def with_gradients(network: Network) -> tuple[list[str], list[Tensor], list[Tensor]]:
    """Return names, values and gradients of all parameters that have a gradient."""
    names, values, gradients = [], [], []
    for name, parameter in network.named_parameters():
        if parameter.grad is not None:
            names.append(name)
            values.append(parameter.detach())
            gradients.append(parameter.grad)
    return names, values, gradients


def select(tensors: NamedTensors, names: Sequence[str]) -> list[Tensor]:
    """Return the tensors of some parameters, in the order of their names."""
    return [tensors[name] for name in names]


def clone_tensors(tensors: NamedTensors) -> NamedTensors:
    """Return copies of tensors by name."""
    return {name: value.clone() for name, value in tensors.items()}


def normalize(importance: Tensor) -> Tensor:
    """Scale the importances of one tensor to 0..1, in the order they have."""
    low, high = importance.aminmax()
    return (importance - low).div_(high - low + 1e-8)


def begin_fisher(fisher: NamedTensors, network: Network) -> NamedTensors:
    """Return the Fisher information at the start of a step, with 1 for new parameters."""
    new = {
        name: value for name, value in trainable_parameters(network).items() if name not in fisher
    }
    return fisher | {name: torch.ones_like(value) for name, value in new.items()}


def update_fisher(fisher: NamedTensors, network: Network) -> None:
    """Update F <- 0.9 g^2 + 0.1 F with the gradient g of a batch."""
    names, _, gradients = with_gradients(network)
    if names:
        running = select(fisher, names)
        torch._foreach_mul_(running, 1 - FISHER_SHARE)
        torch._foreach_addcmul_(running, gradients, gradients, value=FISHER_SHARE)
