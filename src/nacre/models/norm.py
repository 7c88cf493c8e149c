"""Batch normalization with a built-in activation, synchronized over processes.

    y = act(g * xhat + bias [+ shortcut]),  xhat = (x - mean) / sqrt(var + eps)

`ABN` has g = weight. `InPlaceABN` has g = |weight| + eps, which is never 0, so its output alone
contains all that the backward pass needs (`_InPlace`). Parameters and buffers have the names of
`nn.BatchNorm2d`, so that public weights load.

In training `mean` and `var` are those of the joint batch of all processes. One process uses
`F.batch_norm`. Several processes on CUDA use torch's `nn.SyncBatchNorm`. Elsewhere every process
contributes its count, sum and sum of squares in float64, so that batches of different sizes count
rightly, and the backward pass

    dx = g / sqrt(var + eps) * (dy - mean(dy) - xhat * mean(dy * xhat))

takes its two means over the joint batch, too. The batch norms of other libraries keep their classes
and use the same function (`synchronize_batch_norm`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, Protocol

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn.modules._functions import SyncBatchNorm
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode

from nacre.errors import NacreError

Activation = Literal["leaky_relu", "relu", "relu6", "identity"]

_NATIVE = ("cpu", "cuda", "meta")
"""Devices on which torch's own kernels are known to use the statistics that they are given."""

_HALF = (torch.float16, torch.bfloat16)
_PER_CHANNEL = (0, 2, 3)
"""Dimensions over which the values of a channel are summed."""


class NormFactory(Protocol):
    """A function that makes a norm; `activation` replaces its default one."""

    def __call__(self, channels: int, *, activation: Activation = ...) -> ABN:
        """Return the layer."""


