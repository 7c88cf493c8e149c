"""Masks: shapes painted over each other, labels counted, PNG files written."""

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.importers.catalog import Order
from nacre.importers.shapes.patches import patch_of
from nacre.importers.shapes.shape import Shape
from nacre.importers.writing.classes import Labels

LabelMap = npt.NDArray[Any]


def paint_shapes(
    shapes: Iterable[Shape],
    size: tuple[int, int],
    labels: Labels,
    *,
    order: Order = "list",
    is_layered: bool = False,
) -> tuple[LabelMap, int]:
    """Paint shapes over each other: higher layers on top, then the later or the smaller ones.

    Every pixel remembers how high it was painted, so that shapes need not be sorted, and only one
    of them is in memory at a time.

    Args:
        shapes: What to paint.
        size: Width and height of the picture.
        labels: Which value to paint for a class.
        order: Which of two shapes of a layer lies on top.
        is_layered: Whether there is more than one layer.

    Returns:
        The labels, height x width, and how many shapes cover no pixel.
    """
    width, height = size
    canvas = np.full((height, width), labels.by_class[0], np.uint16 if labels.is_wide else np.uint8)
    levels = _empty_levels(size, is_layered) if order == "area" or is_layered else None
    uncovered = 0
    for shape in shapes:
        patch = patch_of(shape, width, height)
        bits, area = patch.bits, int(np.count_nonzero(patch.bits))
        if area == 0:
            uncovered += 1
            continue
        rows, columns = bits.shape
        box = (slice(patch.top, patch.top + rows), slice(patch.left, patch.left + columns))
        if levels is not None:
            level = (shape.layer << 32) - (area if order == "area" else 0)
            bits = bits & (levels[box] <= level)
            levels[box][bits] = level
        canvas[box][bits] = labels.by_class[shape.class_id]
    return canvas, uncovered


def _empty_levels(size: tuple[int, int], is_layered: bool) -> npt.NDArray[Any]:
    """Return how high each pixel was painted: below everything."""
    kind = np.int64 if is_layered else np.int32
    return np.full(size[::-1], np.iinfo(kind).min, kind)


def save_mask(path: Path, mask: LabelMap, labels: Labels) -> None:
    """Write a palette PNG, or a grey one of 16 bits where labels need them."""
    image = Image.fromarray(np.ascontiguousarray(mask))
    if not labels.is_wide:
        palette = np.zeros((256, 3), np.uint8)
        palette[: len(labels.colors)] = labels.colors
        palette[labels.ignored] = 255
        image.putpalette(palette.tobytes())
    image.save(path, format="PNG")
