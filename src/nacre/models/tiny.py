"""A small backbone for generated scenes: minutes on a CPU, from random weights.

Two strided convolutions, then two residual blocks

    y = act(norm(conv(act(norm(conv(x))))) + shortcut(x))

of which the second halves the size once more: output stride 8.

The convolutions keep the weights that torch draws. They are smaller by sqrt(6) than those that
keep the variance (`nacre.models.backbone.initialize`); before a normalisation the scale of a
weight does not change the output but divides the gradient, so learning is 6 times as quick.
"""

from __future__ import annotations

from torch import Tensor, nn

from nacre.models.backbone import Backbone
from nacre.models.norm import ABN, NormFactory


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

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first_norm(self.first(x))
        y: Tensor = self.second_norm(self.second(inner), self.shortcut(x))
        return y

    def forward_both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.first_norm(self.first(x))
        return self.second_norm.forward_both(self.second(inner), self.shortcut(x))


class Tiny(Backbone):
    """The backbone of ``nacre demo``.

    Args:
        widths: channels after each of the three halvings of the size.
        norm: makes the normalisation layers.
    """

    stride = 8
    atrous_rates = (1, 2, 4)  # scenes are 64 pixels wide: maps of 8 x 8
    # Generated scenes have no colour that is more frequent than another.
    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)

    def __init__(
        self, *, widths: tuple[int, int, int] = (16, 48, 96), norm: NormFactory = ABN
    ) -> None:
        super().__init__()
        first, second, third = widths
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
