"""The shapes of annotations, whatever tool drew them, and the pixels that each covers.

An area knows its numbers and fills itself into an image of a given size; what is damaged, or does
not belong to an image of that size, is a ``ValueError`` then. Coordinates of a relative area are
shares of the width and height.
"""

import binascii
import io
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple, Protocol

import numpy as np
from PIL import Image as PillowImage

from nacre.data.image_io import MOST_PIXELS
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.rasterize import (
    LARGEST_COORDINATE,
    Patch,
    Points,
    empty_patch,
    fill_ellipse,
    fill_region,
    fill_ring,
    rectangle,
    turned,
)
from nacre.importers.rle import Runs, decode_brush, decode_columns, decode_rows

Four = tuple[float, float, float, float]


class Area(Protocol):
    """What a shape covers."""

    @property
    def is_relative(self) -> bool:
        """Whether its coordinates are shares of the width and height."""

    def fill(self, width: int, height: int) -> Patch:
        """Return the pixels that it covers in an image of this size."""


class Shape(NamedTuple):
    """One annotated shape: its class number, what it covers, and its layer (higher is on top)."""

    class_id: int
    area: Area
    layer: int = 0

    def patch(self, width: int, height: int) -> Patch:
        """Return the pixels that it covers in an image of this size.

        Raises:
            Unusable: The shape is damaged, or does not belong to an image of this size.
        """
        try:
            return self.area.fill(width, height)
        except ValueError as error:
            raise Unusable(DAMAGED, str(error)) from error


@dataclass(frozen=True, slots=True)
class Outline:
    """Parts that are united, each an outer ring with its holes."""

    parts: tuple[tuple[Points, tuple[Points, ...]], ...]
    is_relative: bool = False

    def fill(self, width: int, height: int) -> Patch:
        """Fill the rings."""
        scale = (width, height) if self.is_relative else (1, 1)
        parts = [(ring * scale, [hole * scale for hole in holes]) for ring, holes in self.parts]
        return fill_region(parts, width, height)


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangle (left, top, right, bottom), turned about its center or first corner."""

    corners: Four
    degrees: float = 0.0
    about_corner: bool = False
    is_relative: bool = False

    def fill(self, width: int, height: int) -> Patch:
        """Fill the rectangle."""
        left, top, right, bottom = _in_pixels(self.corners, self.is_relative, width, height)
        if self.about_corner:
            ring = turned(rectangle(left, top, right, bottom), self.degrees, (left, top))
        else:
            ring = rectangle(left, top, right, bottom, self.degrees)
        return fill_ring(ring, width, height)


@dataclass(frozen=True, slots=True)
class Ellipse:
    """An ellipse (x, y, radius along, radius across), turned about its center."""

    center_and_radii: Four
    degrees: float = 0.0
    is_relative: bool = False

    def fill(self, width: int, height: int) -> Patch:
        """Fill the ellipse."""
        x, y, along, across = _in_pixels(self.center_and_radii, self.is_relative, width, height)
        return fill_ellipse((x, y), (along, across), self.degrees, width, height)


@dataclass(frozen=True, slots=True)
class ColumnRuns:
    """Runs down the columns of an image of a size (COCO)."""

    is_relative: ClassVar[bool] = False
    runs: Runs
    size: tuple[int, int]

    def fill(self, width: int, height: int) -> Patch:
        """Decode the runs."""
        _check_size(self.size, width, height, "RLE")
        return decode_columns(self.runs, width, height)


@dataclass(frozen=True, slots=True)
class RowRuns:
    """Runs along the rows of a box: left, top, width, height (CVAT)."""

    is_relative: ClassVar[bool] = False
    runs: Runs
    place: tuple[int, int, int, int]

    def fill(self, width: int, height: int) -> Patch:
        """Decode the runs."""
        left, top, columns, rows = self.place
        if columns < 0 or rows < 0 or columns * rows > MOST_PIXELS:
            raise ValueError(f"its box is {columns} x {rows} pixels")
        return _clip(decode_rows(self.runs, left, top, columns, rows), width, height)


@dataclass(frozen=True, slots=True)
class Brush:
    """Label Studio's brush on an image of a size."""

    is_relative: ClassVar[bool] = False
    code: bytes
    size: tuple[int, int]

    def fill(self, width: int, height: int) -> Patch:
        """Decode the bit stream."""
        _check_size(self.size, width, height, "brush")
        return decode_brush(self.code, width, height)


