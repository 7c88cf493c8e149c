"""EfficientNet-Lite 1 and 2 at output stride 8, 16 or 32: Lite0 deeper and wider.

Repeats of the inner stages grow by the depth's factor, rounded up; channels by the width's, rounded
to multiples of 8. The stem is the same in all of them, and so are blocks, padding and pixels
(`nacre.models.lite0`).
"""

from __future__ import annotations

import math
from typing import Literal

from torch import Tensor, nn

from nacre.models.backbone import Backbone, initialize, split_stages
from nacre.models.dilation import dilate
from nacre.models.lite0 import InvertedResidual, SameConv2d, _norm

Size = Literal[0, 1, 2]

# per stage of Lite0: blocks, kernel, stride, expansion, output channels
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


class Lite(Backbone):
    """EfficientNet-Lite without its classifier.

    Args:
        size: which of the family.
        stride: output stride.
    """

    mean = (127 / 255, 127 / 255, 127 / 255)
    std = (128 / 255, 128 / 255, 128 / 255)

    def __init__(self, size: Size, *, stride: int = 16) -> None:
        super().__init__()
        assert stride in (8, 16, 32), stride
        self.stride = stride
        self.conv_stem = SameConv2d(3, _STEM, 3, 2, bias=False)
        self.bn0 = _norm(_STEM)
        self.blocks = nn.Sequential(*_blocks(size, stride))
        self.channels = _round_channels(_STAGES[-1][-1], _FACTORS[size][0])
        initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of normalised pixels."""
        return self.run_blocks(self.blocks, self.bn0(self.conv_stem(x)))

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and those that end the seven stages."""
        return self.run_stages(split_stages(self.blocks), self.bn0(self.conv_stem(x)))


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
