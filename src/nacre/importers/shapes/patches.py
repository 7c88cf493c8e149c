"""The pixels that a shape covers in a picture."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
from PIL import Image

from nacre.data.image_io import MOST_PIXELS
from nacre.importers.problems import Unusable, brief
from nacre.importers.shapes.rasterize import (
    Patch,
    Points,
    empty_patch,
    fill_ellipse,
    fill_region,
    fill_ring,
    rectangle,
    turned,
)
from nacre.importers.shapes.rle import decode_brush, decode_columns, decode_rows
from nacre.importers.shapes.shape import DAMAGED, Kind, Shape


def patch_of(shape: Shape, width: int, height: int) -> Patch:
    """Return the pixels that a shape covers in a picture of this size.

    Raises:
        Unusable: The shape is damaged, or does not belong to a picture of this size.
    """
    try:
        return _PATCHES[shape.kind](shape, width, height)
    except ValueError as error:
        raise Unusable(DAMAGED, str(error)) from error


def _in_pixels(shape: Shape, width: int, height: int) -> tuple[float, ...]:
    """Return the first four numbers in pixels."""
    if not shape.is_relative:
        return shape.numbers[:4]
    x, y, along, across = shape.numbers[:4]
    return x * width, y * height, along * width, across * height


def _rings_patch(shape: Shape, width: int, height: int) -> Patch:
    parts: list[tuple[Points, list[Points]]] = []
    for is_hole, blob in zip(shape.numbers, shape.blobs, strict=True):
        ring = np.frombuffer(blob, np.float64).reshape(-1, 2)
        if shape.is_relative:
            ring = ring * (width, height)
        if is_hole:
            parts[-1][1].append(ring)
        else:
            parts.append((ring, []))
    return fill_region(parts, width, height)


def _box_patch(shape: Shape, width: int, height: int) -> Patch:
    left, top, right, bottom = _in_pixels(shape, width, height)
    degrees, about_corner = shape.numbers[4:]
    if about_corner:
        return fill_ring(
            turned(rectangle(left, top, right, bottom), degrees, (left, top)), width, height
        )
    return fill_ring(rectangle(left, top, right, bottom, degrees), width, height)


def _ellipse_patch(shape: Shape, width: int, height: int) -> Patch:
    x, y, along, across = _in_pixels(shape, width, height)
    return fill_ellipse((x, y), (along, across), shape.numbers[4], width, height)


def _check_size(shape: Shape, width: int, height: int, what: str) -> None:
    if shape.numbers[:2] != (width, height):
        own = " x ".join(f"{number:g}" for number in shape.numbers[:2])
        raise ValueError(f"the {what} is of {own} pixels, not of {width} x {height}")


def _columns_patch(shape: Shape, width: int, height: int) -> Patch:
    _check_size(shape, width, height, "RLE")
    return decode_columns(np.frombuffer(shape.blobs[0], np.int64), width, height)


def _rows_patch(shape: Shape, width: int, height: int) -> Patch:
    left, top, columns_, rows_ = (int(number) for number in shape.numbers)
    if columns_ < 0 or rows_ < 0 or columns_ * rows_ > MOST_PIXELS:
        raise ValueError(f"its box is {columns_} x {rows_} pixels")
    runs = np.frombuffer(shape.blobs[0], np.int64)
    return _clip(decode_rows(runs, left, top, columns_, rows_), width, height)


def _brush_patch(shape: Shape, width: int, height: int) -> Patch:
    _check_size(shape, width, height, "brush")
    return decode_brush(shape.blobs[0], width, height)


def _bitmap_patch(shape: Shape, width: int, height: int) -> Patch:
    left, top, is_whole = shape.numbers
    bits = _decode_bitmap(shape.blobs[0])
    if is_whole and bits.shape != (height, width):
        raise ValueError(f"its bitmap is {bits.shape[1]} x {bits.shape[0]}, not {width} x {height}")
    return _clip(Patch(int(left), int(top), bits), width, height)


def _decode_bitmap(data: bytes) -> Any:
    try:
        with Image.open(io.BytesIO(data), formats=("PNG", "BMP", "TIFF", "WEBP")) as picture:
            if picture.width * picture.height > MOST_PIXELS:
                raise ValueError(f"its bitmap is {picture.width} x {picture.height} pixels")
            if picture.mode in ("RGBA", "LA", "PA") or "transparency" in picture.info:
                return np.asarray(picture.convert("RGBA"))[:, :, 3] > 0
            values = np.asarray(picture)
    except (OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise ValueError(f"its bitmap is not a picture: {brief(str(error))}") from error
    return values.any(axis=2) if values.ndim == 3 else values > 0


def _clip(patch: Patch, width: int, height: int) -> Patch:
    """Cut off what lies outside the picture."""
    rows_, columns_ = patch.bits.shape
    left, top = max(patch.left, 0), max(patch.top, 0)
    right, bottom = min(patch.left + columns_, width), min(patch.top + rows_, height)
    if right <= left or bottom <= top:
        return empty_patch()
    inside = patch.bits[
        top - patch.top : bottom - patch.top, left - patch.left : right - patch.left
    ]
    return Patch(left, top, inside)


_PATCHES: dict[Kind, Callable[[Shape, int, int], Patch]] = {
    "rings": _rings_patch,
    "box": _box_patch,
    "ellipse": _ellipse_patch,
    "columns": _columns_patch,
    "rows": _rows_patch,
    "brush": _brush_patch,
    "bitmap": _bitmap_patch,
}
