"""In-place activated batch normalisation in plain PyTorch: what it puts out is all it keeps.

    y = act(g * xhat + bias [+ shortcut])
    xhat = (x - mean) / sqrt(var + eps),  g = |weight| + eps

The usual backward pass keeps x and y. But leaky ReLU and the affine map can be inverted, g being
never 0, so y alone gives everything back:

    xhat = (act^-1(y) [- shortcut] - bias) / g
    dx = g / sqrt(var + eps) * (dz - mean(dz) - xhat * mean(dz * xhat)),  dz = dy * act'(y)

y is what the next convolution keeps anyway, and the shortcut is what the first convolution of
its block keeps, so the layer adds only vectors to the memory of a training step. In half
precision a sum has too few digits for its shortcut to be taken off again: there the normalised
branch is kept instead.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

from nacre.models.abn import (
    ABN,
    Activation,
    joined_statistics,
    norm_backward,
    world_size,
)
from nacre.models.channel_sums import channel_affine, lies_in_rows

# where torch's own kernels are known to go by the statistics they are given
_NATIVE = ("cpu", "cuda", "meta")
_HALF = (torch.float16, torch.bfloat16)


class _InPlaceABN(torch.autograd.Function):
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
        if layer.activation == "leaky_relu":
            F.leaky_relu(y, layer.slope, inplace=True)
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
            dx, dgain, dbias = _native_backward(dz, branch, gain, bias, scale)
        else:
            # The branch is gain * xhat + bias, so these two normalise it to xhat.
            dx, dgain, dbias = norm_backward(dz, branch, bias, 1 / gain, gain * scale, count)
            dx = dx.to(y.dtype)
        dshortcut = dz if ctx.needs_input_grad[1] else None
        return dx, dshortcut, torch.where(weight < 0, -dgain, dgain), dbias, None


def _native_backward(
    dz: Tensor, z: Tensor, gain: Tensor, bias: Tensor, scale: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Use torch's kernel on z = gain * xhat + bias in the place of x.

    To it z has mean `bias` and 1 / std `1 / gain`, and it multiplies the gradient by weight / std:
    with the weight `gain^2 * scale` that is the factor of x, `gain * scale`.
    """
    dx, dgain, dbias = torch.ops.aten.native_batch_norm_backward(
        dz, z, gain.square() * scale, None, None, bias, 1 / gain, True, 0.0, [True, True, True]
    )
    return dx, dgain, dbias


class InPlaceABN(ABN):
    """`ABN` that keeps only its output for the backward pass; its scale is |weight| + eps.

    Args:
        channels: number of channels.
        activation: leaky_relu or identity; others cannot be inverted.
        slope: of leaky ReLU below 0.
        eps: added to the variance and to the scale.
        momentum: share of the batch in the running statistics.
    """

    def __init__(
        self,
        channels: int,
        *,
        activation: Activation = "leaky_relu",
        slope: float = 0.01,
        eps: float = 1e-5,
        momentum: float = 0.1,
    ) -> None:
        assert activation in ("leaky_relu", "identity"), activation
        assert slope > 0, slope
        super().__init__(channels, activation=activation, slope=slope, eps=eps, momentum=momentum)

    def gain(self) -> Tensor:
        """Return a factor that is never 0, so that it can be divided by."""
        return self.weight.abs() + self.eps

    def forward(self, x: Tensor, shortcut: Tensor | None = None) -> Tensor:
        """Normalise, add the shortcut of a residual block if there is one, activate."""
        if not self.training or (x.numel() == 0 and world_size() == 1):
            return super().forward(x, shortcut)
        y: Tensor = _InPlaceABN.apply(  # type: ignore[no-untyped-call]
            x, shortcut, self.weight, self.bias, self
        )
        return y

    def forward_both(self, x: Tensor, shortcut: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return what `forward` does, and the same before it is activated."""
        y = self(x, shortcut)
        slope = self.slope if self.activation == "leaky_relu" else 1.0
        return y, F.leaky_relu(y, 1 / slope)

    def batch_normalize(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor | None]:
        """Normalise with the statistics of the batch, scale and shift; without autograd.

        Returns:
            The result, 1 / sqrt(var + eps), and the values per channel over all processes (None
            where one process is alone with torch's kernel).
        """
        gain = self.gain()
        if world_size() == 1 and x.device.type in _NATIVE and not lies_in_rows(x):
            running = self.count_batch(x)
            y, _, scale = torch.native_batch_norm(
                x, gain, self.bias, *running, True, self.momentum, self.eps
            )
            return y, scale, None
        mean, var, count = joined_statistics(x)
        self.update_running(mean, var, count)
        scale = (var + self.eps).rsqrt().to(gain.dtype)
        factor = gain * scale
        shift = self.bias - mean.to(gain.dtype) * factor
        return channel_affine(shift, (factor, x)).to(x.dtype), scale, count
