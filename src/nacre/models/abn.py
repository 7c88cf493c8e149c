"""Batch normalisation with its activation built in, synchronised over processes.

    y = act(weight * (x - mean) / sqrt(var + eps) + bias [+ shortcut])

In training `mean` and `var` are those of the joined batch of all processes. With one
process this is `F.batch_norm`. With several, each process adds its count, sum and sum of
squares in float64, so unequal batches are weighted rightly, and the backward pass

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

from nacre.errors import NacreError

Activation = Literal["leaky_relu", "relu", "relu6", "identity"]

_PER_CHANNEL = (0, 2, 3)  # the dimensions that a channel's statistics are taken over


class NormFactory(Protocol):
    """Makes the normalisation layer of so many channels; `activation` overrides the usual one."""

    def __call__(self, channels: int, *, activation: Activation = ...) -> ABN:
        """Return the layer."""


def per_channel(values: Tensor) -> Tensor:
    """A vector of channel values, shaped to be used with N,C,H,W."""
    return values[:, None, None]


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


def _wide(x: Tensor) -> torch.dtype:
    return torch.float32 if x.device.type == "mps" else torch.float64


def check_count(count: float, shape: torch.Size) -> None:
    """Refuse to take statistics over a single value.

    Raises:
        NacreError: the variance of one value is 0, and the layer would give its bias only.
    """
    if count == 1:
        size = " x ".join(str(n) for n in shape)
        raise NacreError(
            f"batch size 1 is too small to train with: batch normalisation got one value a "
            f"channel (an input of {size}); use a batch size of 2 or more over all processes"
        )


def joined_statistics(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, biased variance and count per channel over the joined batch of all processes."""
    wide = _wide(x)
    count = x.numel() // x.shape[1]
    total = x.sum(_PER_CHANNEL, dtype=wide)
    # Squares are summed about the local mean and then moved to the origin in float64: taken
    # about the origin in float32 they would cancel where the mean is far from 0.
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    center = (total / max(count, 1)).to(x.dtype)
    squares = (x - per_channel(center)).square_().sum(_PER_CHANNEL, dtype=wide)
    center = center.to(wide)
    squares += 2 * center * total - count * center.square()
    joined = sum_over_processes(torch.cat([total, squares, total.new_tensor([count])]))
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
        gain = weight * scale
        return torch.addcmul(per_channel(bias - mean * gain), x, per_channel(gain)).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, count = ctx.saved_tensors
        dy = grads[0]
        normalize = (x - per_channel(mean)) * per_channel(scale)
        dx, dweight, dbias = norm_backward(dy, normalize, weight * scale, count)
        return dx.to(x.dtype), dweight, dbias, None, None, None


def norm_backward(
    dy: Tensor, normalize: Tensor, gain: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The gradients of batch normalisation from its normalised input.

    Args:
        dy: gradient of the output.
        normalize: (x - mean) / sqrt(var + eps), of this process.
        gain: weight / sqrt(var + eps).
        count: values per channel over all processes.

    Returns:
        Gradients of x, of the weight and of the bias. The last two are this process's own
        share: data-parallel training adds the shares itself.
    """
    wide = _wide(dy)
    sum_dy = dy.sum(_PER_CHANNEL, dtype=wide)
    sum_product = (dy * normalize).sum(_PER_CHANNEL, dtype=wide)
    joined = sum_over_processes(torch.cat([sum_dy, sum_product])) / count.clamp(min=1)
    mean_dy, mean_product = joined.to(gain.dtype).view(2, -1, 1, 1)
    dx = torch.addcmul(dy - mean_dy, normalize, mean_product, value=-1) * per_channel(gain)
    return dx, sum_product.to(gain.dtype), sum_dy.to(gain.dtype)


def recomputing() -> bool:
    """Whether the forward pass is being run a second time, by activation checkpointing.

    Running statistics must not be updated by it: the batch has been counted already.
    """
    task_id = getattr(torch._C, "_current_graph_task_id", None)
    return task_id is not None and task_id() != -1


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
        if world_size() == 1:
            return self._normalize_alone(x)
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

    def count_batch(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the running statistics that a kernel of torch is to update with a batch."""
        check_count(x.numel() // x.shape[1], x.shape)
        if recomputing():
            return self.running_mean.clone(), self.running_var.clone()
        self.num_batches_tracked.add_(1)
        return self.running_mean, self.running_var

    @torch.no_grad()
    def update_running(self, mean: Tensor, var: Tensor, count: Tensor) -> None:
        """Move the running statistics towards a batch's (biased) mean and variance."""
        if recomputing():
            return
        self.num_batches_tracked.add_(count > 0)
        share = (self.momentum * (count > 0)).to(self.running_mean.dtype)
        unbiased = var * (count / (count - 1).clamp(min=1))
        self.running_mean.lerp_(mean.to(self.running_mean.dtype), share)
        self.running_var.lerp_(unbiased.to(self.running_var.dtype), share)

    def extra_repr(self) -> str:
        """Return what stands in the brackets when a network is printed."""
        slope = f", slope={self.slope}" if self.activation == "leaky_relu" else ""
        return f"{self.channels}, {self.activation}{slope}, eps={self.eps}"
