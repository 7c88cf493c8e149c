"""The base of all backbones, and the smallest of them."""

from __future__ import annotations

import math
from abc import abstractmethod

from torch import Tensor, nn

from nacre.models.norm import ABN, NormFactory

Color = tuple[float, float, float]


class Backbone(nn.Module):
    """A module from normalized pixels N,3,H,W to features N,channels,H/stride,W/stride.

    Attributes:
        channels: of the features.
        stride: input pixels per feature; sizes that it does not divide are rounded up.
        mean: of the pixels that its weights expect, RGB in 0..1.
        std: of the pixels that its weights expect, RGB in 0..1.
        stages: channels and stride of each stage, where `forward_stages` may be decoded.
        atrous_rates: of the decoder over it, where they are not those of its stride.
    """

    channels: int
    stride: int
    mean: Color
    std: Color
    stages: tuple[tuple[int, int], ...] = ()
    atrous_rates: tuple[int, int, int] | None = None

    @abstractmethod
    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and each stage's own before its last activation."""


def initialize(backbone: nn.Module) -> None:
    """Draw the weights of all convolutions so that the variance stays about the same."""
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels // module.groups * math.prod(module.kernel_size)
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))


def _convolution(
    in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1
) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


class _Block(nn.Module):
    """A residual block of two 3x3 convolutions."""

    def __init__(
        self, in_channels: int, out_channels: int, *, stride: int, norm: NormFactory
    ) -> None:
        super().__init__()
        self.first = _convolution(in_channels, out_channels, stride=stride)
        self.first_norm = norm(out_channels)
        self.second = _convolution(out_channels, out_channels)
        self.second_norm = norm(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                _convolution(in_channels, out_channels, kernel=1, stride=stride),
                norm(out_channels, activation="identity"),
            )

    def _summands(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.second(self.first_norm(self.first(x))), self.shortcut(x)

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second_norm(*self._summands(x))
        return y

    def forward_both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.second_norm.forward_both(*self._summands(x))


class Tiny(Backbone):
    """A small backbone for generated scenes: minutes on a CPU, from random weights.

    Two strided convolutions, then two residual blocks

        y = act(norm(conv(act(norm(conv(x))))) + shortcut(x))

    of which the second halves the size once more: output stride 8.

    The convolutions keep the weights that torch draws. They are smaller by sqrt(6) than those that
    keep the variance (`initialize`); before a normalization the scale of a weight does not change
    the output but divides the gradient, so learning is 6 times as quick.

    """

    stride = 8
    atrous_rates = (1, 2, 4)  # scenes are 64 pixels wide: maps of 8 x 8
    # Generated scenes have no color that is more frequent than another.
    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)

    def __init__(self, *, norm: NormFactory = ABN) -> None:
        super().__init__()
        first, second, third = 16, 48, 96
        self.channels = third
        self.stages = ((second, 4), (third, 8))
        self.stem = nn.Sequential(
            _convolution(3, first, stride=2),
            norm(first),
            _convolution(first, second, stride=2),
            norm(second),
        )
        self.fine = _Block(second, second, stride=1, norm=norm)
        self.coarse = _Block(second, third, stride=2, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return features at an eighth of the size."""
        y: Tensor = self.coarse(self.fine(self.stem(x)))
        return y

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the sums that end the two residual blocks."""
        fine, before_fine = self.fine.forward_both(self.stem(x))
        coarse, before_coarse = self.coarse.forward_both(fine)
        return coarse, (before_fine, before_coarse)
