"""Dilated convolutions of single channels whose backward pass is as fast as their forward pass.

On CPUs torch computes the gradient of the input of a dilated depthwise convolution by a slow path:
thirty times the forward pass (1,152 channels of 10 x 10, kernel 5, dilation 2). With stride 1 that
gradient is the same convolution with the kernel turned by 180 degrees, and so the fast path serves.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


def same_conv(
    in_channels: int, out_channels: int, kernel: int, stride: int, dilation: int, groups: int
) -> nn.Conv2d:
    """Return a convolution without bias that pads by half its kernel, the fastest of its kind."""
    if dilation > 1 and stride == 1 and groups == in_channels == out_channels:
        return DilatedDepthwiseConv2d(in_channels, kernel, dilation)
    padding = kernel // 2 * dilation
    return nn.Conv2d(
        in_channels, out_channels, kernel, stride, padding, dilation, groups, bias=False
    )


class DilatedDepthwiseConv2d(nn.Conv2d):
    """A depthwise convolution of stride 1 that keeps the size: odd kernel, no bias.

    Args:
        channels: how many.
        kernel: side of the kernel, odd.
        dilation: distance of its values.
    """

    def __init__(self, channels: int, kernel: int, dilation: int) -> None:
        assert kernel % 2, kernel
        padding = kernel // 2 * dilation
        super().__init__(
            channels, channels, kernel, 1, padding, dilation, groups=channels, bias=False
        )

    def forward(self, x: Tensor) -> Tensor:
        """Filter each channel."""
        if not _is_slow(x):
            return super().forward(x)
        y: Tensor = _Filter.apply(  # type: ignore[no-untyped-call]
            x, self.weight, self.padding[0], self.dilation[0]
        )
        return y


def _is_slow(x: Tensor) -> bool:
    """Whether torch would take the slow path: where a gradient is wanted, on a CPU, eagerly."""
    return (
        x.device.type == "cpu"
        and x.requires_grad
        and torch.is_grad_enabled()
        and not torch.is_autocast_enabled("cpu")
        and not torch.compiler.is_compiling()
    )


class _Filter(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, padding: int, dilation: int) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.padding, ctx.dilation = padding, dilation
        return F.conv2d(x, weight, None, 1, padding, dilation, len(weight))

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        padding, dilation, channels = ctx.padding, ctx.dilation, len(weight)
        dy = grads[0]
        dx = F.conv2d(dy, weight.flip(2, 3), None, 1, padding, dilation, channels)
        dweight = None
        if ctx.needs_input_grad[1]:
            _, dweight, _ = torch.ops.aten.convolution_backward(
                dy, x, weight, None, [1, 1], [padding] * 2, [dilation] * 2, False, [0, 0],
                channels, [False, True, False],
            )  # fmt: skip
        return dx, dweight, None, None
