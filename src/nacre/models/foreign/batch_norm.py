"""Batch normalisation of others' networks, synchronised over processes.

`nn.SyncBatchNorm` refuses CPUs and replaces modules, which loses what a library's own kind of batch
norm adds (timm's has an activation in it). Here a module stays what it is and every call of
`F.batch_norm` inside it uses the statistics of the joined batch, as nacre's own norm does: equal
to one process with the whole batch, of unequal parts too.

Networks that turn tokens into maps (SegFormer's decoder) hand batch norms maps in channels-last
layout on their own. On CPUs torch sums those with too few digits (see
`nacre.models.channel_sums`), so that they are laid out the other way first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from nacre.errors import NacreError
from nacre.models.abn import ABN, _SyncedNorm, joined_statistics, synced_on_gpus, world_size
from nacre.models.channel_sums import lies_in_rows


def keep_digits(model: nn.Module) -> None:
    """Let no batch norm of a network lose digits while it learns on a CPU, in place."""
    for module in model.modules():
        if isinstance(module, _BatchNorm) and _lay_out not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_lay_out)


def _lay_out(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    """Give a batch norm that takes statistics its map in the layout that is summed well."""
    if module.training and args and lies_in_rows(args[0]):
        return (args[0].contiguous(), *args[1:])
    return None


def synchronize_batch_norm(model: nn.Module) -> None:
    """Let the batch norms of a network use the batches of all processes, in place.

    Names of parameters and buffers stay as they are, and with one process nothing changes.

    Raises:
        NacreError: a layer keeps statistics of batches in a way that is not known here.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.SyncBatchNorm):
            if not all(value.is_cuda for value in module.buffers()):
                raise NacreError(
                    f"{name} is torch's SyncBatchNorm, which computes on GPUs only: use BatchNorm2d"
                )
        elif isinstance(module, _BatchNorm) and not isinstance(module, _Synchronized):
            kind = type(module)
            module.__class__ = type(kind.__name__, (_Synchronized, kind), {})
        elif _keeps_statistics(module):
            raise NacreError(
                f"{name} ({type(module).__name__}) keeps statistics of batches and nacre cannot "
                "synchronise it over processes: train in one process, or with nn.BatchNorm2d"
            )


def _keeps_statistics(module: nn.Module) -> bool:
    known = isinstance(module, _BatchNorm | ABN | nn.modules.instancenorm._InstanceNorm)
    return (
        not known and isinstance(module._buffers.get("running_mean"), Tensor) and _can_learn(module)
    )


def _can_learn(module: nn.Module) -> bool:
    """Whether it has parameters: frozen batch norms have buffers alone and never change."""
    return next(module.parameters(recurse=False), None) is not None


class _Synchronized(nn.Module):
    """Goes before the class of a batch norm among the bases of a new one."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the other class does, with joined statistics in training."""
        if not self.training or world_size() == 1:
            return super().forward(*args, **kwargs)
        with _JoinedBatchNorm():
            return super().forward(*args, **kwargs)


class _JoinedBatchNorm(TorchFunctionMode):
    """Replaces `F.batch_norm` by the one below while a batch norm runs."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        if function is F.batch_norm:
            return joined_batch_norm(*args, **(kwargs or {}))
        return function(*args, **(kwargs or {}))


def joined_batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Do what `F.batch_norm` does, with the statistics of the joined batch of all processes."""
    if not training:
        return F.batch_norm(x, running_mean, running_var, weight, bias, False, momentum, eps)
    weight = x.new_ones(x.shape[1], dtype=torch.float32) if weight is None else weight
    bias = torch.zeros_like(weight) if bias is None else bias
    if x.is_cuda:
        return synced_on_gpus(x, (running_mean, running_var), weight, bias, momentum, eps)
    flat = x.reshape(*x.shape[:2], -1, 1)
    mean, var, count = joined_statistics(flat.detach())
    _update(running_mean, mean, momentum)
    _update(running_var, var * (count / (count - 1).clamp(min=1)), momentum)
    scale = (var + eps).rsqrt().to(weight.dtype)
    y: Tensor = _SyncedNorm.apply(  # type: ignore[no-untyped-call]
        flat, weight, bias, mean.to(scale.dtype), scale, count
    )
    return y.view_as(x)


@torch.no_grad()
def _update(running: Tensor | None, value: Tensor, momentum: float) -> None:
    if running is not None:
        running.lerp_(value.to(running.dtype), momentum)
