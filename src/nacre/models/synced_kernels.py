"""Batch normalisation over several processes on CUDA, by torch's own kernels.

What `nn.SyncBatchNorm` calls, in the same order: each process finds the mean and 1 / std of its
part in one pass (Welford, in float32 for halves too), all gather them with their counts, and every
process joins them; the backward pass adds up two sums over the processes. A value is read and
written once per pass, in its own type. `nacre.models.abn` does the same in float64 on a CPU, for
which torch has no such kernels, and needs some seven times the traffic.

Unlike torch's module it asks nobody whether a process had an empty part, for which it would have to
wait for the device in each layer: batches are dealt evenly, so that none has.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable


class Joined(NamedTuple):
    """What the processes found together.

    Attributes:
        mean: C.
        scale: C, 1 / sqrt(var + eps).
        counts: One per process, int32: values of each channel.
    """

    mean: Tensor
    scale: Tensor
    counts: Tensor


def has_kernels(x: Tensor) -> bool:
    """Whether torch has these kernels for a map."""
    return x.device.type == "cuda" and x.numel() > 0


def join_statistics(
    x: Tensor, running: tuple[Tensor | None, Tensor | None], momentum: float, eps: float
) -> Joined:
    """Find the statistics of the joined batch, and move the running ones towards them.

    Args:
        x: This process's part, N,C,...
        running: Running mean and variance, changed in place; None where there are none.
        momentum: Share of the batch in them.
        eps: Added to the variance.
    """
    mean, scale = torch.batch_norm_stats(x, eps)
    channels = x.shape[1]
    own = torch.cat([mean, scale, mean.new_full((1,), x.numel() // channels)])
    every = own.new_empty(dist.get_world_size(), own.numel())
    dist.all_gather_into_tensor(every, own)
    means, scales = every[:, :channels].contiguous(), every[:, channels:-1].contiguous()
    counts = every[:, -1].contiguous()
    mean, scale = torch.batch_norm_gather_stats_with_counts(
        x, means, scales, *running, momentum, eps, counts
    )
    return Joined(mean, scale, counts.to(torch.int32))


def joined_backward(
    dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, weight: Tensor, counts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of a map that was normalised with joined statistics.

    Args:
        dy: Gradient of weight * (x - mean) * scale + bias.
        x: The layer's input, or another map that `mean` and `scale` normalise.
        mean: Of x.
        scale: 1 / std of x.
        weight: What dx is multiplied by beside `scale`.
        counts: Values of each channel, one per process.

    Returns:
        Gradients of x, of the weight and of the bias; the last two are this process's own share.
    """
    is_last = not x.is_contiguous() and x.is_contiguous(memory_format=torch.channels_last)
    layout = torch.channels_last if is_last else torch.contiguous_format
    dy = dy.contiguous(memory_format=layout)
    sum_dy, sum_product, dweight, dbias = torch.batch_norm_backward_reduce(
        dy, x, mean, scale, weight, True, True, True
    )
    joined = torch.cat([sum_dy, sum_product])
    dist.all_reduce(joined)
    sum_dy, sum_product = joined.view(2, -1)
    dx = torch.batch_norm_backward_elemt(dy, x, mean, scale, weight, sum_dy, sum_product, counts)
    return dx, dweight, dbias


class _KernelNorm(torch.autograd.Function):
    """weight * (x - mean) * scale + bias with joined statistics, whose gradients are in it too."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor, joined: Joined, eps: float
    ) -> Tensor:
        ctx.save_for_backward(x, weight, *joined)
        return torch.batch_norm_elemt(x, weight, bias, joined.mean, joined.scale, eps)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, counts = ctx.saved_tensors
        return *joined_backward(grads[0], x, mean, scale, weight, counts), None, None


def kernel_norm(
    x: Tensor,
    weight: Tensor,
    bias: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    momentum: float,
    eps: float,
) -> Tensor:
    """Do what `F.batch_norm` does in training, with the statistics of all processes.

    Args:
        x: This process's part, N,C,..., not empty.
        weight: C.
        bias: C.
        running: Running mean and variance, changed in place; None where there are none.
        momentum: Share of the batch in them.
        eps: Added to the variance.
    """
    is_last = x.is_contiguous(memory_format=torch.channels_last) if x.dim() == 4 else False
    x = x if is_last else x.contiguous()
    joined = join_statistics(x.detach(), running, momentum, eps)
    y: Tensor = _KernelNorm.apply(x, weight, bias, joined, eps)  # type: ignore[no-untyped-call]
    return y
