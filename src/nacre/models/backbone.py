"""What all backbones have in common."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Sequence

from torch import Tensor, nn

Color = tuple[float, float, float]


class Backbone(nn.Module):
    """A module from normalised pixels N,3,H,W to features N,channels,H/stride,W/stride.

    Attributes:
        channels: of the features.
        stride: input pixels per feature; sizes that it does not divide are rounded up.
        mean: of the pixels that its weights expect, RGB in 0..1.
        std: of the pixels that its weights expect, RGB in 0..1.
        stages: channels and stride of each stage, where `forward_stages` may be decoded.
        atrous_rates: of the head over it, where they are not those of its stride.
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

    def run_stages(
        self, stages: Iterable[Sequence[nn.Module]], x: Tensor
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Pass features through stages of blocks; return what comes out and `forward_stages`'."""
        found = []
        for blocks in stages:
            x = self.run_blocks(blocks[:-1], x)
            x, before = self.end_stage(blocks[-1], x)
            found.append(before)
        return x, tuple(found)

    def end_stage(self, block: nn.Module, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return a block's features, activated and not; here no activation ends a block."""
        x = self.run_blocks([block], x)
        return x, x

    def run_blocks(self, blocks: Iterable[nn.Module], x: Tensor) -> Tensor:
        """Pass features through blocks."""
        for block in blocks:
            x = block(x)
        return x


def split_stages(blocks: Iterable[nn.Module]) -> list[list[nn.Module]]:
    """Cut blocks into stages: a block without a shortcut begins one."""
    stages: list[list[nn.Module]] = []
    for block in blocks:
        if not getattr(block, "shortcut", False):
            stages.append([])
        stages[-1].append(block)
    return stages


def initialize(backbone: nn.Module) -> None:
    """Draw the weights of all convolutions so that the variance stays about the same."""
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels // module.groups * math.prod(module.kernel_size)
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
