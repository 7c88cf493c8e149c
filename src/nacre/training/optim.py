"""Optimiser, schedule and the mean of the weights over time, as a config says.

    lr(iteration) = lr * warm-up * decay
    warm-up = min(1, (iteration + 1) / warmup_iterations)
    decay   = (1 - iteration / iterations) ** poly_power             poly, the paper's
            = (1 + cos(pi * iteration / iterations)) / 2             cosine
    ema     = d * ema + (1 - d) * weights,  d = min(ema_decay, (1 + iteration) / (10 + iteration))

The defaults are the paper's: SGD with Nesterov momentum, one learning rate and one weight decay for
all parameters. Every group of parameters has an `lr_scale`, its learning rate over the step's.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.optim import SGD, AdamW, Optimizer

from nacre.errors import NacreError
from nacre.models.network import Network
from nacre.utils.config import Config
from nacre.utils.tensor_file import Tensors

ParamGroup = dict[str, Any]
"""torch's: `params` and what is other for them, such as `weight_decay` or `lr_scale`."""


Beta = Annotated[float, Field(ge=0, lt=1)]


class OptimConfig(Config):
    """How parameters are updated; the defaults are the paper's."""

    optimizer: Literal["sgd", "adamw"] = Field(
        "sgd", description="sgd: with Nesterov momentum; adamw: for transformers"
    )
    momentum: float = Field(0.9, ge=0, lt=1, description="Nesterov momentum of sgd")
    betas: tuple[Beta, Beta] = Field(
        (0.9, 0.999), description="of adamw: memory of the gradients and of their squares"
    )
    weight_decay: float = Field(1e-4, ge=0, le=1000, description="weight decay")
    weight_decay_on: Literal["all", "weights"] = Field(
        "all", description="all parameters, or weights alone: not norms, biases and other vectors"
    )
    lr_schedule: Literal["poly", "cosine"] = Field(
        "poly", description="how the learning rate falls, per iteration"
    )
    poly_power: float = Field(0.9, ge=0, le=100, description="power of the poly schedule")
    warmup_iterations: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="first iterations of a step, in which the rate rises",
    )
    backbone_lr_scale: float = Field(
        1.0, gt=0, le=1000, description="learning rate of the backbone, times that of the rest"
    )
    ema_decay: float | None = Field(
        None,
        gt=0,
        lt=1,
        description="a step ends with the mean of its weights over time, with this memory",
    )


def make_optimizer(
    network: Network, config: OptimConfig, lr: float, groups: list[ParamGroup] | None = None
) -> Optimizer:
    """Return a new optimiser: one made before a network grew does not know its new parameters.

    Args:
        network: what learns.
        config: how.
        lr: the first learning rate of the step.
        groups: of a method that has its own, instead of `param_groups`.
    """
    groups = param_groups(network, config) if groups is None else groups
    # One kernel for all parameters, which also sees by itself that the loss scale was too large.
    fused = {"fused": True} if next(network.parameters()).is_cuda else {}
    if config.optimizer == "adamw":
        return AdamW(groups, lr=lr, betas=config.betas, weight_decay=config.weight_decay, **fused)
    return SGD(
        groups,
        lr=lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        nesterov=config.momentum > 0,
        **fused,
    )


def param_groups(network: Network, config: OptimConfig) -> list[ParamGroup]:
    """Divide the parameters of a network by learning rate and weight decay.

    Raises:
        NacreError: the backbone has a rate of its own, and the network does not say what it is.
    """
    backbone = {id(one) for one in _backbone(network, config)}
    found: dict[tuple[float, bool], list[nn.Parameter]] = {}
    for parameter in network.parameters():
        if not parameter.requires_grad:
            continue
        scale = config.backbone_lr_scale if id(parameter) in backbone else 1.0
        decays = config.weight_decay_on == "all" or parameter.ndim > 1
        found.setdefault((scale, decays), []).append(parameter)
    return [
        {"params": params, "lr_scale": scale, **({} if decays else {"weight_decay": 0.0})}
        for (scale, decays), params in found.items()
    ]


