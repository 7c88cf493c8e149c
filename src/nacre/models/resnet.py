"""Residual networks: ResNet-18, 34, 50 and 101 at output stride 8, 16 or 32, and a small one.

Modules have torchvision's names, so that public weights load. Below stride 32 the last stages keep
their resolution and dilate their 3x3 convolutions instead. As in the paper's network, all blocks of
such a stage are dilated, including the first.

Norms contain the activation: the last norm of a block adds the shortcut before it activates.
"""

from __future__ import annotations

from abc import abstractmethod
from typing import Literal

from torch import Tensor, nn

from nacre.models.backbone import IMAGENET_MEAN, IMAGENET_STD, Backbone, initialize
from nacre.models.norm import ABN, NormFactory

Depth = Literal[18, 34, 50, 101]

_BLOCKS: dict[Depth, tuple[int, int, int, int]] = {
    18: (2, 2, 2, 2),
    34: (3, 4, 6, 3),
    50: (3, 4, 6, 3),
    101: (3, 4, 23, 3),
}
# (stride, dilation) of the four stages
_STAGES: dict[int, tuple[tuple[int, int], ...]] = {
    8: ((1, 1), (2, 1), (1, 2), (1, 4)),
    16: ((1, 1), (2, 1), (2, 1), (1, 2)),
    32: ((1, 1), (2, 1), (2, 1), (2, 1)),
}


def _conv3x3(in_channels: int, out_channels: int, stride: int, dilation: int) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 3, stride, dilation, dilation, bias=False)


def _conv1x1(in_channels: int, out_channels: int, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, 1, stride, bias=False)


def _downsample(
    in_channels: int, out_channels: int, stride: int, dilation: int, norm: NormFactory
) -> nn.Sequential | None:
    if stride == 1 and in_channels == out_channels:
        return None
    return nn.Sequential(
        _conv1x1(in_channels, out_channels, stride), norm(out_channels, activation="identity")
    )


class ResidualBlock(nn.Module):
    """A block whose last norm adds the shortcut before it activates."""

    @abstractmethod
    def summands(self, x: Tensor) -> tuple[ABN, Tensor, Tensor]:
        """Return the last norm, its input, and the shortcut."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of the last norm's output and the shortcut."""
        norm, y, shortcut = self.summands(x)
        out: Tensor = norm(y, shortcut)
        return out

    def forward_both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum after and before its activation."""
        norm, y, shortcut = self.summands(x)
        return norm.forward_both(y, shortcut)


class BasicBlock(ResidualBlock):
    """A block of two 3x3 convolutions and a shortcut (ResNet-18 and 34)."""

    expansion = 1

    def __init__(
        self, in_channels: int, width: int, stride: int, dilation: int, norm: NormFactory
    ) -> None:
        super().__init__()
        self.conv1 = _conv3x3(in_channels, width, stride, dilation)
        self.bn1 = norm(width)
        self.conv2 = _conv3x3(width, width, 1, dilation)
        self.bn2 = norm(width)
        self.downsample = _downsample(in_channels, width, stride, dilation, norm)

    def summands(self, x: Tensor) -> tuple[ABN, Tensor, Tensor]:
        """Return the last norm, its input, and the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.bn2, self.conv2(self.bn1(self.conv1(x))), shortcut


class Bottleneck(ResidualBlock):
    """A block of 1x1, 3x3 and 1x1 convolutions and a shortcut (ResNet-50 and 101)."""

    expansion = 4

    def __init__(
        self, in_channels: int, width: int, stride: int, dilation: int, norm: NormFactory
    ) -> None:
        super().__init__()
        out_channels = width * self.expansion
        self.conv1 = _conv1x1(in_channels, width)
        self.bn1 = norm(width)
        self.conv2 = _conv3x3(width, width, stride, dilation)
        self.bn2 = norm(width)
        self.conv3 = _conv1x1(width, out_channels)
        self.bn3 = norm(out_channels)
        self.downsample = _downsample(in_channels, out_channels, stride, dilation, norm)

    def summands(self, x: Tensor) -> tuple[ABN, Tensor, Tensor]:
        """Return the last norm, its input, and the shortcut."""
        shortcut = x if self.downsample is None else self.downsample(x)
        return self.bn3, self.conv3(self.bn2(self.conv2(self.bn1(self.conv1(x))))), shortcut


