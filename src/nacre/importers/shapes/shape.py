"""The shapes of annotations, whatever tool drew them; ``patches`` has the pixels they cover."""

import binascii
import json
import zlib
from collections.abc import Iterable, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from nacre.importers.problems import Unusable, brief
from nacre.importers.shapes.rasterize import LARGEST_COORDINATE, Points
from nacre.importers.shapes.rle import Runs

Kind = Literal["rings", "box", "ellipse", "columns", "rows", "brush", "bitmap"]

DAMAGED = "a shape is damaged"

_HEADER = 4


class Shape(NamedTuple):
    """One annotated shape.

    Attributes:
        class_id: Its class, by the number in the catalogue.
        kind: What the numbers and blobs are, see the functions of the same names.
        numbers: Positions and sizes.
        blobs: Coordinates, runs or pictures.
        is_relative: The coordinates are shares of the picture's width and height.
        layer: Higher ones lie on top.
    """

    class_id: int
    kind: Kind
    numbers: tuple[float, ...]
    blobs: tuple[bytes, ...] = ()
    is_relative: bool = False
    layer: int = 0

    def pack(self) -> bytes:
        """Return the shape as bytes that only `unpack` needs to understand."""
        lengths = [len(blob) for blob in self.blobs]
        fields = [self.class_id, self.kind, self.numbers, self.is_relative, self.layer]
        header = json.dumps([*fields, lengths], separators=(",", ":")).encode()
        return len(header).to_bytes(_HEADER, "little") + header + b"".join(self.blobs)


def unpack(data: bytes) -> Shape:
    """Return the shape that was packed."""
    end = _HEADER + int.from_bytes(data[:_HEADER], "little")
    class_id, kind, numbers, is_relative, layer, lengths = json.loads(data[_HEADER:end])
    blobs = []
    for length in lengths:
        blobs.append(data[end : end + length])
        end += length
    return Shape(class_id, kind, tuple(numbers), tuple(blobs), is_relative, layer)


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


def rings(
    class_id: int,
    parts: Iterable[tuple[Points, Sequence[Points]]],
    *,
    is_relative: bool = False,
    layer: int = 0,
) -> Shape:
    """Return a shape of parts that are united, each an outer ring with its holes."""
    flags: list[float] = []
    blobs = []
    for outer, holes in parts:
        flags += [0, *(1 for _ in holes)]
        blobs += [ring.astype(np.float64).tobytes() for ring in (outer, *holes)]
    return Shape(class_id, "rings", tuple(flags), tuple(blobs), is_relative, layer)


def box(
    class_id: int,
    corners: tuple[float, float, float, float],
    degrees: float = 0.0,
    *,
    about_corner: bool = False,
    is_relative: bool = False,
    layer: int = 0,
) -> Shape:
    """Return a rectangle (left, top, right, bottom), turned about its centre or first corner."""
    numbers = (*corners, degrees, float(about_corner))
    return Shape(class_id, "box", numbers, (), is_relative, layer)


def ellipse(
    class_id: int,
    center_and_radii: tuple[float, float, float, float],
    degrees: float = 0.0,
    *,
    is_relative: bool = False,
    layer: int = 0,
) -> Shape:
    """Return an ellipse (x, y, radius along, radius across), turned about its centre."""
    return Shape(class_id, "ellipse", (*center_and_radii, degrees), (), is_relative, layer)


def columns(class_id: int, runs: Runs, width: int, height: int, layer: int = 0) -> Shape:
    """Return runs down the columns of a picture of this size."""
    return Shape(class_id, "columns", (width, height), (runs.tobytes(),), False, layer)


def rows(class_id: int, runs: Runs, place: tuple[int, int, int, int], layer: int = 0) -> Shape:
    """Return runs along the rows of a box (left, top, width, height)."""
    return Shape(class_id, "rows", place, (runs.tobytes(),), False, layer)


def brush(class_id: int, code: bytes, width: int, height: int) -> Shape:
    """Return Label Studio's brush on a picture of this size."""
    return Shape(class_id, "brush", (width, height), (code,))


def bitmap(class_id: int, picture: bytes, left: int, top: int, is_whole: bool = False) -> Shape:
    """Return a small picture that lies at a place; what is not zero (or transparent) is inside.

    Args:
        class_id: The class.
        picture: The bytes of the file.
        left: Where it begins.
        top: Where it begins.
        is_whole: It must have the size of the picture.
    """
    return Shape(class_id, "bitmap", (left, top, float(is_whole)), (picture,))


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
