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

from nacre.models.abn import ABN, NormFactory
from nacre.models.backbone import Backbone


def _convolution(inputs: int, outputs: int, kernel: int = 3, stride: int = 1) -> nn.Conv2d:
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=False)


class _Block(nn.Module):
    """A residual block of two 3x3 convolutions."""

    def __init__(self, inputs: int, outputs: int, *, stride: int, norm: NormFactory) -> None:
        super().__init__()
        self.first = _convolution(inputs, outputs, stride=stride)
        self.first_norm = norm(outputs)
        self.second = _convolution(outputs, outputs)
        self.second_norm = norm(outputs)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.shortcut = nn.Sequential(
                _convolution(inputs, outputs, kernel=1, stride=stride),
                norm(outputs, activation="identity"),
            )

    def forward(self, x: Tensor) -> Tensor:
        inner = self.first_norm(self.first(x))
        y: Tensor = self.second_norm(self.second(inner), self.shortcut(x))
        return y


class Tiny(Backbone):
    """The backbone of ``nacre demo``.

    Args:
        widths: channels after each of the three halvings of the size.
        norm: makes the normalisation layers.
    """

    stride = 8
    # Generated scenes have no colour that is more frequent than another.
    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)

    def __init__(
        self, *, widths: tuple[int, int, int] = (16, 48, 96), norm: NormFactory = ABN
    ) -> None:
        super().__init__()
        first, second, third = widths
        self.channels = third
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