class ResNet(Backbone):
    """A residual network without its classifier; only tests change `width`."""

    mean = IMAGENET_MEAN
    std = IMAGENET_STD
    layer1: nn.Sequential
    layer2: nn.Sequential
    layer3: nn.Sequential
    layer4: nn.Sequential

    def __init__(
        self, depth: Depth, *, stride: int = 16, norm: NormFactory = ABN, width: int = 64
    ) -> None:
        super().__init__()
        assert stride in _STAGES, stride
        self.stride = stride
        block = Bottleneck if depth >= 50 else BasicBlock
        self.conv1 = nn.Conv2d(3, width, 7, 2, 3, bias=False)
        self.bn1 = norm(width)
        self.maxpool = nn.MaxPool2d(3, 2, 1)
        in_channels, stages = width, []
        for number, (blocks, (step, dilation)) in enumerate(
            zip(_BLOCKS[depth], _STAGES[stride], strict=True)
        ):
            stage = nn.Sequential()
            for index in range(blocks):
                first = step if index == 0 else 1
                stage.append(block(in_channels, width << number, first, dilation, norm))
                in_channels = (width << number) * block.expansion
            self.add_module(f"layer{number + 1}", stage)
            stages.append((in_channels, min(4 << number, stride)))
        self.channels, self.stages = in_channels, tuple(stages)
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of normalized pixels."""
        x = self.maxpool(self.bn1(self.conv1(x)))
        for stage in self._stages():
            x = stage(x)
        return x

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the sums at the end of the four stages."""
        x, sums = self.maxpool(self.bn1(self.conv1(x))), []
        for stage in self._stages():
            x = stage[:-1](x)
            last = stage[-1]
            assert isinstance(last, ResidualBlock)
            x, before = last.forward_both(x)
            sums.append(before)
        return x, tuple(sums)

    def _stages(self) -> list[nn.Sequential]:
        return [self.layer1, self.layer2, self.layer3, self.layer4]


class Tiny(Backbone):
    """A small backbone for generated scenes, which learns on a CPU in minutes.

    Two strided convolutions and two residual blocks

        y = act(norm(conv(act(norm(conv(x))))) + shortcut(x))

    of which the second halves the size once more, so that the output stride is 8.

    The convolutions keep torch's default weights, which are smaller by sqrt(6) than those of
    `initialize`. Before a normalization the scale of a weight does not change the output but
    divides the gradient, so learning is 6 times as fast.
    """

    stride = 8
    atrous_rates = (1, 2, 4)  # scenes are 64 pixels wide: maps of 8 x 8
    # In generated scenes no color is more frequent than another.
    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)

    def __init__(self, *, norm: NormFactory = ABN) -> None:
        super().__init__()
        first, second, third = 16, 48, 96
        self.channels = third
        self.stages = ((second, 4), (third, 8))
        self.stem = nn.Sequential(
            _conv3x3(3, first, 2, 1),
            norm(first),
            _conv3x3(first, second, 2, 1),
            norm(second),
        )
        self.fine = BasicBlock(second, second, 1, 1, norm)
        self.coarse = BasicBlock(second, third, 2, 1, norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return features at an eighth of the size."""
        y: Tensor = self.coarse(self.fine(self.stem(x)))
        return y

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the sums at the end of the two residual blocks."""
        fine, before_fine = self.fine.forward_both(self.stem(x))
        coarse, before_coarse = self.coarse.forward_both(fine)
        return coarse, (before_fine, before_coarse)
