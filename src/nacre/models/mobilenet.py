"""MobileNetV2 and MobileNetV3-small at output stride 8, 16 or 32, for small machines.

Inverted residual blocks: a 1x1 convolution widens, a depthwise one filters each channel, a 1x1
convolution narrows, without an activation after it. V2 has ReLU6; V3 has ReLU and then hard swish,
and in most blocks a factor per channel that is computed from the mean of all pixels.

Parameters are named as torchvision's, so that its ImageNet weights load. V2 ends before the last
1x1 convolution, which only widens for the classifier; in V3 that one is kept, as torchvision's
segmentation networks keep it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Literal, NamedTuple

from torch import Tensor, nn

from nacre.models.abn import ABN, Activation
from nacre.models.backbone import Backbone, initialize, split_stages
from nacre.models.dilation import dilate
from nacre.models.resnet import IMAGENET_MEAN, IMAGENET_STD
from nacre.ops.depthwise import same_conv

NonLinear = Literal["relu6", "relu", "hardswish"]
NormLayer = Callable[..., ABN]

_STEM_STRIDE = 2
_norm_v3 = partial(ABN, eps=1e-3, momentum=0.01)


class Block(NamedTuple):
    """One inverted residual block: `width` channels between its 1x1 convolutions."""

    kernel: int
    width: int
    out_channels: int
    stride: int
    excite: bool
    activation: NonLinear


def _conv_norm(
    in_channels: int,
    out_channels: int,
    kernel: int,
    norm: NormLayer,
    *,
    stride: int = 1,
    dilation: int = 1,
    groups: int = 1,
    activation: NonLinear | None,
) -> nn.Sequential:
    """A convolution and its norm, under the names 0 and 1."""
    conv = same_conv(in_channels, out_channels, kernel, stride, dilation, groups)
    built_in: Activation = activation if activation in ("relu", "relu6") else "identity"
    layers: list[nn.Module] = [conv, norm(out_channels, activation=built_in)]
    if activation == "hardswish":
        layers.append(nn.Hardswish(inplace=True))
    return nn.Sequential(*layers)


def _depthwise(block: Block, norm: NormLayer, stride: int, dilation: int) -> nn.Sequential:
    return _conv_norm(
        block.width,
        block.width,
        block.kernel,
        norm,
        stride=stride,
        dilation=dilation,
        groups=block.width,
        activation=block.activation,
    )


class SqueezeExcite(nn.Module):
    """Scales each channel by a factor between 0 and 1 that the mean over all pixels decides."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)

    def forward(self, x: Tensor) -> Tensor:
        """Return the scaled features."""
        factor = self.fc2(self.fc1(x.mean((2, 3), keepdim=True)).relu())
        return x * nn.functional.hardsigmoid(factor)


class _InvertedResidual(nn.Module):
    """What both blocks have in common: a sequence and a shortcut around it."""

    layers: str

    def __init__(self, layers: nn.Sequential, *, shortcut: bool) -> None:
        super().__init__()
        self.add_module(self.layers, layers)
        self.shortcut = shortcut

    def forward(self, x: Tensor) -> Tensor:
        """Return the block's features."""
        y: Tensor = self.get_submodule(self.layers)(x)
        return x + y if self.shortcut else y


class InvertedResidualV2(_InvertedResidual):
    """MobileNetV2's block; torchvision has the last convolution and its norm in a row with it."""

    layers = "conv"

    def __init__(self, in_channels: int, block: Block, stride: int, dilation: int) -> None:
        width = block.width
        parts: list[nn.Module] = []
        if width > in_channels:
            parts.append(_conv_norm(in_channels, width, 1, ABN, activation="relu6"))
        parts.append(_depthwise(block, ABN, stride, dilation))
        last = _conv_norm(width, block.out_channels, 1, ABN, activation=None)
        shortcut = block.stride == 1 and in_channels == block.out_channels
        super().__init__(nn.Sequential(*parts, *last), shortcut=shortcut)


