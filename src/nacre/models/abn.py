"""Batch normalisation with its activation built in, synchronised over processes.

    y = act(weight * (x - mean) / sqrt(var + eps) + bias [+ shortcut])

In training `mean` and `var` are those of the joined batch of all processes. With one process
this is `F.batch_norm`, but for channels-last maps on a CPU, which torch sums with too few digits
(see `nacre.models.channel_sums`). With several on CUDA it is torch's own function, that of
`nn.SyncBatchNorm`. Elsewhere each process adds its count, sum and sum of squares in float64, so
unequal batches are weighted rightly, and the backward pass

    dx = weight / sqrt(var + eps) * (dy - mean(dy) - xhat * mean(dy * xhat))

takes its two means over the joined batch too. Parameters and buffers are named as those of
`nn.BatchNorm2d`, so that public weights load.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules._functions import SyncBatchNorm

from nacre.errors import NacreError
from nacre.models.channel_sums import (
    channel_affine,
    channel_statistics,
    channel_sums,
    lies_in_rows,
    per_channel,
)

Activation = Literal["leaky_relu", "relu", "relu6", "identity"]


class NormFactory(Protocol):
    """Makes the normalisation layer of so many channels; `activation` overrides the usual one."""

    def __call__(self, channels: int, *, activation: Activation = ...) -> ABN:
        """Return the layer."""


def world_size() -> int:
    """How many processes take part in training (1 without torch.distributed)."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def activate_(x: Tensor, activation: Activation, slope: float) -> Tensor:
    """Apply an activation in place."""
    if activation == "leaky_relu":
        return F.leaky_relu(x, slope, inplace=True)
    if activation == "relu":
        return F.relu(x, inplace=True)
    if activation == "relu6":
        return F.relu6(x, inplace=True)
    assert activation == "identity", activation
    return x


def sum_over_processes(values: Tensor) -> Tensor:
    """Add a float64 vector over the processes, in place (float32 where there is no float64)."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def check_count(count: float, shape: torch.Size) -> None:
    """Refuse to take statistics over a single value.

    Raises:
        NacreError: the variance of one value is 0, and the layer would give its bias only.
    """
    if count == 1:
        size = " x ".join(str(n) for n in shape)
        raise NacreError(
            f"one picture at a time is too little to train with: batch normalisation got one "
            f"value per channel (an input of {size}); use a train.batch_size of 2 or more over all "
            "processes, and a train.micro_batch of 2 or more"
        )


def joined_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, biased variance and count per channel over the joined batch of all processes."""
    count = x.numel() // x.shape[1]
    mean, var = channel_statistics(x)
    # Moved to the origin in float64, where sums of squares of several processes can be added.
    squares = count * (var + mean.square())
    joined = sum_over_processes(torch.cat([count * mean, squares, mean.new_full((1,), count)]))
    joined_count = joined[-1]
    if count <= 1:  # otherwise there is no need to wait for the device
        check_count(float(joined_count), x.shape)
    mean, mean_square = joined[:-1].view(2, -1) / joined_count.clamp(min=1)
    return mean, (mean_square - mean.square()).clamp_(min=0), joined_count


class _SyncedNorm(torch.autograd.Function):
    """Normalises with given joined statistics; their share of the gradient is in `backward`."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor,
        mean: Tensor,
        scale: Tensor,
        count: Tensor,
    ) -> Tensor:
        # scale is 1 / sqrt(var + eps)
        ctx.save_for_backward(x, weight, mean, scale, count)
        factor = weight * scale
        return channel_affine(bias - mean * factor, (factor, x)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, count = ctx.saved_tensors
        dx, dweight, dbias = norm_backward(grads[0], x, mean, scale, weight * scale, count)
        return dx.to(x.dtype), dweight, dbias, None, None, None


def norm_backward(
    dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, factor: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of batch normalisation.

    Args:
        dy: gradient of the output.
        x: the input of this process, or another map that `mean` and `scale` normalise to xhat.
        mean: of x.
        scale: 1 / std of x: xhat = (x - mean) * scale.
        factor: weight / sqrt(var + eps) of the layer's input.
        count: values per channel over all processes.

    Returns:
        Gradients of the layer's input, of the weight and of the bias. The last two are this
        process's own share: data-parallel training adds the shares itself.
    """
    if lies_in_rows(x):
        dy = dy.contiguous(memory_format=torch.channels_last)
    sum_dy, sum_product = channel_sums(dy, x, mean, scale)
    joined = sum_over_processes(torch.cat([sum_dy, sum_product])) / count.clamp(min=1)
    mean_dy, mean_product = joined.view(2, -1)
    # dx = factor * (dy - mean(dy) - xhat * mean(dy * xhat)), which is of first degree in dy and x.
    slope = -factor * scale * mean_product
    shift = (-factor * mean_dy - slope * mean).to(factor.dtype)
    dx = channel_affine(shift, (slope.to(factor.dtype), x), (factor, dy))
    return dx, sum_product.to(factor.dtype), sum_dy.to(factor.dtype)