@dataclass(frozen=True, slots=True)
class Bitmap:
    """An image file whose pixels that are not zero (or transparent) are inside.

    Attributes:
        data: The bytes of the file.
        left: Where it begins.
        top: Where it begins.
        is_whole: It must have the size of the image.
    """

    is_relative: ClassVar[bool] = False
    data: bytes
    left: int = 0
    top: int = 0
    is_whole: bool = False

    def fill(self, width: int, height: int) -> Patch:
        """Decode the file."""
        bits = _decode_bitmap(self.data)
        if self.is_whole and bits.shape != (height, width):
            own = f"{bits.shape[1]} x {bits.shape[0]}"
            raise ValueError(f"its bitmap is {own}, not {width} x {height}")
        return _clip(Patch(self.left, self.top, bits), width, height)


def ring_of(points: Points, holes: Sequence[Points] = (), *, is_relative: bool = False) -> Any:
    """Return the area inside one ring; None if it has fewer than three corners."""
    return Outline(((points, tuple(holes)),), is_relative) if len(points) >= 3 else None


def points_of(values: Any) -> Points:
    """Return corners from a flat list of numbers or a list of pairs.

    Raises:
        Unusable: They are something else.
    """
    try:
        points = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unusable(DAMAGED, f"its corners are not numbers: {brief(values)}") from error
    if points.ndim == 1 and points.size % 2 == 0:
        points = points.reshape(-1, 2)
    if points.size == 0:
        return np.zeros((0, 2))
    if points.ndim != 2 or points.shape[1] != 2:
        raise Unusable(DAMAGED, f"its corners are not pairs of numbers: {brief(values)}")
    if not np.all(np.abs(points) <= LARGEST_COORDINATE):
        raise Unusable(
            DAMAGED, f"a corner lies at {brief(points[np.argmax(np.abs(points).max(1))].tolist())}"
        )
    return points


def numbers_of(*values: Any) -> tuple[float, ...]:
    """Return finite numbers from numbers or their texts.

    Raises:
        Unusable: One is something else.
    """
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError) as error:
        raise Unusable(DAMAGED, f"{brief(values)} are not numbers") from error
    if not all(abs(number) <= LARGEST_COORDINATE for number in numbers):
        raise Unusable(DAMAGED, f"{brief(values)} are not sensible numbers")
    return numbers


def box_of(points: Points, what: str) -> Box:
    """Return the rectangle between two opposite corners.

    Raises:
        Unusable: There are not two.
    """
    if len(points) != 2:
        raise Unusable(DAMAGED, f"a {what} has {len(points)} corners, not 2")
    (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    return Box((left, top, right, bottom))


def decode_base64(text: Any) -> bytes:
    """Return the bytes of a base64 text, with or without the head of a data address.

    Raises:
        Unusable: It is damaged.
    """
    if not isinstance(text, str):
        raise Unusable(DAMAGED, f"{brief(text)} is not base64")
    try:
        return binascii.a2b_base64(text.partition(",")[2] if text.startswith("data:") else text)
    except (binascii.Error, ValueError) as error:
        raise Unusable(DAMAGED, f"its base64 is damaged: {brief(str(error))}") from error


def inflate(data: bytes, limit: int = 1 << 28) -> bytes:
    """Decompress zlib data up to a size.

    Raises:
        Unusable: They are damaged or larger.
    """
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, limit)
    except zlib.error as error:
        raise Unusable(DAMAGED, f"its data cannot be decompressed: {brief(str(error))}") from error
    if not stream.eof:
        raise Unusable(DAMAGED, "its data are cut off or too large")
    return plain


def _in_pixels(numbers: Four, is_relative: bool, width: int, height: int) -> Four:
    x, y, along, across = numbers
    return (x * width, y * height, along * width, across * height) if is_relative else numbers


def _check_size(own: tuple[int, int], width: int, height: int, what: str) -> None:
    if own != (width, height):
        raise ValueError(f"the {what} is of {own[0]} x {own[1]} pixels, not of {width} x {height}")


def _decode_bitmap(data: bytes) -> Any:
    formats = ("PNG", "BMP", "TIFF", "WEBP")
    try:
        with PillowImage.open(io.BytesIO(data), formats=formats) as image:
            if image.width * image.height > MOST_PIXELS:
                raise ValueError(f"its bitmap is {image.width} x {image.height} pixels")
            if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
                return np.asarray(image.convert("RGBA"))[:, :, 3] > 0
            values = np.asarray(image)
    except (OSError, SyntaxError, PillowImage.DecompressionBombError) as error:
        raise ValueError(f"its bitmap is not an image: {brief(str(error))}") from error
    return values.any(axis=2) if values.ndim == 3 else values > 0


def _clip(patch: Patch, width: int, height: int) -> Patch:
    """Cut off what lies outside the image."""
    rows, columns = patch.bits.shape
    left, top = max(patch.left, 0), max(patch.top, 0)
    right, bottom = min(patch.left + columns, width), min(patch.top + rows, height)
    if right <= left or bottom <= top:
        return empty_patch()
    inside = patch.bits[
        top - patch.top : bottom - patch.top, left - patch.left : right - patch.left
    ]
    return Patch(left, top, inside)