class InvertedResidualV3(_InvertedResidual):
    """MobileNetV3's block."""

    layers = "block"

    def __init__(self, in_channels: int, block: Block, stride: int, dilation: int) -> None:
        width = block.width
        parts: list[nn.Module] = []
        if width != in_channels:
            parts.append(_conv_norm(in_channels, width, 1, _norm_v3, activation=block.activation))
        parts.append(_depthwise(block, _norm_v3, stride, dilation))
        if block.excite:
            parts.append(SqueezeExcite(width, _round_to_8(width // 4)))
        parts.append(_conv_norm(width, block.out_channels, 1, _norm_v3, activation=None))
        shortcut = block.stride == 1 and in_channels == block.out_channels
        super().__init__(nn.Sequential(*parts), shortcut=shortcut)


class _MobileNet(Backbone):
    """A stem, blocks, and what follows them, in one sequence."""

    mean = IMAGENET_MEAN
    std = IMAGENET_STD

    def __init__(
        self,
        stem: nn.Sequential,
        block: type[InvertedResidualV2] | type[InvertedResidualV3],
        plan: list[Block],
        *,
        in_channels: int,
        stride: int,
    ) -> None:
        super().__init__()
        assert stride in (8, 16, 32), stride
        self.stride = stride
        self.features = nn.Sequential(stem)
        strides = [_STEM_STRIDE, *(one.stride for one in plan)]
        for one, (step, dilation) in zip(plan, dilate(strides, stride)[1:], strict=True):
            self.features.append(block(in_channels, one, step, dilation))
            in_channels = one.out_channels
        self.channels = in_channels
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of normalised pixels."""
        return self.run_blocks(self.features, x)

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and those that end the stages; V3's last ones are activated."""
        stem, *blocks = self.features
        return self.run_stages(split_stages(blocks), self.run_blocks([stem], x))


# per stage: expansion, channels, blocks, stride
_V2 = (
    (1, 16, 1, 1),
    (6, 24, 2, 2),
    (6, 32, 3, 2),
    (6, 64, 4, 2),
    (6, 96, 3, 1),
    (6, 160, 3, 2),
    (6, 320, 1, 1),
)


def _plan_v2() -> list[Block]:
    plan, in_channels = [], 32
    for expansion, channels, repeats, stride in _V2:
        for index in range(repeats):
            step = 1 if index else stride
            plan.append(Block(3, in_channels * expansion, channels, step, False, "relu6"))
            in_channels = channels
    return plan


class MobileNetV2(_MobileNet):
    """MobileNetV2 without its classifier.

    Args:
        stride: output stride.
    """

    def __init__(self, *, stride: int = 16) -> None:
        stem = _conv_norm(3, 32, 3, ABN, stride=_STEM_STRIDE, activation="relu6")
        super().__init__(stem, InvertedResidualV2, _plan_v2(), in_channels=32, stride=stride)


_V3_SMALL = [
    Block(3, 16, 16, 2, True, "relu"),
    Block(3, 72, 24, 2, False, "relu"),
    Block(3, 88, 24, 1, False, "relu"),
    Block(5, 96, 40, 2, True, "hardswish"),
    Block(5, 240, 40, 1, True, "hardswish"),
    Block(5, 240, 40, 1, True, "hardswish"),
    Block(5, 120, 48, 1, True, "hardswish"),
    Block(5, 144, 48, 1, True, "hardswish"),
    Block(5, 288, 96, 2, True, "hardswish"),
    Block(5, 576, 96, 1, True, "hardswish"),
    Block(5, 576, 96, 1, True, "hardswish"),
]
_V3_SMALL_LAST = 576


class MobileNetV3Small(_MobileNet):
    """MobileNetV3-small without its classifier.

    Args:
        stride: output stride.
    """

    def __init__(self, *, stride: int = 16) -> None:
        stem = _conv_norm(3, 16, 3, _norm_v3, stride=_STEM_STRIDE, activation="hardswish")
        super().__init__(stem, InvertedResidualV3, _V3_SMALL, in_channels=16, stride=stride)
        last = _conv_norm(self.channels, _V3_SMALL_LAST, 1, _norm_v3, activation="hardswish")
        self.features.append(last)
        self.channels = _V3_SMALL_LAST
        initialize(last)


def _round_to_8(channels: int) -> int:
    rounded = max(8, (channels + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * channels else rounded + 8


def from_torchvision_name(name: str) -> str | None:
    """Return torchvision's names as they are, without what only its classifier needs."""
    # V2's features.18 is the 1x1 convolution before the classifier; V3-small has no such number
    return None if name.startswith(("classifier.", "features.18.")) else name
