"""The areas of annotated shapes, and decoders of the tools' bitmaps and run-length codes.

An area is a function of the width and height of an image that returns the covered pixels. An area,
and a function that makes one, raises ``ValueError`` if the shape is damaged or does not fit an
image of this size. This leaves out only the image.

Run-length codes are decoded strictly. If the runs do not add up to the size of the image, the code
is damaged: padding or cutting it would silently give a wrong mask.

========================  =========================================================================
COCO                      lengths of runs down the columns, zeros first
COCO, compressed          the same as text: groups of 5 bits, differences from the 4th number on
CVAT (XML)                lengths of runs along the rows of a box, zeros first
Label Studio (brush)      a bit stream of runs and literals over height x width x 4 bytes (RGBA);
                          the alpha channel is the mask
========================  =========================================================================
"""

import binascii
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from nacre.importers.masks import open_image
from nacre.importers.problems import brief
from nacre.importers.rasterize import (
    MAX_COORDINATE,
    Bits,
    Patch,
    Points,
    empty_patch,
    fill_region,
    rectangle,
)

Area = Callable[[int, int], Patch]
Runs = npt.NDArray[np.int64]

MAX_RUN = 2**31
MAX_NUM_RUNS = 1 << 23
"""A code of more runs is an attack, not a mask."""

_BOX_TOLERANCE = 1.0
"""Pixels by which the corners of a box may be off, as they are after rounding."""

_MAX_INFLATED_BYTES = 1 << 28
_MAX_BITMAP_RATIO = 4
"""Size of the largest bitmap, relative to its image: one file may contain thousands of bitmaps."""


@dataclass(frozen=True, slots=True)
class Outline:
    """The union of parts, each an outer ring with its holes.

    The coordinates of a relative outline are fractions of the width and height.
    """

    parts: tuple[tuple[Points, tuple[Points, ...]], ...]
    is_relative: bool = False

    def __call__(self, width: int, height: int) -> Patch:
        """Fill the rings."""
        scale = (width, height) if self.is_relative else (1, 1)
        parts = [(ring * scale, [hole * scale for hole in holes]) for ring, holes in self.parts]
        return fill_region(parts, width, height)

    def is_box(self, width: int, height: int) -> bool:
        """Return True for a single ring with four right angles, axis-aligned or rotated."""
        if len(self.parts) != 1:
            return False
        ring = self.parts[0][0] * ((width, height) if self.is_relative else (1, 1))
        if len(ring) == 5 and np.array_equal(ring[0], ring[4]):
            ring = ring[:4]
        if len(ring) != 4:
            return False
        # The diagonals of a box have the same center and the same length.
        first, second = ring[2] - ring[0], ring[3] - ring[1]
        offset = np.abs(ring[0] + ring[2] - ring[1] - ring[3]).max() / 2
        difference = abs(np.hypot(*first) - np.hypot(*second))
        return bool(offset <= _BOX_TOLERANCE and difference <= _BOX_TOLERANCE)


def ring_of(
    points: Points, holes: Sequence[Points] = (), *, is_relative: bool = False
) -> Outline | None:
    """Return the area inside a ring, or None for fewer than three corners."""
    return Outline(((points, tuple(holes)),), is_relative) if len(points) >= 3 else None


def box_of(points: Points, what: str) -> Outline | None:
    """Return the area of the rectangle between two opposite corners."""
    if len(points) != 2:
        raise ValueError(f"a {what} has {len(points)} corners, not 2")
    return ring_of(rectangle(*points.min(axis=0), *points.max(axis=0)))


def points_of(values: Any) -> Points:
    """Return corners from a flat list of numbers or a list of pairs."""
    try:
        points = np.asarray(values, np.float64)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"its corners are not numbers: {brief(values)}") from error
    if points.ndim == 1 and points.size % 2 == 0:
        points = points.reshape(-1, 2)
    if points.size == 0:
        return np.zeros((0, 2))
    if points.ndim != 2 or points.shape[1] != 2:
        raise ValueError(f"its corners are not pairs of numbers: {brief(values)}")
    if not np.all(np.abs(points) <= MAX_COORDINATE):
        worst = points[np.argmax(np.abs(points).max(axis=1))].tolist()
        raise ValueError(f"a corner is at {brief(worst)}")
    return points


