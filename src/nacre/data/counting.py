"""How many pixels of each label a mask holds, as fast as the mask can be decoded.

Most masks are PNG files of 8 bits without row filters. Their decompressed bytes are the labels,
with one zero in front of every row, so that a histogram of the bytes is the answer and no
picture is ever made. Every other mask goes the ordinary way.
"""

import zlib
from itertools import compress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

from nacre.data.reading import read_mask

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_PLAIN = (bytes((8, 0)), bytes((8, 3)))  # eight bits of grey, or of a palette's index
_MAX_PIXELS = 1 << 28
_BYTES_A_RUN = 8


class Counts(NamedTuple):
    """Width and height of a mask, and its pixels by label in ascending order."""

    width: int
    height: int
    pixels: dict[int, int]


def count_labels(path: Path, data: bytes) -> Counts:
    """Count the pixels of each label in a mask.

    Args:
        path: The mask's file.
        data: What is in the file.
    """
    return _count_plain_png(data) or _count_any(path)


def _count_any(path: Path) -> Counts:
    mask = read_mask(path)
    counts = np.bincount(mask.ravel())
    present = np.flatnonzero(counts)
    pixels = dict(zip(present.tolist(), counts[present].tolist(), strict=True))
    return Counts(mask.shape[1], mask.shape[0], pixels)


def _count_plain_png(data: bytes) -> Counts | None:
    """Count in a PNG of 8-bit labels without row filters; None if it is anything else."""
    # Signature, then the head: length, IHDR, width, height, depth, colour, ..., interlacing.
    if len(data) < 33 or data[:8] != _SIGNATURE or data[24:26] not in _PLAIN:
        return None
    width, height = int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")
    if data[28] or not 0 < (width + 1) * height <= _MAX_PIXELS:
        return None
    rows = _decompress(data, (width + 1) * height)
    if rows is None or rows[:: width + 1].count(0) != height:
        return None
    counts = _histogram(rows)
    counts[0] -= height
    labels = compress(range(len(counts)), counts)
    return Counts(width, height, {label: counts[label] for label in labels})


def _histogram(values: bytes) -> list[int]:
    """Count each byte value; by runs of equal bytes, of which most masks have few."""
    array = np.frombuffer(values, np.uint8)
    ends = np.flatnonzero(array[1:] != array[:-1])
    if _BYTES_A_RUN * len(ends) > len(values):
        return Image.frombuffer("L", (len(values), 1), values, "raw", "L", 0, 1).histogram()
    bounds = np.empty(len(ends) + 2, np.intp)
    bounds[0], bounds[1:-1], bounds[-1] = -1, ends, len(values) - 1
    counts = np.bincount(array[bounds[1:]], bounds[1:] - bounds[:-1])
    result: list[int] = counts.astype(np.intp).tolist()
    return result


def _decompress(data: bytes, size: int) -> bytes | None:
    """Return the pixel data of a PNG file if it is whole and of this size."""
    parts = []
    at = 8
    while at + 12 <= len(data):
        length = int.from_bytes(data[at : at + 4], "big")
        if data[at + 4 : at + 8] == b"IDAT":
            parts.append(data[at + 8 : at + 8 + length])
        at += length + 12
    stream = zlib.decompressobj()
    try:
        # At most one byte too many, whatever the file says: a small file can unpack to terabytes.
        rows = stream.decompress(parts[0] if len(parts) == 1 else b"".join(parts), size + 1)
    except zlib.error:
        return None
    return rows if len(rows) == size and stream.eof else None
