"""EfficientNet-Lite 0, 1 and 2 at output stride 8, 16 or 32, for small machines.

Inverted residual blocks without squeeze-and-excitation, ReLU6, and batch norm with eps 1e-3.
The ImageNet weights were converted from TensorFlow, so strided convolutions pad like its 'SAME'
(more at the end than at the start), and pixels are normalized as (value - 127) / 128.

Lite 1 and 2 are deeper and wider than Lite 0: repeats of the inner stages are multiplied by a
factor and rounded up, channels by another factor and rounded to multiples of 8. All have the same
stem.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from nacre.models.backbone import Backbone, initialize
from nacre.models.norm import ABN, Activation


def dilate(strides: Iterable[int], output_stride: int) -> list[tuple[int, int]]:
    """Return stride and dilation of each layer for an output stride, given the trained strides.

    If a layer keeps its resolution instead of halving it, the layers after it are dilated, so that
    every second pixel has the features of the trained network.
    """
    reached = dilation = 1
    layers = []
    for stride in strides:
        kept = reached * stride <= output_stride
        layers.append((stride if kept else 1, dilation))
        reached *= stride if kept else 1
        dilation *= 1 if kept else stride
    return layers


Size = Literal[0, 1, 2]

# For each stage of Lite0: blocks, kernel, stride, expansion, output channels
_STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
_STEM = 32
_FACTORS: dict[Size, tuple[float, float]] = {0: (1.0, 1.0), 1: (1.0, 1.1), 2: (1.1, 1.2)}
_EPS = 1e-3


def _norm(channels: int, activation: Activation = "relu6") -> ABN:
    return ABN(channels, activation=activation, eps=_EPS)


class SameConv2d(nn.Conv2d):
    """A convolution with the output size ceil(input / stride), padded like TensorFlow's.

    Attributes:
        aligned: pad by a constant, for a graph that is traced once. It is right for inputs that the
            stride divides, as in all layers if the sides of the image are multiples of 32.
    """

    aligned = False

    def forward(self, x: Tensor) -> Tensor:
        """Pad, with the smaller half at the start, and convolve."""
        bottom, right = (self._padding(size, dim) for dim, size in enumerate(x.shape[-2:]))
        x = F.pad(x, (right // 2, right - right // 2, bottom // 2, bottom - bottom // 2))
        return super().forward(x)

    def _padding(self, size: int, dim: int) -> int:
        stride = self.stride[dim]
        reach = (self.kernel_size[dim] - 1) * self.dilation[dim] + 1
        if self.aligned:
            return max(reach - stride, 0)
        return max((-(-size // stride) - 1) * stride + reach - size, 0)


def _depthwise(channels: int, kernel: int, stride: int, dilation: int) -> nn.Conv2d:
    if stride > 1:
        return SameConv2d(
            channels, channels, kernel, stride, dilation=dilation, groups=channels, bias=False
        )
    padding = kernel // 2 * dilation
    return nn.Conv2d(channels, channels, kernel, 1, padding, dilation, groups=channels, bias=False)


class InvertedResidual(nn.Module):
    """A block of a 1x1 convolution that widens, a depthwise one, and a 1x1 one that narrows."""

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        *,
        kernel: int,
        stride: int,
        dilation: int,
        expansion: int,
        shortcut: bool,
    ) -> None:
        super().__init__()
        width = in_channels * expansion
        self.shortcut = shortcut
        self.expand_conv = None
        if expansion > 1:
            self.expand_conv = nn.Conv2d(in_channels, width, 1, bias=False)
            self.bn0 = _norm(width)
        self.depthwise_conv = _depthwise(width, kernel, stride, dilation)
        self.bn1 = _norm(width)
        self.project_conv = nn.Conv2d(width, out_channels, 1, bias=False)
        self.bn2 = _norm(out_channels, activation="identity")

    def forward(self, x: Tensor) -> Tensor:
        """Return the features; the last norm has no activation."""
        y = x if self.expand_conv is None else self.bn0(self.expand_conv(x))
        y = self.bn1(self.depthwise_conv(y))
        out: Tensor = self.bn2(self.project_conv(y), x if self.shortcut else None)
        return out


class Lite(Backbone):
    """EfficientNet-Lite without its classifier."""

    mean = (127 / 255, 127 / 255, 127 / 255)
    std = (128 / 255, 128 / 255, 128 / 255)

    def __init__(self, size: Size, *, stride: int = 16) -> None:
        super().__init__()
        assert stride in (8, 16, 32), stride
        self.stride = stride
        self.conv_stem = SameConv2d(3, _STEM, 3, 2, bias=False)
        self.bn0 = _norm(_STEM)
        self.blocks = nn.Sequential(*_blocks(size, stride))
        width = _FACTORS[size][0]
        self.channels = _round_channels(_STAGES[-1][-1], width)
        stages, reached = [], 2  # the stem halves the image
        for _, _, step, _, channels in _STAGES:
            reached = min(reached * step, stride)
            stages.append((_round_channels(channels, width), reached))
        self.stages = tuple(stages)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of normalized pixels."""
        y: Tensor = self.blocks(self.bn0(self.conv_stem(x)))
        return y

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and those at the end of each of the seven stages."""
        x, stages = self.bn0(self.conv_stem(x)), list[Tensor]()
        for block in self.blocks:
            if stages and block.shortcut:  # only the first block of a stage has no shortcut
                stages.pop()
            x = block(x)
            stages.append(x)
        return x, tuple(stages)


def _blocks(size: Size, output_stride: int) -> list[InvertedResidual]:
    width, depth = _FACTORS[size]
    plan = []
    for number, (repeats, kernel, stride, expansion, channels) in enumerate(_STAGES):
        inner = 0 < number < len(_STAGES) - 1
        for index in range(math.ceil(repeats * depth) if inner else repeats):
            step = 1 if index else stride
            plan.append((kernel, step, expansion, _round_channels(channels, width), index > 0))
    layers = dilate([2, *(step for _, step, *_ in plan)], output_stride)[1:]
    blocks, in_channels = [], _STEM
    for (kernel, _, expansion, out_channels, shortcut), (stride, dilation) in zip(
        plan, layers, strict=True
    ):
        blocks.append(
            InvertedResidual(
                in_channels,
                out_channels,
                kernel=kernel,
                stride=stride,
                dilation=dilation,
                expansion=expansion,
                shortcut=shortcut,
            )
        )
        in_channels = out_channels
    return blocks


def _round_channels(channels: int, factor: float) -> int:
    wanted = channels * factor
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8


def from_package_name(name: str) -> str | None:
    """Return the name in `Lite` for one in a package's file; None for the classifier."""
    if name.split(".")[0] in ("_conv_head", "_bn1", "_fc"):
        return None
    return ".".join(part.removeprefix("_") for part in name.split("."))