def numbers_of(*values: Any) -> tuple[float, ...]:
    """Return finite numbers from numbers or texts."""
    try:
        numbers = tuple(float(value) for value in values)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{brief(values)} are not numbers") from error
    if not all(abs(number) <= MAX_COORDINATE for number in numbers):
        raise ValueError(f"{brief(values)} are not finite or too large")
    return numbers


def decode_base64(text: Any) -> bytes:
    """Return the bytes of a base64 text or a data URL."""
    if not isinstance(text, str):
        raise ValueError(f"{brief(text)} is not base64")
    try:
        return binascii.a2b_base64(text.partition(",")[2] if text.startswith("data:") else text)
    except (binascii.Error, ValueError) as error:
        raise ValueError(f"its base64 is damaged: {brief(str(error))}") from error


def inflate(data: bytes) -> bytes:
    """Decompress zlib data of limited size."""
    stream = zlib.decompressobj()
    try:
        plain = stream.decompress(data, _MAX_INFLATED_BYTES)
    except zlib.error as error:
        raise ValueError(f"its data cannot be decompressed: {brief(str(error))}") from error
    if not stream.eof:
        raise ValueError("its data are cut off or too large")
    return plain


def fill_bitmap(data: bytes, left: int, top: int, width: int, height: int) -> Patch:
    """Fill the nonzero (or opaque) pixels of an image file whose corner is at (left, top)."""
    bits = _decode_bitmap(data, _MAX_BITMAP_RATIO * width * height)
    return Patch(left, top, bits).crop(0, 0, width, height)


def fill_whole_bitmap(data: bytes, width: int, height: int) -> Patch:
    """Fill the nonzero (or opaque) pixels of an image file that has the size of the image."""
    bits = _decode_bitmap(data, _MAX_BITMAP_RATIO * width * height)
    _check_size((bits.shape[1], bits.shape[0]), width, height, "bitmap")
    return Patch(0, 0, bits)


def _decode_bitmap(data: bytes, max_pixels: int) -> Any:
    try:
        with open_image(data, ("PNG", "BMP", "TIFF", "WEBP")) as image:
            if image.width * image.height > max_pixels:
                raise ValueError(f"{image.width} x {image.height} pixels, more than the image has")
            if image.mode in ("RGBA", "LA", "PA") or "transparency" in image.info:
                return np.asarray(image.convert("RGBA"))[:, :, 3] > 0
            values = np.asarray(image)
    except ValueError as error:
        raise ValueError(f"its bitmap cannot be used: {error}") from error
    return values.any(axis=2) if values.ndim == 3 else values > 0


def parse_compressed(text: str) -> Runs:
    """Return the run lengths of COCO's compressed text."""
    lengths: list[int] = []
    value = shift = 0
    for char in text:
        bits = ord(char) - 48
        if not 0 <= bits < 64 or shift > 40 or len(lengths) > MAX_NUM_RUNS:
            raise ValueError(f"the compressed RLE has an invalid character {char!r} or is too long")
        value |= (bits & 0x1F) << shift
        shift += 5
        if bits & 0x20:
            continue
        if bits & 0x10:
            value -= 1 << shift
        # From the fourth number on, it is the difference to the number two before.
        lengths.append(value + lengths[-2] if len(lengths) > 2 else value)
        value = shift = 0
    if shift:
        raise ValueError("the compressed RLE ends in the middle of a number")
    return check_runs(lengths)


def check_runs(lengths: Sequence[object] | npt.NDArray[np.float64]) -> Runs:
    """Return run lengths as an array; raise an error for negative or absurdly long runs."""
    try:
        runs = np.asarray(lengths)
    except (ValueError, OverflowError) as error:
        raise ValueError("the RLE is not a list of numbers") from error
    if runs.size == 0:
        return np.zeros(0, np.int64)
    if runs.ndim != 1 or runs.dtype.kind not in "iuf" or np.any(runs != np.floor(runs)):
        raise ValueError("the RLE is not a list of whole numbers")
    if runs.min() < 0 or runs.max() > MAX_RUN:
        worst = runs.min() if runs.min() < 0 else runs.max()
        raise ValueError(f"the RLE has a run of {worst} pixels")
    return runs.astype(np.int64)


