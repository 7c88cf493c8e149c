"""A decoder without weights: all stages of a backbone on one grid, for a linear classifier.

    x = (concat of the stages on the grid and of pool(last stage) - mean) / std

Finer stages are averaged over the cells of the grid, coarser ones are upsampled bilinearly; `pool`
is that of `nacre.models.decoders`. Mean and deviation of each channel are constants that the method
`ledger` solves for, together with the classifier.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.decoders import window_pool

DEFAULT_STRIDE = 16


class StageGrid(nn.Module):
    """Standardized features of all stages of a backbone.

    Args:
        stages: channels and stride of each stage of a backbone.
        stride: input pixels per point of the grid.
        crop: side of the training crops; None always pools over the whole image.

    Attributes:
        reads: which stages `forward` takes: all.
        channels: of the output; those of the stages, then those of the last stage's mean.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, stages: Sequence[tuple[int, int]], *, stride: int, crop: int | None) -> None:
        super().__init__()
        widths = [width for width, _ in stages]
        self.strides = [stride for _, stride in stages]
        if not self.strides or min(self.strides) > stride:
            raise NacreError(
                f"a grid of stages needs one of stride {stride} or less, and the backbone's have "
                f"{', '.join(map(str, self.strides)) or 'none'}; choose another backbone"
            )
        self.reads = tuple(range(len(widths)))
        self.stride = stride
        self.map_channels = sum(widths)
        self.channels = sum(widths) + widths[-1]
        self.pool = window_pool(crop, self.strides[-1])
        self.register_buffer("mean", torch.zeros(self.channels))
        self.register_buffer("std", torch.ones(self.channels))

    def forward(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Return the standardized features, N,channels,h,w."""
        return self.standardize(self.join(stages))

    def join(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Return the stages and the mean of the last one on the grid, as they are."""
        maps = self.lay_out(stages)
        (pooled,) = self._on_grid([self.pool(stages[-1])], [self.strides[-1]], maps)
        return torch.cat([maps, pooled.expand(-1, -1, *maps.shape[-2:])], dim=1)

    def lay_out(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Return the stages on the grid, N,map_channels,h,w."""
        pairs = zip(stages, self.strides, strict=True)
        finest, stride = next(pair for pair in pairs if self.stride % pair[1] == 0)
        like = _average(finest, self.stride // stride)
        return torch.cat(self._on_grid(list(stages), self.strides, like), dim=1)

    def covers(self, stages: tuple[Tensor, ...]) -> bool:
        """Return whether the mean of the last stage is one for the whole image."""
        window = self.pool.window
        return window is None or max(stages[-1].shape[-2:]) <= window

    def standardize(self, x: Tensor) -> Tensor:
        """Return joined features with the constants taken out."""
        return (x - self.mean[:, None, None]) / self.std[:, None, None]

    def _on_grid(self, maps: list[Tensor], strides: list[int], like: Tensor) -> list[Tensor]:
        size, found = (like.shape[-2], like.shape[-1]), []
        for one, stride in zip(maps, strides, strict=True):
            if self.stride % stride == 0:
                one = _average(one, self.stride // stride)
            else:
                one = F.interpolate(one, size, mode="bilinear", align_corners=False)
            found.append(one)
        return found


def _average(x: Tensor, cells: int) -> Tensor:
    """Return the means of squares of so many cells a side; those at the edge may be smaller."""
    if cells == 1:
        return x
    return F.avg_pool2d(x, cells, ceil_mode=True, count_include_pad=False)
