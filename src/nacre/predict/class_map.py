"""Class maps of any size: an array, or a file of which one part at a time is in memory.

Whoever writes them (PNG, COCO, polygons, shares) asks for parts: strips of rows or columns, tiles.
"""

import contextlib
import struct
import tempfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import numpy as np
import numpy.typing as npt

from nacre.labels.channels import is_wide

Part = npt.NDArray[Any]

STRIP_PIXELS = 1 << 24
"""How many pixels of a class map are looked at at once."""

IN_MEMORY = 1 << 26
"""Pixels of the largest class map that is an array."""


class ClassMap(Protocol):
    """The channel of each pixel; an array is one."""

    @property
    def shape(self) -> tuple[int, ...]:
        """Height and width."""

    @property
    def dtype(self) -> Any:
        """uint8, or uint16 where targets have 16 bits."""

    def __getitem__(self, part: tuple[slice, slice], /) -> Part:
        """Return rows and columns."""


class StoredMap:
    """A class map in a file; what is mapped for reading or writing is let go at once.

    Args:
        path: The file.
        size: Height and width.
        dtype: uint8 or uint16.
    """

    def __init__(self, path: Path, size: tuple[int, int], dtype: npt.DTypeLike) -> None:
        self.path, self.shape, self.dtype = path, size, np.dtype(dtype)
        np.memmap(path, self.dtype, "w+", shape=size).flush()

    def __getitem__(self, part: tuple[slice, slice]) -> Part:
        """Return a copy of rows and columns."""
        return np.array(np.memmap(self.path, self.dtype, "r", shape=self.shape)[part])

    def __setitem__(self, part: tuple[slice, slice], classes: Part) -> None:
        """Write rows and columns."""
        np.memmap(self.path, self.dtype, "r+", shape=self.shape)[part] = classes


@contextlib.contextmanager
def make_class_map(size: tuple[int, int], channels: int, folder: Path) -> Iterator[Any]:
    """Yield a class map to be filled: an array, or for large images a file that is then removed.

    Args:
        size: Height and width.
        channels: How many classes there are.
        folder: Where the file lies meanwhile.
    """
    dtype = np.uint16 if is_wide(channels) else np.uint8
    if size[0] * size[1] <= IN_MEMORY:
        yield np.zeros(size, dtype)
        return
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".class-map.", dir=folder) as place:
        yield StoredMap(Path(place) / "classes", size, dtype)


def row_strips(classes: ClassMap) -> Iterator[tuple[slice, Part]]:
    """Yield a class map from the top, some rows at a time."""
    height, width = classes.shape
    step = max(1, STRIP_PIXELS // width)
    for top in range(0, height, step):
        rows = slice(top, min(top + step, height))
        yield rows, classes[rows, 0:width]


def column_strips(classes: ClassMap) -> Iterator[tuple[slice, Part]]:
    """Yield a class map from the left, some columns at a time."""
    height, width = classes.shape
    step = max(1, STRIP_PIXELS // height)
    for left in range(0, width, step):
        columns = slice(left, min(left + step, width))
        yield columns, classes[0:height, columns]


def count_classes(classes: ClassMap, channels: int) -> npt.NDArray[np.int64]:
    """Return how many pixels each channel has."""
    counts = np.zeros(channels, np.int64)
    for _, part in row_strips(classes):
        counts += np.bincount(part.ravel(), minlength=channels)
    return counts


def write_png(file: IO[bytes], classes: ClassMap, palette: bytes) -> None:
    """Write a class map as a PNG strip by strip: with a palette, or gray where it has 16 bits.

    Args:
        file: Open for writing.
        classes: The class map.
        palette: Red, green and blue of each channel.
    """
    height, width = classes.shape
    wide = classes.dtype == np.uint16
    file.write(b"\x89PNG\r\n\x1a\n")
    kind = (16, 0) if wide else (8, 3)  # bits; gray or palette
    _chunk(file, b"IHDR", struct.pack(">IIBBBBB", width, height, *kind, 0, 0, 0))
    if not wide:
        _chunk(file, b"PLTE", palette)
    packer = zlib.compressobj(6)
    for _, part in row_strips(classes):
        rows = np.ascontiguousarray(part.astype(">u2") if wide else part).view(np.uint8)
        # Each row begins with its filter: none.
        _chunk(file, b"IDAT", packer.compress(np.pad(rows, ((0, 0), (1, 0))).tobytes()))
    _chunk(file, b"IDAT", packer.flush())
    _chunk(file, b"IEND", b"")


def _chunk(file: IO[bytes], name: bytes, content: bytes) -> None:
    file.write(struct.pack(">I", len(content)) + name + content)
    file.write(struct.pack(">I", zlib.crc32(name + content)))
