"""Optimizer and schedule, as a config says.

    lr(iteration) = lr * warm-up * decay
    warm-up = min(1, (iteration + 1) / warmup_iterations)
    decay   = (1 - iteration / iterations) ** 0.9                    poly, the paper's
            = (1 + cos(pi * iteration / iterations)) / 2             cosine

The defaults are those of the paper's released implementation: SGD with Nesterov momentum (the text
says momentum), one learning rate and one weight decay for all parameters. Every group of parameters
has an `lr_scale`, its learning rate over the step's.
"""

import math
from typing import Any, Literal

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

MOMENTUM = 0.9
POLY_POWER = 0.9


class OptimConfig(Config):
    """The optimizer; the defaults are those of the paper's released implementation."""

    optimizer: Literal["sgd", "adamw"] = Field(
        "sgd", description="sgd: with momentum 0.9; adamw: for transformers"
    )
    nesterov: bool = Field(
        True,
        description="Nesterov momentum in sgd, as in the paper's released implementation; false: "
        "plain momentum, as in its text",
    )
    weight_decay: float = Field(1e-4, ge=0, le=1000, description="weight decay of all parameters")
    lr_schedule: Literal["poly", "cosine"] = Field(
        "poly", description="how the learning rate falls, per iteration"
    )
    warmup_iterations: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="first iterations of a step, in which the rate rises",
    )
    backbone_lr_scale: float = Field(
        1.0, gt=0, le=1000, description="learning rate of the backbone, times that of the rest"
    )


def make_optimizer(
    network: Network, config: OptimConfig, lr: float, groups: list[ParamGroup] | None = None
) -> Optimizer:
    """Return a new optimizer: one made before a network grew does not know its new parameters.

    Args:
        network: what learns.
        config: how.
        lr: the first learning rate of the step.
        groups: of a method that has its own, instead of `param_groups`.
    """
    groups = param_groups(network, config) if groups is None else groups
    # One kernel for all parameters, which also sees by itself that the loss scale was too large.
    fused = True if next(network.parameters()).is_cuda else None
    if config.optimizer == "adamw":
        return AdamW(groups, lr=lr, weight_decay=config.weight_decay, fused=fused)
    return SGD(
        groups,
        lr=lr,
        momentum=MOMENTUM,
        weight_decay=config.weight_decay,
        nesterov=config.nesterov,
        fused=fused,
    )


def param_groups(network: Network, config: OptimConfig) -> list[ParamGroup]:
    """Divide the parameters of a network by learning rate.

    Raises:
        NacreError: the backbone has a rate of its own, and the network does not say what it is.
    """
    backbone = {id(one) for one in _backbone(network, config)}
    found: dict[float, list[nn.Parameter]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            scale = config.backbone_lr_scale if id(parameter) in backbone else 1.0
            found.setdefault(scale, []).append(parameter)
    return [{"params": params, "lr_scale": scale} for scale, params in found.items()]


def _backbone(network: Network, config: OptimConfig) -> list[nn.Parameter]:
    if config.backbone_lr_scale == 1:
        return []
    part = network.backbone_or_none
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
    return left**POLY_POWER


def optimizer_state(optimizer: Optimizer, network: nn.Module) -> Tensors:
    """Return what an optimizer remembers, as ``key.parameter``."""
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
    """Return tensors with the keys ``key.parameter`` so that each lies as its parameter does.

    A file knows one layout only. Where a parameter, its gradient and its momentum lie differently,
    kernels that take many tensors at once take them one by one.
    """
    parameters = dict(network.named_parameters())

    def laid(place: str, value: Tensor) -> Tensor:
        pattern = parameters.get(place.partition(".")[2])
        if pattern is None or pattern.shape != value.shape or pattern.stride() == value.stride():
            return value
        return torch.empty_like(pattern, dtype=value.dtype, device=value.device).copy_(value)

    return {place: laid(place, value) for place, value in tensors.items()}
