"""From a network's low-resolution scores to the class of each pixel, a few rows at a time.

The class of a pixel is the channel with the greatest upsampled score. With strips
(`nacre.losses.strips`) the memory does not depend on classes times pixels.

Edge-aware upsampling is joint bilateral (Kopf et al. 2007): the score of a pixel is a mean over the
nine cells around it, weighted by their distance and by the difference between the color of the
pixel and the mean color of the cell:

    w(p, j) ~ exp(-|p - j|^2 / (2 d^2) - |color(p) - color(j)|^2 / (2 c^2)),  d = 1/2 cell, c = 0.1
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product

import torch
from torch import Tensor

from nacre.labels.channels import target_dtype
from nacre.losses.reference import at_least_float32, upsample
from nacre.losses.strips import Strip, StripUpsampler, first_channel

DISTANCE_STD_CELLS = 0.5
"""Standard deviation of the distance between a pixel and the center of a cell, in cells."""

COLOR_STD = 0.1
"""Standard deviation of a pixel's color from the mean of a cell, for RGB in 0..1."""

_STRIP_BYTES = 16 << 20

Guide = Callable[[slice], Tensor]
"""Returns rows of images, N,3,rows,W in 0..255."""


@dataclass(frozen=True)
class Maps:
    """Low-resolution scores of images.

    Attributes:
        scores: N,C,h,w.
        inside: The rows and columns that the images cover; the rest is padding.
        colors: The mean color of each cell, N,3,h,w in 0..255, for edge-aware upsampling.
    """

    scores: Tensor
    inside: tuple[float, float]
    colors: Tensor | None = None


def whole_maps(scores: Tensor) -> Maps:
    """Return scores without padding as maps."""
    return Maps(scores, (float(scores.shape[-2]), float(scores.shape[-1])))


def class_type(channels: int) -> torch.dtype:
    """Return the type of class maps with a number of channels; targets have the same."""
    dtype: torch.dtype = getattr(torch, target_dtype(channels))
    return dtype


@torch.no_grad()
def upsample_maps(maps: Maps, size: tuple[int, int], guide: Guide | None = None) -> Tensor:
    """Return the scores of all pixels, N,C,H,W.

    Args:
        maps: The low-resolution scores.
        size: Height and width.
        guide: The images, whose edges the scores follow; None upsamples bilinearly.
    """
    scores = at_least_float32(maps.scores)
    if guide is not None:
        return torch.cat([part for _, part in _edge_aware_strips(maps, size, guide)], 2)
    if maps.inside == whole_maps(maps.scores).inside:
        return upsample(scores, size)
    upsampler = StripUpsampler(scores, size, maps.inside)
    # Autocast would compute the matrix products in half precision.
    with torch.autocast(scores.device.type, enabled=False):
        return upsampler.row_weights @ scores @ upsampler.column_weights.t()


@torch.no_grad()
def predict_classes(maps: Maps, size: tuple[int, int], guide: Guide | None = None) -> Tensor:
    """Return `upsample_maps(maps, size, guide).argmax(1)` without the upsampled scores, N,H,W.

    If two upsampled scores only differ by rounding, either channel may be returned.
    """
    images, channels = maps.scores.shape[:2]
    device = maps.scores.device
    classes = torch.empty(images, *size, dtype=class_type(channels), device=device)
    for strip, lines in class_strips(maps, size, guide):
        strip.put(lines, classes)
    return classes


@torch.no_grad()
def class_strips(
    maps: Maps, size: tuple[int, int], guide: Guide | None = None
) -> Iterator[tuple[Strip, Tensor]]:
    """Yield strips of images, and the channels of their pixels as lines L,W."""
    every = slice(0, len(maps.scores))
    if guide is not None:
        for rows, scores in _edge_aware_strips(maps, size, guide):
            yield Strip(every, rows), scores.argmax(1).transpose(0, 1).flatten(0, 1)
        return
    scores = at_least_float32(maps.scores.detach())
    upsampler = StripUpsampler(scores, size, maps.inside)
    for strip in upsampler.strips():
        # Autocast would compute the matrix products in half precision.
        with torch.autocast(scores.device.type, enabled=False):
            lines = upsampler.lines(strip)
            channels = first_channel(lines.eq_(lines.amax(1, keepdim=True)))
        yield strip, channels


def _edge_aware_strips(
    maps: Maps, size: tuple[int, int], guide: Guide
) -> Iterator[tuple[slice, Tensor]]:
    """Yield rows of images and their scores N,C,rows,W."""
    assert maps.colors is not None
    scores, colors = at_least_float32(maps.scores), maps.colors / 255
    (row_cells, row_weights), (cells, weights) = (
        cells_around(scores.shape[2 + i], size[i], maps.inside[i] / size[i], scores.device)
        for i in range(2)
    )
    step = max(1, _STRIP_BYTES // (4 * scores.shape[0] * max(scores.shape[1], 9) * size[1]))
    for top in range(0, size[0], step):
        rows = slice(top, min(top + step, size[0]))
        yield (
            rows,
            upsample_along_edges(
                scores,
                colors,
                guide(rows).float() / 255,
                (row_cells[:, rows], cells),
                (row_weights[:, rows], weights),
            ),
        )


def upsample_along_edges(
    scores: Tensor,
    colors: Tensor,
    pixels: Tensor,
    cells: Sequence[Tensor],
    nearness: Sequence[Tensor],
) -> Tensor:
    """Return the scores of pixels, N,C,H,W: weighted means of the nine cells around each.

    Args:
        scores: The scores of the cells, N,C,h,w.
        colors: The colors of the cells, N,3,h,w in 0..1.
        pixels: The colors of the pixels, N,3,H,W in 0..1.
        cells: The rows, then the columns, of the cells around each pixel (`cells_around`).
        nearness: The logarithms of their distance weights.
    """
    (rows, columns), (down, across) = cells, nearness
    around = list(product(range(3), range(3)))
    nearest = []
    for i, j in around:
        far = (pixels - _pick(colors, rows[i], columns[j])).square().sum(1)
        nearest.append(down[i, :, None] + across[j] - far / (2 * COLOR_STD * COLOR_STD))
    shares = torch.stack(nearest).softmax(0)  # never 0 / 0
    total = torch.zeros((), device=scores.device)
    for share, (i, j) in zip(shares, around, strict=True):
        total = total + share[:, None] * _pick(scores, rows[i], columns[j])
    return total


def cells_around(
    inputs: int, outputs: int, scale: float | Tensor, device: torch.device | None = None
) -> tuple[Tensor, Tensor]:
    """Return the three cells around each pixel of a side, and their log distance weights.

    Args:
        inputs: Number of cells.
        outputs: Number of pixels.
        scale: Cells per pixel.
        device: The device of the result.
    """
    place = (torch.arange(outputs, device=device) + 0.5) * scale
    around = place.floor().long() + torch.tensor([[-1], [0], [1]], device=device)
    weights = -(place - (around + 0.5)).square() / (2 * DISTANCE_STD_CELLS * DISTANCE_STD_CELLS)
    return around.clamp(0, inputs - 1), weights


def _pick(maps: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    return maps[:, :, rows][:, :, :, columns]