def synced_on_gpus(
    x: Tensor,
    running: tuple[Tensor | None, Tensor | None],
    weight: Tensor,
    bias: Tensor,
    momentum: float,
    eps: float,
) -> Tensor:
    """Normalize with the statistics of all processes by torch's own kernels, which CPUs lack.

    Args:
        x: This process's part, N,C,...
        running: Mean and variance, moved towards the batch's in place; None where there are none.
        weight: C.
        bias: C.
        momentum: Share of the batch in the running statistics.
        eps: Added to the variance.
    """
    y: Tensor = SyncBatchNorm.apply(  # type: ignore[no-untyped-call]
        x, weight, bias, *running, eps, momentum, dist.group.WORLD, world_size()
    )
    return y


class ABN(nn.Module):
    """Batch normalisation and activation in one module, synchronised over processes.

    Args:
        channels: number of channels.
        activation: what follows the normalisation.
        slope: of leaky ReLU below 0.
        eps: added to the variance.
        momentum: share of the batch in the running statistics.
    """

    running_mean: Tensor
    running_var: Tensor
    num_batches_tracked: Tensor

    def __init__(
        self,
        channels: int,
        *,
        activation: Activation = "leaky_relu",
        slope: float = 0.01,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        super().__init__()
        self.channels = channels
        self.activation: Activation = activation
        self.slope = slope
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def gain(self) -> Tensor:
        """Return the factor after normalisation; subclasses may derive it from `weight`."""
        return self.weight

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Normalise, add the shortcut of a residual block if there is one, activate."""
        y = self._normalize(x)
        if shortcut is not None:
            y = y.add_(shortcut)
        return activate_(y, self.activation, self.slope)

    def forward_both(self, x: Tensor, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what `forward` does, and the same before it is activated."""
        y = self._normalize(x)
        if shortcut is not None:
            y = y.add_(shortcut)
        return activate_(y.clone(), self.activation, self.slope), y

    def _normalize(self, x: Tensor) -> Tensor:
        if not self.training:
            return F.batch_norm(
                x, self.running_mean, self.running_var, self.gain(), self.bias, eps=self.eps
            )
        if world_size() == 1 and not lies_in_rows(x):
            return self._normalize_alone(x)
        if x.is_cuda:
            running = self.count_batch(x, world_size())
            return synced_on_gpus(x, running, self.gain(), self.bias, self.momentum, self.eps)
        mean, var, count = joined_statistics(x.detach())
        self.update_running(mean, var, count)
        scale = (var + self.eps).rsqrt().to(self.weight.dtype)
        y: Tensor = _SyncedNorm.apply(  # type: ignore[no-untyped-call]
            x, self.gain(), self.bias, mean.to(scale.dtype), scale, count
        )
        return y

    def _normalize_alone(self, x: Tensor) -> Tensor:
        if x.numel() == 0:
            return x * per_channel(self.gain()).to(x.dtype)
        mean, var = self.count_batch(x)
        return F.batch_norm(x, mean, var, self.gain(), self.bias, True, self.momentum, self.eps)

    def count_batch(self, x: Tensor, processes: int = 1) -> tuple[Tensor, Tensor]:
        """Return the running statistics that a kernel of torch is to update with a batch."""
        check_count(x.numel() // x.shape[1] * processes, x.shape)
        self.num_batches_tracked.add_(1)
        return self.running_mean, self.running_var

    @torch.no_grad()
    def update_running(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Move the running statistics towards a batch's (biased) mean and variance."""
        self.num_batches_tracked.add_(count > 0)
        share = (self.momentum * (count > 0)).to(self.running_mean.dtype)
        unbiased = var * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)

    def extra_repr(self) -> str:
        """Return what stands in the brackets when a network is printed."""
        slope = f", slope={self.slope}" if self.activation == "leaky_relu" else ""
        return f"{self.channels}, {self.activation}{slope}, eps={self.eps}"