def decode_columns(runs: Runs, size: tuple[int, int], width: int, height: int) -> Patch:
    """Decode runs down the columns of an image of the given size (COCO)."""
    _check_size(size, width, height, "RLE")
    bits, first = _decode(runs, width * height, height)
    return Patch(first, 0, bits.T) if bits.size else empty_patch()


def decode_rows(runs: Runs, box: tuple[int, int, int, int], width: int, height: int) -> Patch:
    """Decode runs along the rows of a box: left, top, width, height (CVAT)."""
    left, top, columns, rows = box
    if not (0 <= columns <= width and 0 <= rows <= height):
        raise ValueError(f"its box is {columns} x {rows} pixels, the image {width} x {height}")
    bits, first = _decode(runs, columns * rows, columns)
    return Patch(left, top + first, bits).crop(0, 0, width, height)


def _decode(runs: Runs, size: int, line_length: int) -> tuple[Bits, int]:
    """Return the lines from the first to the last covered one, and the first one's number."""
    total = int(runs.sum())
    if total != size:
        raise ValueError(f"the RLE has {total:,} pixels instead of {size:,}")
    ends = np.cumsum(runs)
    starts, stops = ends[0::2][: len(ends[1::2])], ends[1::2]
    is_covered = stops > starts
    starts, stops = starts[is_covered], stops[is_covered]
    if not len(starts):
        return np.zeros((0, 0), np.bool_), 0
    first, last = int(starts[0]) // line_length, (int(stops[-1]) - 1) // line_length + 1
    # Most objects are small in large images, so only the lines that they cover are decoded.
    steps = np.zeros((last - first) * line_length + 1, np.int8)
    steps[starts - first * line_length] += 1
    steps[stops - first * line_length] -= 1
    bits = np.cumsum(steps[:-1], dtype=np.int8).astype(np.bool_)
    return bits.reshape(-1, line_length), first


def decode_brush(code: bytes, size: tuple[int, int], width: int, height: int) -> Patch:
    """Decode Label Studio's brush on an image of the given size: the pixels with any opacity."""
    _check_size(size, width, height, "brush")
    stream = _BitStream(code)
    num_bytes = stream.read(32)
    if num_bytes != width * height * 4:
        raise ValueError(f"the brush has {num_bytes:,} bytes instead of {width * height * 4:,}")
    word = stream.read(5) + 1
    lengths = [stream.read(4) + 1 for _ in range(4)]
    if word != 8:
        raise ValueError(f"the brush has words of {word} bits instead of 8")
    alpha = np.zeros(width * height, np.bool_)
    position = 0
    while position < num_bytes:
        is_run = stream.read(1)
        stop = min(position + 1 + stream.read(lengths[stream.read(2)]), num_bytes)
        # Byte 4k + 3 is the alpha of pixel k, so [a, b) contains those of [a // 4, b // 4).
        if is_run:
            alpha[position // 4 : stop // 4] = stream.read(8) > 0
        else:
            values = stream.read_bytes(stop - position)
            alpha[position // 4 : stop // 4] = values[(3 - position) % 4 :: 4] > 0
        position = stop
    return Patch(0, 0, alpha.reshape(height, width))


class _BitStream:
    """Reads numbers of some bits, the high bit first."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0

    def read(self, bits: int) -> int:
        """Read a number of at most 32 bits."""
        start, stop = self._advance(bits)
        window = int.from_bytes(self.data[start >> 3 : (stop + 7) >> 3], "big")
        return (window >> (-stop % 8)) & ((1 << bits) - 1)

    def read_bytes(self, count: int) -> npt.NDArray[np.uint8]:
        """Read some bytes, which may begin within a byte of the stream."""
        start, stop = self._advance(8 * count)
        bits = np.unpackbits(np.frombuffer(self.data[start >> 3 : (stop + 7) >> 3], np.uint8))
        return np.packbits(bits[start % 8 : start % 8 + 8 * count])

    def _advance(self, bits: int) -> tuple[int, int]:
        start, self.position = self.position, self.position + bits
        if self.position > 8 * len(self.data):
            raise ValueError("the brush ends before its image")
        return start, self.position


def _check_size(size: tuple[int, int], width: int, height: int, what: str) -> None:
    if size != (width, height):
        raise ValueError(f"the {what} has {size[0]} x {size[1]} pixels, not {width} x {height}")
