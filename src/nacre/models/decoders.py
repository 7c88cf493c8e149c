"""Decoders: from features of the backbone to those that the classifier reads.

aspp, DeepLabv3's and the paper's, reads the last features:

    y = act_norm(concat of a 1x1 and three dilated 3x3 convolutions of x)
    z = 1x1(act_norm(1x1(pool(x))))
    out = act_norm(1x1(y) + z)

light, for small machines, reads several stages and outputs half the backbone's output stride:

    x = act_norm(sum of 1x1(late stages) + 1x1(pool(last stage)))
    x = x + act_norm(1x1(concat of depthwise 3x3 convolutions of x, dilated by 1, 2, 3))
    x = act_norm(up(x) + 1x1(early stage))
    out = x + act_norm(1x1(depthwise 3x3(x)))

The late stages have the backbone's stride. The early stage, which has precise edges, is the last
one with a smaller stride.

stages, without weights, for a linear classifier (the method `ledger`), puts all stages on one grid:

    out = (concat of the stages on the grid and of pool(last stage) - mean) / std

Finer stages are averaged over its cells, coarser ones upsampled bilinearly. Mean and deviation of
each channel are constants that the method computes together with the classifier.

Each decoder has `reads` (the stages of the backbone that it reads; none for the last features) and
the `channels` and `stride` of its output. In training `pool` is the mean over the whole crop. At
test time an image may be larger than the crop: then it is the mean over a window of the crop's size
around each feature, so that the decoder gets the same input as in training.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.backbone import Backbone
from nacre.models.norm import ABN, NormFactory

MAX_LATE = 3
"""The number of late stages that the light decoder reads at most."""
DILATIONS = (1, 2, 3)

DEFAULT_STRIDE = 16
"""The default number of input pixels per point of a grid of stages."""


def default_atrous_rates(stride: int) -> tuple[int, int, int]:
    """Return 6, 12, 18 for output stride 16, and the same reach in pixels for others."""
    first, second, third = (max(1, reach // stride) for reach in (96, 192, 288))
    return first, second, third


class AsppDecoder(nn.Module):
    """Atrous spatial pyramid pooling, as in the paper's network; branches have `width` channels."""

    reads: tuple[int, ...] = ()

    def __init__(
        self, backbone: Backbone, *, width: int, crop: int | None, norm: NormFactory = ABN
    ) -> None:
        super().__init__()
        self.channels, self.stride = width, backbone.stride
        self.pool = window_pool(crop, backbone.stride)
        inputs = backbone.channels
        self.branches = nn.ModuleList([nn.Conv2d(inputs, width, 1, bias=False)])
        for d in backbone.atrous_rates or default_atrous_rates(backbone.stride):
            self.branches.append(nn.Conv2d(inputs, width, 3, padding=d, dilation=d, bias=False))
        self.branches_norm = norm(4 * width)
        self.reduce = nn.Conv2d(4 * width, width, 1, bias=False)
        self.pooled = nn.Conv2d(inputs, width, 1, bias=False)
        self.pooled_norm = norm(width)
        self.pooled_reduce = nn.Conv2d(width, width, 1, bias=False)
        self.norm = norm(width)
        _initialize(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the same size."""
        y = self.branches_norm(torch.cat([branch(x) for branch in self.branches], dim=1))
        z = self.pooled_reduce(self.pooled_norm(self.pooled(self.pool(x))))
        out: Tensor = self.norm(self.reduce(y) + z)
        return out


class LightDecoder(nn.Module):
    """A decoder from an early and several late stages to features at the early stage's stride."""

    def __init__(
        self, backbone: Backbone, *, width: int, crop: int | None, norm: NormFactory = ABN
    ) -> None:
        super().__init__()
        strides = [stride for _, stride in backbone.stages]
        early = [i for i, stride in enumerate(strides) if stride < backbone.stride]
        late = [i for i, stride in enumerate(strides) if stride == backbone.stride][-MAX_LATE:]
        if not early or not late:
            raise NacreError(
                f"model.decoder=light needs stages of two strides, which {type(backbone).__name__} "
                f"does not have at output stride {backbone.stride}: use model.decoder=aspp"
            )
        self.reads = (early[-1], *late)
        self.stride = strides[early[-1]]
        self.channels = width
        fine, *coarse = (backbone.stages[i][0] for i in self.reads)
        self.laterals = nn.ModuleList(
            nn.Conv2d(channels, width, 1, bias=False) for channels in coarse
        )
        self.pool = window_pool(crop, backbone.stride)
        self.pooled = nn.Conv2d(coarse[-1], width, 1, bias=False)
        self.lateral_norm = norm(width)
        self.dilated = nn.ModuleList(_depthwise(width, dilation) for dilation in DILATIONS)
        self.reduce = nn.Conv2d(len(DILATIONS) * width, width, 1, bias=False)
        self.reduce_norm = norm(width)
        self.early = nn.Conv2d(fine, width, 1, bias=False)
        self.early_norm = norm(width)
        self.refine = nn.Sequential(_depthwise(width, 1), nn.Conv2d(width, width, 1, bias=False))
        self.norm = norm(width)
        _initialize(self)

    def forward(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Return features of the early stage's size; `stages` has the early one first."""
        early, *late = stages
        x = self.pooled(self.pool(late[-1]))
        for lateral, stage in zip(self.laterals, late, strict=True):
            x = x + lateral(stage)
        x = self.lateral_norm(x)
        x = x + self.reduce_norm(self.reduce(torch.cat([conv(x) for conv in self.dilated], dim=1)))
        size = (early.shape[-2], early.shape[-1])
        x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        x = self.early_norm(x + self.early(early))
        out: Tensor = x + self.norm(self.refine(x))
        return out


def _depthwise(width: int, dilation: int) -> nn.Conv2d:
    return nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, groups=width, bias=False)


def _initialize(decoder: nn.Module) -> None:
    """Draw the weights of all convolutions of a decoder."""
    gain = nn.init.calculate_gain("leaky_relu", 0.01)
    for module in decoder.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.xavier_normal_(module.weight, gain)


class WindowPool(nn.Module):
    """The mean over a crop in training, and over a window of its size around each feature in eval.

    Args:
        window: features per side of the training crop; None always pools over the whole image.

    Attributes:
        any_size: use operations that are right for all sizes, for a graph that is traced once.
    """

    any_size = False

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        """Return N,K,1,1, or N,K,h,w in eval."""
        if self.training or self.window is None:
            return x.mean((2, 3), keepdim=True)
        if self.any_size:
            # A graph that is traced once cannot compare the sizes of window and image. The mean
            # along a side is a product with a matrix that is computed from them.
            rows, columns = (_window_means(size, self.window, x) for size in x.shape[-2:])
            return rows @ x @ columns.T
        height, width = (min(self.window, size) for size in x.shape[-2:])
        pooled = F.avg_pool2d(x, (height, width), stride=1)
        # An even window has no middle: its mean belongs to the feature left of and above it.
        top, left = (height - 1) // 2, (width - 1) // 2
        padding = (left, width - 1 - left, top, height - 1 - top)
        return F.pad(pooled, padding, mode="replicate")


def window_pool(crop: int | None, stride: int) -> WindowPool:
    """Return the pooling for features with a stride and training crops of a side in pixels."""
    return WindowPool(None if crop is None else -(-crop // stride))


def _window_means(size: int, window: int, like: Tensor) -> Tensor:
    """Return the matrix with 1 / width inside the window around each feature, a row for each."""
    positions = torch.arange(size, device=like.device)
    last = positions.max()
    width = (last + 1).clamp(max=window)
    starts = (positions - (width - 1) // 2).clamp(min=0).minimum(last + 1 - width)
    offsets = positions[None] - starts[:, None]
    return ((offsets >= 0) & (offsets < width)).to(like.dtype) / width.to(like.dtype)


class StageGrid(nn.Module):
    """A decoder without weights: standardized features of all stages on one grid.

    Its output has the channels of the stages, and then those of the last stage's mean. `stages` are
    their channels and strides.
    """

    mean: Tensor
    std: Tensor

    def __init__(self, stages: Sequence[tuple[int, int]], *, stride: int, crop: int | None) -> None:
        super().__init__()
        widths = [width for width, _ in stages]
        self.strides = [stride for _, stride in stages]
        if not any(stride % s == 0 for s in self.strides):
            raise NacreError(
                f"a grid of stages needs a stage whose stride divides {stride}, but the strides "
                f"are {', '.join(map(str, self.strides)) or 'none'}: choose another backbone"
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
        """Return the stages and the mean of the last one on the grid, not standardized."""
        maps = self.lay_out(stages)
        (pooled,) = self._on_grid([self.pool(stages[-1])], [self.strides[-1]], maps)
        return torch.cat([maps, pooled.expand(-1, -1, *maps.shape[-2:])], dim=1)

    def lay_out(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Return the stages on the grid, N,map_channels,h,w."""
        pairs = zip(stages, self.strides, strict=True)
        finest, stride = next(pair for pair in pairs if self.stride % pair[1] == 0)
        like = _average(finest, self.stride // stride)
        return torch.cat(self._on_grid(list(stages), self.strides, like), dim=1)

    def parts(self, stages: tuple[Tensor, ...]) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return the parts of `join` with as few points as possible, for `PixelSums`.

        Returns:
            Maps on the grid, N,C,h,w; features of whole images, N,M; and coarser maps before they
            are upsampled to the grid, if they have one size. Their channels follow the others'.
        """
        if not self.covers(stages):
            joined = self.join(stages)
            return joined, joined.new_zeros(len(joined), 0), None
        rows = self.pool(stages[-1])[..., 0, 0]
        count = sum(self.stride % stride == 0 for stride in self.strides)
        finer, coarser, coarse = self.strides[:count], self.strides[count:], stages[count:]
        # `PixelSums` needs that at most three points of a coarser stage contribute to a pixel.
        if min(coarser, default=0) <= self.stride or len({x.shape[-2:] for x in coarse}) > 1:
            return self.lay_out(stages), rows, None
        maps = self._on_grid(list(stages[:count]), finer, stages[0])
        return torch.cat(maps, dim=1), rows, torch.cat(coarse, dim=1)

    def covers(self, stages: tuple[Tensor, ...]) -> bool:
        """Return True if the mean of the last stage is the same for the whole image."""
        window = self.pool.window
        return window is None or max(stages[-1].shape[-2:]) <= window

    def standardize(self, x: Tensor) -> Tensor:
        """Return the result of `join`, standardized."""
        return (x - self.mean[:, None, None]) / self.std[:, None, None]

    def _on_grid(self, maps: list[Tensor], strides: list[int], like: Tensor) -> list[Tensor]:
        """Return maps of strides on the grid, which has the size of the map `like`."""
        size, result = (like.shape[-2], like.shape[-1]), []
        for x, stride in zip(maps, strides, strict=True):
            if self.stride % stride == 0:
                x = _average(x, self.stride // stride)
            else:
                x = F.interpolate(x, size, mode="bilinear", align_corners=False)
            result.append(x)
        return result


def _average(x: Tensor, cells: int) -> Tensor:
    """Return the means over squares with a number of cells per side, or fewer at the edge."""
    if cells == 1:
        return x
    return F.avg_pool2d(x, cells, ceil_mode=True, count_include_pad=False)
