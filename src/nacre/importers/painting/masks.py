"""Reading mask files of other tools: the class number of every pixel, or what is unknown in them.

The values are taken as they are stored: the index of a palette, a grey value of 1 to 16 bits, or a
colour. A value without a class is never guessed: it means that values and class names do not belong
together, which concerns all masks.
"""

import struct
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.data.image_io import MOST_PIXELS
from nacre.importers.catalog import BACKGROUND, Coding
from nacre.importers.problems import Unusable, brief

ClassMap = npt.NDArray[np.uint32]

MASK_FORMATS = ("PNG", "BMP", "TIFF", "GIF", "WEBP")

BAD_PICTURE = (OSError, SyntaxError, ValueError, struct.error, Image.DecompressionBombError)

# Pillow stretches grey values of 2 and 4 bits to 0..255; a label is what is stored.
_STRETCH = {"L;2": 85, "L;4": 17}
_COLORS = 1 << 24


class UnknownValues(Exception):
    """A mask holds values that no class has: value -> pixels."""

    def __init__(self, values: dict[int, int]) -> None:
        super().__init__(values)
        self.values = values


def read_mask(file: BinaryIO, coding: Coding) -> ClassMap:
    """Return the class number of every pixel.

    Raises:
        Unusable: The file cannot be read as a mask.
        UnknownValues: It can, but a value has no class.
    """
    try:
        with Image.open(file, formats=MASK_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Unusable("the mask is too large", f"{image.width} x {image.height} pixels")
            values = _READ[coding.kind](image)
    except BAD_PICTURE as error:
        raise Unusable("the mask cannot be read", brief(str(error))) from error
    return _classes(values, coding)


def stored_values(image: Image.Image) -> npt.NDArray[Any]:
    """Return the labels of a mask as they are stored."""
    tile = getattr(image, "tile", ())
    args = tile[0][3] if tile else ""
    stored = args if isinstance(args, str) else str(args[0]) if args else ""
    values = np.array(image)
    if image.mode in ("L", "P"):
        return values // _STRETCH[stored] if stored in _STRETCH else values
    if image.mode == "1":
        return values.astype(np.uint8)
    if image.mode.startswith("I"):
        return values
    if image.mode in ("RGB", "RGBA", "LA"):
        bands = values[:, :, : 3 if image.mode != "LA" else 1]
        if np.all(bands == bands[:, :, :1]):
            # A grey picture that was saved in colour.
            return bands[:, :, 0]
    raise Unusable("the mask holds colours where labels should be", f"mode {image.mode}")


def color_values(image: Image.Image) -> npt.NDArray[Any]:
    """Return the colour of every pixel as r + 256 g + 65536 b."""
    if image.mode.startswith("I"):
        raise Unusable("the mask holds labels where colours should be", f"mode {image.mode}")
    bands = np.asarray(image.convert("RGB")).astype(np.uint32)
    return bands[:, :, 0] | bands[:, :, 1] << 8 | bands[:, :, 2] << 16


def id_values(image: Image.Image) -> npt.NDArray[Any]:
    """Return the number of the segment of every pixel, stored as a number or as a colour."""
    return color_values(image) if image.mode in ("RGB", "RGBA") else stored_values(image)


_READ = {"values": stored_values, "colors": color_values, "ids": id_values}


def _classes(values: npt.NDArray[Any], coding: Coding) -> ClassMap:
    if values.size == 0:
        raise Unusable("the mask is empty")
    low, high = int(values.min()), int(values.max())
    size = 1 << 16 if high < 1 << 16 else _COLORS
    if low < 0 or high >= _COLORS:
        raise UnknownValues({low if low < 0 else high: 1})
    found = _table(coding, size).take(values)
    unknown = values[found == 0]
    if unknown.size:
        counts = np.unique(unknown, return_counts=True)
        raise UnknownValues({int(value): int(count) for value, count in zip(*counts, strict=True)})
    return found - 1


def _table(coding: Coding, size: int) -> ClassMap:
    """Return class number + 1 by value, 0 where there is none."""
    if coding.kind == "ids":
        return _make_table({0: BACKGROUND} | dict(coding.classes), size)
    return _kept_table(tuple(coding.classes.items()), size)


@lru_cache(maxsize=2)
def _kept_table(classes: tuple[tuple[int, int], ...], size: int) -> ClassMap:
    return _make_table(dict(classes), size)


def _make_table(classes: Mapping[int, int], size: int) -> ClassMap:
    table = np.zeros(size, np.uint32)
    for value, number in classes.items():
        if 0 <= value < size:
            table[value] = number + 1
    return table