def world_size() -> int:
    """Return the number of training processes (1 without torch.distributed)."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class ABN(nn.Module):
    """Batch normalization and activation in one module, synchronized over processes."""

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
        """Return the factor after normalization."""
        return self.weight

    def uses_batch(self, x: Tensor) -> bool:
        """Return True if the layer normalizes by the statistics of a batch that is not empty."""
        return self.training and (x.numel() > 0 or world_size() > 1)

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Normalize, add the shortcut of a residual block if there is one, and activate."""
        return activate_(self._normalize(x, shortcut), self.activation, self.slope)

    def forward_both(self, x: Tensor, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output of `forward`, and the same before the activation."""
        y = self._normalize(x, shortcut)
        return activate_(y.clone(), self.activation, self.slope), y

    def _normalize(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        training = self.uses_batch(x)
        if training:
            self.num_batches_tracked.add_(1)
        running = self.running_mean, self.running_var
        y = batch_norm(x, *running, self.gain(), self.bias, training, self.momentum, self.eps)
        return y if shortcut is None else y.add_(shortcut)


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


def batch_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    training: bool = False,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """Compute `F.batch_norm` with the statistics of the joint batch of all processes."""
    processes = world_size()
    if training and (processes == 1 or x.is_cuda):
        check_count(x.numel() // x.shape[1] * processes, x.shape)
    if not training or processes == 1:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    weight = x.new_ones(x.shape[1], dtype=torch.float32) if weight is None else weight
    bias = torch.zeros_like(weight) if bias is None else bias
    if x.is_cuda:
        y: Tensor = SyncBatchNorm.apply(  # type: ignore[no-untyped-call]
            x, weight, bias, running_mean, running_var, eps, momentum, dist.group.WORLD, processes
        )
        return y
    flat = x if x.dim() == 4 else x.reshape(*x.shape[:2], -1, 1)
    mean, scale, count = _joint_statistics(
        flat.detach(), running_mean, running_var, momentum, eps, weight.dtype
    )
    y = _Joint.apply(flat, weight, bias, mean, scale, count)  # type: ignore[no-untyped-call]
    return y.view_as(x)


def check_count(count: float, shape: torch.Size) -> None:
    """Refuse statistics of a single value: its variance is 0, and only the bias would remain."""
    if count == 1:
        size = " x ".join(str(side) for side in shape)
        raise NacreError(
            "one image at a time is too little for training: batch normalization got one value per "
            f"channel (an input of {size}); use a train.batch_size of 2 or more over all "
            "processes, and a train.micro_batch of 2 or more"
        )


# Statistics and gradients over all processes


def _sum_over_processes(values: Tensor) -> Tensor:
    """Add a vector over the processes, in place."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the mean and the biased variance of each channel of N,C,H,W in the wide type."""
    wide = _wide_type(x)
    count = max(x.numel() // x.shape[1], 1)
    mean = x.sum(_PER_CHANNEL, dtype=wide) / count
    # Squares are summed around the mean: around 0 they would cancel if the mean is far from 0.
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    center = mean.to(x.dtype)
    squares = (x - center[:, None, None]).square_().sum(_PER_CHANNEL, dtype=wide)
    return mean, (squares / count - (center.to(wide) - mean).square()).clamp_(min=0)


def _wide_type(x: Tensor) -> torch.dtype:
    """Return the type for sums on the device of a tensor."""
    return torch.float32 if x.device.type == "mps" else torch.float64


@torch.no_grad()
def _joint_statistics(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, 1 / sqrt(var + eps) and the number of values per channel of the joint batch.

    The running statistics are updated.
    """
    count = x.numel() // x.shape[1]
    mean, var = channel_statistics(x)
    # Sums of squares around 0 can be added over processes; float64 has digits enough for them.
    squares = count * (var + mean.square())
    joint = _sum_over_processes(torch.cat([count * mean, squares, mean.new_full((1,), count)]))
    joint_count = joint[-1]
    if count <= 1:  # Larger counts are valid; this avoids waiting for the device.
        check_count(float(joint_count), x.shape)
    mean, mean_square = joint[:-1].view(2, -1) / joint_count.clamp(min=1)
    var = (mean_square - mean.square()).clamp_(min=0)
    unbiased = var * (joint_count / (joint_count - 1).clamp(min=1))
    for running, value in ((running_mean, mean), (running_var, unbiased)):
        if running is not None:
            share = (momentum * (joint_count > 0)).to(running.dtype)
            running.lerp_(value.to(running.dtype), share)
    return mean.to(dtype), (var + eps).rsqrt().to(dtype), joint_count


class _Joint(torch.autograd.Function):
    """Normalizes by joint statistics, whose part of the gradient `backward` computes."""

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
        return _affine(x, factor, bias - mean * factor).to(x.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, mean, scale, count = ctx.saved_tensors
        dx, dweight, dbias = _joint_backward(grads[0], x, mean, scale, weight * scale, count)
        return dx.to(x.dtype), dweight, dbias, None, None, None


def _joint_backward(
    dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, factor: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of batch normalization.

    Args:
        dy: gradient of the output.
        x: the input of this process, or another map that `mean` and `scale` normalize to xhat.
        mean: mean of x.
        scale: 1 / standard deviation of x, so that xhat = (x - mean) * scale.
        factor: g / sqrt(var + eps) of the layer's input.
        count: values per channel over all processes.

    Returns:
        The gradients of the layer's input, of the weight and of the bias. The last two are the
        contribution of this process: data-parallel training adds them up.
    """
    wide = _wide_type(x)
    product = dy * ((x - mean[:, None, None]) * scale[:, None, None])
    sum_dy = dy.sum(_PER_CHANNEL, dtype=wide)
    sum_product = product.sum(_PER_CHANNEL, dtype=wide)
    means = _sum_over_processes(torch.cat([sum_dy, sum_product])) / count.clamp(min=1)
    mean_dy, mean_product = means.view(2, -1)
    # dx = factor * (dy - mean(dy) - xhat * mean(dy * xhat)), as an affine map of dy and x.
    slope = -factor * scale * mean_product
    shift = (-factor * mean_dy - slope * mean).to(factor.dtype)
    dx = _affine(x, slope.to(factor.dtype), shift).addcmul_(dy, factor[:, None, None])
    return dx, sum_product.to(factor.dtype), sum_dy.to(factor.dtype)


def _affine(x: Tensor, factor: Tensor, shift: Tensor) -> Tensor:
    """Return x * factor + shift; factor and shift are per channel."""
    return torch.addcmul(shift[:, None, None], x, factor[:, None, None])


# In place


class InPlaceABN(ABN):
    """`ABN` that keeps only its output for the backward pass; its scale is |weight| + eps.

    Only leaky ReLU and the identity can be inverted.
    """

    def __init__(
        self, channels: int, *, activation: Activation = "leaky_relu", **options: float
    ) -> None:
        assert activation in ("leaky_relu", "identity"), activation
        super().__init__(channels, activation=activation, **options)
        assert self.slope > 0, self.slope

    def gain(self) -> Tensor:
        """Return the factor after normalization, which is never 0: the backward pass divides."""
        return self.weight.abs() + self.eps

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Normalize, add the shortcut of a residual block if there is one, and activate."""
        if not self.uses_batch(x):
            return super().forward(x, shortcut)
        y: Tensor = _InPlace.apply(  # type: ignore[no-untyped-call]
            x, shortcut, self.weight, self.bias, self
        )
        return y

    def forward_both(self, x: Tensor, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the output of `forward`, and the same before the activation."""
        y = self(x, shortcut)
        slope = self.slope if self.activation == "leaky_relu" else 1.0
        return y, F.leaky_relu(y, 1 / slope)

    def normalize_batch(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Normalize by the statistics of the batch, scale and shift; without autograd.

        Returns:
            The result, 1 / sqrt(var + eps), and the values per channel over all processes (None
            if torch's kernel computed them for one process).
        """
        self.num_batches_tracked.add_(1)
        gain, running = self.gain(), (self.running_mean, self.running_var)
        if world_size() == 1 and x.device.type in _NATIVE:
            check_count(x.numel() // x.shape[1], x.shape)
            y, _, scale = torch.native_batch_norm(
                x, gain, self.bias, *running, True, self.momentum, self.eps
            )
            return y, scale, None
        mean, scale, count = _joint_statistics(x, *running, self.momentum, self.eps, gain.dtype)
        factor = gain * scale
        return _affine(x, factor, self.bias - mean * factor).to(x.dtype), scale, count


class _InPlace(torch.autograd.Function):
    """In-place activated batch normalization, which keeps only its output.

    The usual backward pass keeps x and y. But leaky ReLU and the affine map can be inverted, so y
    is enough:

        xhat = (act^-1(y) [- shortcut] - bias) / g
        dx = g / sqrt(var + eps) * (dz - mean(dz) - xhat * mean(dz * xhat)),  dz = dy * act'(y)

    The next convolution keeps y anyway, and the first convolution of the block keeps the shortcut,
    so the layer adds only vectors to the memory of a training step. In half precision a sum has too
    few digits to subtract the shortcut again, so there the normalized branch is kept instead.
    """

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        shortcut: Tensor | None,
        weight: Tensor,
        bias: Tensor,
        layer: InPlaceABN,
    ) -> Tensor:
        y, scale, count = layer.normalize_batch(x)
        branch = None
        if shortcut is not None and x.dtype in _HALF:
            branch, y, shortcut = y, y + shortcut, None
        elif shortcut is not None:
            y.add_(shortcut)
        y = activate_(y, layer.activation, layer.slope)
        ctx.save_for_backward(y, shortcut, branch, weight, bias, scale, count)
        ctx.slope = layer.slope if layer.activation == "leaky_relu" else 1.0
        ctx.eps = layer.eps
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        y, shortcut, branch, weight, bias, scale, count = ctx.saved_tensors
        dz = grads[0]
        if ctx.slope != 1:
            dz = torch.ops.aten.leaky_relu_backward(dz, y, ctx.slope, True)
        if branch is None:
            branch = F.leaky_relu(y, 1 / ctx.slope) if ctx.slope != 1 else y
            branch = branch if shortcut is None else branch - shortcut
        gain = weight.abs() + ctx.eps
        if count is None:
            # Torch's kernel, with the branch in the place of x: the branch has the mean `bias` and
            # 1 / std = 1 / gain. The kernel multiplies the gradient by weight / std, so the weight
            # gain^2 * scale gives the factor of x, gain * scale.
            dx, dgain, dbias = torch.ops.aten.native_batch_norm_backward(
                dz, branch, gain.square() * scale, None, None, bias, 1 / gain, True, 0.0, [True] * 3
            )
        else:
            # The branch is gain * xhat + bias, so `bias` and 1 / gain normalize it to xhat.
            dx, dgain, dbias = _joint_backward(dz, branch, bias, 1 / gain, gain * scale, count)
            dx = dx.to(y.dtype)
        dshortcut = dz if ctx.needs_input_grad[1] else None
        return dx, dshortcut, torch.where(weight < 0, -dgain, dgain), dbias, None


# Batch norms of other libraries


def synchronize_batch_norm(model: nn.Module) -> None:
    """Make the batch norms of a network use the joint batch of all processes, in place.

    `nn.SyncBatchNorm` does not run on CPUs, and its conversion replaces modules, which loses
    what a library's own batch norm adds (timm's has an activation). Here every call of
    `F.batch_norm` inside a batch norm becomes one of `batch_norm`. Names of parameters and buffers
    stay, and one process computes what it did before. An `nn.SyncBatchNorm` becomes a plain batch
    norm.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _Synchronized):
            is_torchs = isinstance(module, nn.SyncBatchNorm)
            original = nn.BatchNorm2d if is_torchs else type(module)
            module.__class__ = type(original.__name__, (_Synchronized, original), {})


class _Synchronized(nn.Module):
    """A first base for the classes of batch norms that `synchronize_batch_norm` changes."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Call the original `forward`, with joint statistics in training."""
        if not self.training or world_size() == 1:
            return super().forward(*args, **kwargs)
        with _JointBatchNorm():
            return super().forward(*args, **kwargs)


class _JointBatchNorm(TorchFunctionMode):
    """Replaces `F.batch_norm` by `batch_norm` while a batch norm runs."""

    def __torch_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        called = batch_norm if function is F.batch_norm else function
        return called(*args, **(kwargs or {}))
