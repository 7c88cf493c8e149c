"""Optimizer and learning-rate schedule.

    lr(iteration) = lr * warm-up * decay
    warm-up = min(1, (iteration + 1) / warmup_iterations)
    decay   = (1 - iteration / iterations) ** 0.9                    poly, the paper's
            = (1 + cos(pi * iteration / iterations)) / 2             cosine

The defaults are those of the paper's released implementation: SGD with Nesterov momentum (the text
says momentum), one learning rate and one weight decay for all parameters. Every group of parameters
has an `lr_scale`, the ratio of its learning rate to the step's.
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
"""A group of torch's optimizers: `params` and their own `lr_scale` or `weight_decay`."""

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
        "poly", description="decay of the learning rate, per iteration"
    )
    warmup_iterations: int = Field(
        0,
        ge=0,
        le=1_000_000,
        description="linear warm-up of the learning rate, in iterations of a step",
    )
    backbone_lr_scale: float = Field(
        1.0, gt=0, le=1000, description="learning rate of the backbone, as a multiple of the rest's"
    )


def make_optimizer(
    network: Network, config: OptimConfig, lr: float, groups: list[ParamGroup] | None = None
) -> Optimizer:
    """Return a new optimizer; groups of parameters are those of `param_groups` by default."""
    groups = param_groups(network, config) if groups is None else groups
    # One kernel for all parameters, which also skips an update whose loss scale was too large.
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
    """Group the trainable parameters of a network by learning rate."""
    backbone = network.backbone_or_none
    if backbone is None and config.backbone_lr_scale != 1:
        raise NacreError(
            f"train.backbone_lr_scale={config.backbone_lr_scale}: nacre does not know which module "
            "of this network is its backbone; call it `backbone` or `encoder`"
        )
    scaled = set() if backbone is None else {id(parameter) for parameter in backbone.parameters()}
    groups: dict[float, list[nn.Parameter]] = {}
    for parameter in network.parameters():
        if parameter.requires_grad:
            scale = config.backbone_lr_scale if id(parameter) in scaled else 1.0
            groups.setdefault(scale, []).append(parameter)
    return [{"params": params, "lr_scale": scale} for scale, params in groups.items()]


def set_lr(
    optimizer: Optimizer, config: OptimConfig, lr: float, iteration: int, iterations: int
) -> None:
    """Set the learning rate of every group of parameters for an iteration."""
    current = lr * decay(config, iteration, iterations)
    if iteration < config.warmup_iterations:
        current *= (iteration + 1) / config.warmup_iterations
    for group in optimizer.param_groups:
        group["lr"] = current * group.get("lr_scale", 1.0)


def decay(config: OptimConfig, iteration: int, iterations: int) -> float:
    """Return the factor of the first learning rate at an iteration."""
    if config.lr_schedule == "cosine":
        return (1 + math.cos(math.pi * iteration / iterations)) / 2
    left: float = 1 - iteration / iterations
    return left**POLY_POWER


def optimizer_state(optimizer: Optimizer, network: nn.Module) -> Tensors:
    """Return the tensors of an optimizer's state, as ``key.parameter``."""
    return {
        f"{key}.{name}": value
        for name, parameter in network.named_parameters()
        for key, value in optimizer.state.get(parameter, {}).items()
        if isinstance(value, Tensor)
    }


def load_optimizer_state(optimizer: Optimizer, network: nn.Module, tensors: Tensors) -> None:
    """Restore what `optimizer_state` returned."""
    parameters = dict(network.named_parameters())
    is_fused = bool(optimizer.defaults.get("fused"))
    for full_name, value in match_parameter_layout(network, tensors).items():
        key, _, name = full_name.partition(".")
        # AdamW counts its updates on the CPU, unless it is fused.
        on_cpu = key == "step" and not is_fused
        optimizer.state[parameters[name]][key] = value.cpu() if on_cpu else value


def match_parameter_layout(network: nn.Module, tensors: Tensors) -> Tensors:
    """Give tensors named ``key.parameter`` the memory layout of their parameters.

    A file has one layout only. Kernels for many tensors need a parameter, its gradient and its
    momentum in the same layout, and sums depend on it in their last digits.
    """
    parameters = dict(network.named_parameters())

    def match(full_name: str, value: Tensor) -> Tensor:
        pattern = parameters.get(full_name.partition(".")[2])
        if pattern is None or pattern.shape != value.shape or pattern.stride() == value.stride():
            return value
        return torch.empty_like(pattern, dtype=value.dtype, device=value.device).copy_(value)

    return {full_name: match(full_name, value) for full_name, value in tensors.items()}
