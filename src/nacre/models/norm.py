"""Batch normalization with its activation built in, synchronized over processes.

    y = act(g * xhat + bias [+ shortcut]),  xhat = (x - mean) / sqrt(var + eps)

`ABN` has g = weight. `InPlaceABN` has g = |weight| + eps, which is never 0, so that its output
gives back all that the backward pass needs (`_InPlace`).

In training `mean` and `var` are those of the joined batch of all processes. With one process this
is `F.batch_norm`, but for channels-last maps on a CPU, which torch sums with too few digits (see
the end of the file). With several on CUDA it is torch's own `nn.SyncBatchNorm`. Elsewhere
each process adds its count, sum and sum of squares in float64, so unequal batches are weighted
rightly, and the backward pass

    dx = g / sqrt(var + eps) * (dy - mean(dy) - xhat * mean(dy * xhat))

takes its two means over the joined batch too. Parameters and buffers are named as those of
`nn.BatchNorm2d`, so that public weights load.

The batch norms of other libraries stay what they are and use the same `batch_norm`
(`synchronize_batch_norm`), and for inference norms are folded into convolutions (`fuse_norms_`).
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

# where torch's own kernels are known to go by the statistics they are given
_NATIVE = ("cpu", "cuda", "meta")
_HALF = (torch.float16, torch.bfloat16)


class NormFactory(Protocol):
    """Makes the norm of so many channels; `activation` overrides the usual one."""

    def __call__(self, channels: int, *, activation: Activation = ...) -> ABN:
        """Return the layer."""


def world_size() -> int:
    """Return how many processes take part in training (1 without torch.distributed)."""
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


class Activate(nn.Module):
    """An activation, of the sum with a shortcut where a residual block has one."""

    def __init__(self, activation: Activation, slope: float) -> None:
        super().__init__()
        self.activation: Activation = activation
        self.slope = slope

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Add the shortcut if there is one, activate."""
        return activate_(self._sum(x, shortcut), self.activation, self.slope)

    def forward_both(self, x: Tensor, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what `forward` does, and the same before it is activated."""
        y = self._sum(x, shortcut)
        return activate_(y.clone(), self.activation, self.slope), y

    def _sum(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
        return x if shortcut is None else x + shortcut


class ABN(Activate):
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
        super().__init__(activation, slope)
        self.channels = channels
        self.eps = eps
        self.momentum = momentum
        self.weight = nn.Parameter(torch.ones(channels))
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("running_mean", torch.zeros(channels))
        self.register_buffer("running_var", torch.ones(channels))
        self.register_buffer("num_batches_tracked", torch.tensor(0))

    def gain(self) -> Tensor:
        """Return the factor after normalization; subclasses may derive it from `weight`."""
        return self.weight

    def uses_batch(self, x: Tensor) -> bool:
        """Return whether the batch's statistics are used: in training, unless there is no value."""
        return self.training and (x.numel() > 0 or world_size() > 1)

    def _sum(self, x: Tensor, shortcut: Tensor | None) -> Tensor:
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
    """Do what `F.batch_norm` does, with the statistics of the joined batch of all processes."""
    processes = world_size()
    alone = processes == 1 and not lies_in_rows(x)
    if training and (alone or x.is_cuda):
        check_count(x.numel() // x.shape[1] * processes, x.shape)
    if not training or alone:
        return F.batch_norm(x, running_mean, running_var, weight, bias, training, momentum, eps)
    weight = x.new_ones(x.shape[1], dtype=torch.float32) if weight is None else weight
    bias = torch.zeros_like(weight) if bias is None else bias
    if x.is_cuda:
        y: Tensor = SyncBatchNorm.apply(  # type: ignore[no-untyped-call]
            x, weight, bias, running_mean, running_var, eps, momentum, dist.group.WORLD, processes
        )
        return y
    flat = x if x.dim() == 4 else x.reshape(*x.shape[:2], -1, 1)
    mean, scale, count = _joined_norm(
        flat.detach(), running_mean, running_var, momentum, eps, weight.dtype
    )
    y = _Joined.apply(flat, weight, bias, mean, scale, count)  # type: ignore[no-untyped-call]
    return y.view_as(x)


def check_count(count: float, shape: torch.Size) -> None:
    """Refuse to take statistics over a single value.

    Raises:
        NacreError: the variance of one value is 0, and the layer would give its bias only.
    """
    if count == 1:
        size = " x ".join(str(n) for n in shape)
        raise NacreError(
            f"one image at a time is too little to train with: batch normalization got one "
            f"value per channel (an input of {size}); use a train.batch_size of 2 or more over all "
            "processes, and a train.micro_batch of 2 or more"
        )


def sum_over_processes(values: Tensor) -> Tensor:
    """Add a float64 vector over the processes, in place (float32 where there is no float64)."""
    if world_size() > 1:
        dist.all_reduce(values)
    return values


@torch.no_grad()
def _joined_norm(
    x: Tensor,
    running_mean: Tensor | None,
    running_var: Tensor | None,
    momentum: float,
    eps: float,
    dtype: torch.dtype,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return mean, 1 / sqrt(var + eps) and count per channel over the joined batch.

    The running statistics move towards those of the batch.
    """
    count = x.numel() // x.shape[1]
    mean, var = channel_statistics(x)
    # Moved to the origin in float64, where sums of squares of several processes can be added.
    squares = count * (var + mean.square())
    joined = sum_over_processes(torch.cat([count * mean, squares, mean.new_full((1,), count)]))
    joined_count = joined[-1]
    if count <= 1:  # otherwise there is no need to wait for the device
        check_count(float(joined_count), x.shape)
    mean, mean_square = joined[:-1].view(2, -1) / joined_count.clamp(min=1)
    var = (mean_square - mean.square()).clamp_(min=0)
    unbiased = var * (joined_count / (joined_count - 1).clamp(min=1))
    for running, value in ((running_mean, mean), (running_var, unbiased)):
        if running is not None:
            share = (momentum * (joined_count > 0)).to(running.dtype)
            running.lerp_(value.to(running.dtype), share)
    return mean.to(dtype), (var + eps).rsqrt().to(dtype), joined_count


class _Joined(torch.autograd.Function):
    """Normalizes by joined statistics; their share of the gradient is in `backward`."""

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
        dx, dweight, dbias = _joined_backward(grads[0], x, mean, scale, weight * scale, count)
        return dx.to(x.dtype), dweight, dbias, None, None, None


def _joined_backward(
    dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor, factor: Tensor, count: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of batch normalization.

    Args:
        dy: gradient of the output.
        x: the input of this process, or another map that `mean` and `scale` normalize to xhat.
        mean: of x.
        scale: 1 / std of x: xhat = (x - mean) * scale.
        factor: g / sqrt(var + eps) of the layer's input.
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
        """Return a factor that is never 0, so that it can be divided by."""
        return self.weight.abs() + self.eps

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Normalize, add the shortcut of a residual block if there is one, activate."""
        if not self.uses_batch(x):
            return super().forward(x, shortcut)
        y: Tensor = _InPlace.apply(  # type: ignore[no-untyped-call]
            x, shortcut, self.weight, self.bias, self
        )
        return y

    def forward_both(self, x: Tensor, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what `forward` does, and the same before it is activated."""
        y = self(x, shortcut)
        slope = self.slope if self.activation == "leaky_relu" else 1.0
        return y, F.leaky_relu(y, 1 / slope)

    def batch_normalize(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Normalize by the statistics of the batch, scale and shift; without autograd.

        Returns:
            The result, 1 / sqrt(var + eps), and the values per channel over all processes (None
            where one process is alone with torch's kernel).
        """
        self.num_batches_tracked.add_(1)
        gain, running = self.gain(), (self.running_mean, self.running_var)
        if world_size() == 1 and x.device.type in _NATIVE and not lies_in_rows(x):
            check_count(x.numel() // x.shape[1], x.shape)
            y, _, scale = torch.native_batch_norm(
                x, gain, self.bias, *running, True, self.momentum, self.eps
            )
            return y, scale, None
        mean, scale, count = _joined_norm(x, *running, self.momentum, self.eps, gain.dtype)
        factor = gain * scale
        return channel_affine(self.bias - mean * factor, (factor, x)).to(x.dtype), scale, count


class _InPlace(torch.autograd.Function):
    """In-place activated batch normalization: what it puts out is all it keeps.

    The usual backward pass keeps x and y. But leaky ReLU and the affine map can be inverted, so y
    alone gives everything back:

        xhat = (act^-1(y) [- shortcut] - bias) / g
        dx = g / sqrt(var + eps) * (dz - mean(dz) - xhat * mean(dz * xhat)),  dz = dy * act'(y)

    y is what the next convolution keeps anyway, and the shortcut is what the first convolution of
    its block keeps, so the layer adds only vectors to the memory of a training step. In half
    precision a sum has too few digits for its shortcut to be taken off again: there the normalized
    branch is kept instead.
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
        y, scale, count = layer.batch_normalize(x)
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
            # torch's kernel on the branch in the place of x: to it the branch has mean `bias` and
            # 1 / std `1 / gain`, and it multiplies the gradient by weight / std: with the weight
            # `gain^2 * scale` that is the factor of x, `gain * scale`.
            dx, dgain, dbias = torch.ops.aten.native_batch_norm_backward(
                dz, branch, gain.square() * scale, None, None, bias, 1 / gain, True, 0.0, [True] * 3
            )
        else:
            # The branch is gain * xhat + bias, so these two normalize it to xhat.
            dx, dgain, dbias = _joined_backward(dz, branch, bias, 1 / gain, gain * scale, count)
            dx = dx.to(y.dtype)
        dshortcut = dz if ctx.needs_input_grad[1] else None
        return dx, dshortcut, torch.where(weight < 0, -dgain, dgain), dbias, None


# Batch norms of other libraries


def keep_digits(model: nn.Module) -> None:
    """Keep every batch norm of a network from losing digits while it learns on a CPU, in place.

    Networks that turn tokens into maps (SegFormer's decoder) hand batch norms maps in channels-last
    layout on their own, which are laid out the other way first.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and _lay_out not in module._forward_pre_hooks.values():
            module.register_forward_pre_hook(_lay_out)


def _lay_out(module: nn.Module, args: tuple[Any, ...]) -> tuple[Any, ...] | None:
    if module.training and args and lies_in_rows(args[0]):
        return (args[0].contiguous(), *args[1:])
    return None


def synchronize_batch_norm(model: nn.Module) -> None:
    """Make the batch norms of a network use the batches of all processes, in place.

    `nn.SyncBatchNorm` refuses CPUs and replaces modules, which loses what a library's own kind of
    batch norm adds (timm's has an activation in it). Here every call of `F.batch_norm` inside a
    batch norm becomes one of `batch_norm`. Names of parameters and buffers stay as they are, and
    with one process nothing changes. A `nn.SyncBatchNorm` that is there becomes a plain batch norm.
    """
    for module in model.modules():
        if isinstance(module, _BatchNorm) and not isinstance(module, _Synchronized):
            is_torchs = isinstance(module, nn.SyncBatchNorm)
            kind = nn.BatchNorm2d if is_torchs else type(module)
            module.__class__ = type(kind.__name__, (_Synchronized, kind), {})


class _Synchronized(nn.Module):
    """Goes before the class of a batch norm among the bases of a new one."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Do what the other class does, with joined statistics in training."""
        if not self.training or world_size() == 1:
            return super().forward(*args, **kwargs)
        with _JoinedBatchNorm():
            return super().forward(*args, **kwargs)


class _JoinedBatchNorm(TorchFunctionMode):
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


# Inference only


@torch.no_grad()
def fuse_norms_(network: nn.Module, images: Tensor) -> None:
    """Fold each norm that takes exactly what a convolution puts out into it, for inference.

    In eval a norm is an affine map of each channel, a * x + b with a = g / sqrt(running_var + eps)
    and b = bias - a * running_mean; after a convolution with weight W it is the convolution a * W
    with the bias b. Which norms these are is seen by watching a pass. Those that follow a sum or
    a concatenation stay.

    Args:
        network: in eval; changed in place.
        images: a batch that it takes.
    """
    made: dict[int, tuple[nn.Conv2d, Tensor]] = {}
    pairs: list[tuple[nn.Conv2d, ABN, str]] = []
    names = {module: name for name, module in network.named_modules()}

    def after_conv(module: nn.Module, args: tuple[Tensor, ...], output: Tensor) -> None:
        assert isinstance(module, nn.Conv2d)
        made[id(output)] = (module, output)  # held, so that no other tensor gets its id

    def before_norm(module: nn.Module, args: tuple[Tensor, ...]) -> None:
        assert isinstance(module, ABN)
        if id(args[0]) in made:
            pairs.append((made[id(args[0])][0], module, names[module]))

    hooks = [m.register_forward_hook(after_conv) for m in names if isinstance(m, nn.Conv2d)]
    hooks += [m.register_forward_pre_hook(before_norm) for m in names if isinstance(m, ABN)]
    network(images)
    for hook in hooks:
        hook.remove()
    for conv, norm, name in pairs:
        _fold_(conv, norm)
        network.set_submodule(name, Activate(norm.activation, norm.slope))


def _fold_(conv: nn.Conv2d, norm: ABN) -> None:
    """Fold a norm into the convolution before it, in float64 so that it rounds once."""
    scale = norm.gain().double() * (norm.running_var.double() + norm.eps).rsqrt()
    shift = norm.bias.double() - scale * norm.running_mean.double()
    if conv.bias is not None:
        shift = shift + scale * conv.bias.double()
    conv.weight.copy_(conv.weight.double() * scale[:, None, None, None])
    conv.bias = nn.Parameter(shift.to(conv.weight.dtype), requires_grad=False)


# Sums per channel that keep their digits in the layout that is fast, and maps made of them
#
# On CPUs torch adds the pixels of a channels-last map one after the other in float32. Over
# 131,072 values per channel 1 / std is then off by 3e-4, and the error grows with the number of
# values; of a contiguous map, which is summed in float64 and convolved more slowly, it is 8e-8.
#
# Here a channels-last map, which lies in memory as rows of C values, is read as fewer and wider
# rows: k pixels side by side are k C columns. torch's own kernel sums each column over some
# hundred rows, and the many short sums of a channel are joined in float64. That costs no more
# than one long sum does, since the same kernel reads the same values once. Other layouts and
# devices have sums in float64 (float32 where there is no float64).
#
#     mean = sum of n_i mean_i / n,   var = sum of n_i (var_i + (mean_i - mean)^2) / n

_PER_CHANNEL = (0, 2, 3)  # the dimensions that a channel's values lie in
_COLUMNS = 8192  # of the wide rows: their sums stay in the cache
_ROWS = 128  # values that a thread adds one after the other


def lies_in_rows(x: Tensor) -> bool:
    """Return whether torch gets a map's long sums wrong: float32, channels-last, on a CPU.

    (A compiler makes sums of its own, and knows nothing of numbers of threads.)
    """
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.dim() == 4
        and x.numel() > _ROWS * x.shape[1]
        and not x.is_contiguous()
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def wide_type(x: Tensor) -> torch.dtype:
    """Return the type to sum in on the device of a tensor."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def per_channel(values: Tensor) -> Tensor:
    """Return a vector of channel values, shaped to be used with N,C,H,W."""
    return values[:, None, None]


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel of N,C,H,W, in the wide type."""
    if lies_in_rows(x):
        return _statistics_of_rows(x)
    wide = wide_type(x)
    count = max(x.numel() // x.shape[1], 1)
    mean = x.sum(_PER_CHANNEL, dtype=wide) / count
    # Squares are summed about the mean: about the origin they would cancel where it is far from 0.
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    center = mean.to(x.dtype)
    squares = (x - per_channel(center)).square_().sum(_PER_CHANNEL, dtype=wide)
    return mean, (squares / count - (center.to(wide) - mean).square()).clamp_(min=0)


def channel_sums(dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums per channel of dy and of dy * (x - mean) * scale, in the wide type."""
    if lies_in_rows(x) and dy.dtype == x.dtype:
        return _sums_of_rows(dy, x, mean, scale)
    wide = wide_type(x)
    product = dy * ((x - per_channel(mean)) * per_channel(scale))
    return dy.sum(_PER_CHANNEL, dtype=wide), product.sum(_PER_CHANNEL, dtype=wide)


def channel_affine(shift: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
    """Return the shift plus all factors times their maps; shift and factors are per channel."""
    (factor, values), *others = terms
    total = torch.addcmul(per_channel(shift), values, per_channel(factor))
    for factor, values in others:
        total.addcmul_(values, per_channel(factor))
    return total


def _statistics_of_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    channels = x.shape[1]
    means, variances, counts = [], [], []
    for part in _parts(x):
        mean, variance = torch.batch_norm_update_stats(part, None, None, 0.0)
        means.append(mean.view(-1, channels))
        variances.append(variance.view(-1, channels))
        counts += [len(part)] * (part.shape[1] // channels)
    share = torch.tensor(counts, dtype=torch.float64)[:, None] / (x.numel() // channels)
    short_mean, short_variance = torch.cat(means).double(), torch.cat(variances).double()
    total_mean = (share * short_mean).sum(0)
    # The variance of all pixels: the parts' own, and how far their means lie from the mean of all.
    return total_mean, (share * (short_variance + (short_mean - total_mean).square())).sum(0)


def _sums_of_rows(dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    channels = x.shape[1]
    times = _pixels_per_row(channels)
    wide_mean, wide_scale = mean.repeat(times), scale.repeat(times)
    sums, products = [], []
    for dy_part, x_part in zip(_parts(dy), _parts(x), strict=True):
        columns = x_part.shape[1]
        # What the kernel calls the gradients of bias and weight are these two sums.
        _, product, total = torch.ops.aten.native_batch_norm_backward(
            dy_part, x_part, None, None, None, wide_mean[:columns], wide_scale[:columns],
            True, 0.0, [False, True, True],
        )  # fmt: skip
        sums.append(total.view(-1, channels))
        products.append(product.view(-1, channels))
    wide_sum, wide_product = (
        torch.cat(one).sum(0, dtype=torch.float64) for one in (sums, products)
    )
    return wide_sum, wide_product


def _pixels_per_row(channels: int) -> int:
    return max(1, _COLUMNS // channels)


def _parts(x: Tensor) -> list[Tensor]:
    """Cut a map into parts of a few wide rows; pixels that fill no wide row are one part more."""
    pixels = x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).flatten(0, 2)
    count, channels = pixels.shape
    times = _pixels_per_row(channels)
    whole = count - count % times
    wide = pixels[:whole].view(-1, times * channels)
    parts = list(torch.split(wide, _ROWS * torch.get_num_threads())) if whole else []
    return parts if whole == count else [*parts, pixels[whole:]]