def _backbone(network: Network, config: OptimConfig) -> list[nn.Parameter]:
    if config.backbone_lr_scale == 1:
        return []
    part = network.pretrained_part
    if part is None:
        raise NacreError(
            f"train.backbone_lr_scale={config.backbone_lr_scale}: nacre does not know which "
            "part of this network is its backbone (a module `backbone` or `encoder`)"
        )
    return list(part.parameters())


def set_lr(
    optimizer: Optimizer, config: OptimConfig, lr: float, iteration: int, iterations: int
) -> None:
    """Give every group of parameters its learning rate of an iteration."""
    current = lr * decay(config, iteration, iterations)
    if iteration < config.warmup_iterations:
        current *= (iteration + 1) / config.warmup_iterations
    for group in optimizer.param_groups:
        group["lr"] = current * group.get("lr_scale", 1.0)


def decay(config: OptimConfig, iteration: int, iterations: int) -> float:
    """Return the share of the first learning rate that is left."""
    if config.lr_schedule == "cosine":
        return (1 + math.cos(math.pi * iteration / iterations)) / 2
    left: float = 1 - iteration / iterations
    return left**config.poly_power


def optimizer_state(optimizer: Optimizer, network: nn.Module) -> Tensors:
    """Return what an optimiser remembers, as ``key.parameter``."""
    return {
        f"{key}.{name}": value
        for name, parameter in network.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimizer_state(optimizer: Optimizer, network: nn.Module, tensors: Tensors) -> None:
    """Take back what `optimizer_state` returned."""
    parameters = dict(network.named_parameters())
    is_fused = bool(optimizer.defaults.get("fused"))
    for place, value in lie_as_parameters(network, tensors).items():
        key, _, name = place.partition(".")
        # AdamW counts its updates on the CPU, wherever the parameters are, unless it is fused
        on_cpu = key == "step" and not is_fused
        optimizer.state[parameters[name]][key] = value.cpu() if on_cpu else value


def lie_as_parameters(network: nn.Module, tensors: Tensors) -> Tensors:
    """Return tensors with the keys ``key.parameter`` so that each lies as its parameter does."""
    parameters = dict(network.named_parameters())
    patterns = {place: parameters.get(place.partition(".")[2]) for place in tensors}
    return lie_as({place: one for place, one in patterns.items() if one is not None}, tensors)


def lie_as(patterns: Mapping[str, Tensor], tensors: Tensors) -> Tensors:
    """Return tensors that lie in memory as those of the same name and shape do.

    A file knows one layout only. Where a parameter, its gradient and its momentum lie differently,
    kernels that take many tensors at once take them one by one.
    """

    def laid(name: str, value: Tensor) -> Tensor:
        pattern = patterns.get(name)
        if pattern is None or pattern.shape != value.shape or pattern.stride() == value.stride():
            return value
        return torch.empty_like(pattern, dtype=value.dtype, device=value.device).copy_(value)

    return {name: laid(name, value) for name, value in tensors.items()}


class WeightAverage:
    """The exponential moving average of a network's weights and statistics.

    Args:
        network: followed.
        decay: memory; less of it in the first iterations.
    """

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self.tensors = {name: value.clone() for name, value in _moving(network).items()}

    @torch.no_grad()
    def update(self, network: nn.Module, iteration: int) -> None:
        """Follow the network after so many updates."""
        share = 1 - min(self.decay, (1 + iteration) / (10 + iteration))
        current = _moving(network)
        torch._foreach_lerp_(
            list(self.tensors.values()), [current[name] for name in self.tensors], share
        )

    @torch.no_grad()
    def copy_to(self, network: nn.Module) -> None:
        """Give a network the mean."""
        for name, value in _moving(network).items():
            value.copy_(self.tensors[name])


def _moving(network: nn.Module) -> Tensors:
    state: Tensors = network.state_dict()
    return {name: value for name, value in state.items() if value.is_floating_point()}
