"""How many pixels of each label a mask holds, as fast as the mask can be decoded.

The labels of a mask come in runs, along a row and often over many. The bytes of a plain PNG are
compared with their neighbours, all at once, to find where the runs end; the lengths of the runs,
summed by label, are the counts.
"""

from itertools import compress
from typing import NamedTuple

import numpy as np
from PIL import Image

from nacre.data.image_io import read_mask
from nacre.data.index.png import plain_rows
from nacre.data.member import File

_BYTES_A_RUN = 8


class Counts(NamedTuple):
    """Width and height of a mask, and its pixels by label in ascending order."""

    width: int
    height: int
    pixels: dict[int, int]


def count_labels(path: File, data: bytes) -> Counts:
    """Count the pixels of each label in a mask.

    Args:
        path: The mask's file.
        data: What is in the file.
    """
    return _count_plain_png(data) or _count_any(path)


def _count_any(path: File) -> Counts:
    mask = read_mask(path)
    counts = np.bincount(mask.ravel())
    present = np.flatnonzero(counts)
    pixels = dict(zip(present.tolist(), counts[present].tolist(), strict=True))
    return Counts(mask.shape[1], mask.shape[0], pixels)


def _count_plain_png(data: bytes) -> Counts | None:
    rows = plain_rows(data)
    if rows is None:
        return None
    counts = _histogram(rows.data)
    counts[0] -= rows.height  # the zeros in front of the rows
    labels = compress(range(len(counts)), counts)
    return Counts(rows.width, rows.height, {label: counts[label] for label in labels})


def _histogram(values: bytes) -> list[int]:
    """Count each byte value, by runs of equal bytes if there are few of them."""
    array = np.frombuffer(values, np.uint8)
    ends = np.flatnonzero(array[1:] != array[:-1])
    if _BYTES_A_RUN * len(ends) > len(values):
        return Image.frombuffer("L", (len(values), 1), values, "raw", "L", 0, 1).histogram()
    bounds = np.empty(len(ends) + 2, np.intp)
    bounds[0], bounds[1:-1], bounds[-1] = -1, ends, len(values) - 1
    counts = np.bincount(array[bounds[1:]], bounds[1:] - bounds[:-1])
    result: list[int] = counts.astype(np.intp).tolist()
    return result
