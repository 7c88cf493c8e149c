"""Reading mask files of other tools: the class number of every pixel, or what is unknown in them.

The values are taken as they are stored: the index of a palette, a gray value of 1 to 16 bits, or a
color. A value without a class is never guessed: it means that values and class names do not belong
together, which concerns all masks.
"""

import struct
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, BinaryIO, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage

from nacre.data.image_io import MOST_PIXELS
from nacre.importers.files import Export, File
from nacre.importers.problems import Unusable, brief

ClassMap = npt.NDArray[np.uint32]

BACKGROUND = 0
"""The class number of what has no class."""

IGNORED = 1
"""The class number of what does not count."""

MASK_FORMATS = ("PNG", "BMP", "TIFF", "GIF", "WEBP")
BAD_IMAGE = (OSError, SyntaxError, ValueError, struct.error, PillowImage.DecompressionBombError)

# Pillow stretches gray values of 2 and 4 bits to 0..255; a label is what is stored.
_STRETCH = {"L;2": 85, "L;4": 17}
_COLORS = 1 << 24


@dataclass(frozen=True)
class MaskFile:
    """A file with a label for every pixel.

    Attributes:
        file: The file.
        classes: Class number by value.
        kind: What a value is: a stored label, a color (r, g, b) as r + 256 g + 65536 b, or the
            number of a segment, which may be stored as such a color.
    """

    file: File
    classes: Mapping[int, int]
    kind: Literal["values", "colors", "segments"] = "values"


class UnknownValues(Exception):
    """Values of a mask that no class has: value -> pixels."""

    def __init__(self, values: dict[int, int]) -> None:
        super().__init__(values)
        self.values = values


def read_mask(export: Export, mask: MaskFile) -> ClassMap:
    """Return the class number of every pixel.

    Raises:
        Unusable: The file cannot be read as a mask.
        UnknownValues: It can, but a value has no class.
    """
    with export.open(mask.file) as file:
        values = read_values(file, mask.kind)
    if values.size == 0:
        raise Unusable("the mask is empty")
    low, high = int(values.min()), int(values.max())
    if low < 0 or high >= _COLORS:
        raise UnknownValues({low if low < 0 else high: 1})
    found = _table(mask, 1 << 16 if high < 1 << 16 else _COLORS).take(values)
    unknown = values[found == 0]
    if unknown.size:
        raise UnknownValues(count_values(unknown))
    return found - 1


def read_values(file: BinaryIO, kind: str) -> npt.NDArray[Any]:
    """Return what a mask stores for every pixel.

    Raises:
        Unusable: The file cannot be read as a mask of this kind.
    """
    try:
        with PillowImage.open(file, formats=MASK_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise Unusable("the mask is too large", f"{image.width} x {image.height} pixels")
            if kind == "colors" or (kind == "segments" and image.mode in ("RGB", "RGBA")):
                return _color_values(image)
            return _stored_values(image)
    except BAD_IMAGE as error:
        raise Unusable("the mask cannot be read", brief(str(error))) from error


def count_values(values: npt.NDArray[Any]) -> dict[int, int]:
    """Return how many pixels have each value."""
    counts = np.unique(values, return_counts=True)
    return {int(value): int(count) for value, count in zip(*counts, strict=True)}


def color_value(color: tuple[int, int, int]) -> int:
    """Return the value that stands for a color."""
    return color[0] | color[1] << 8 | color[2] << 16


def shown_color(value: int) -> str:
    """Return the value of a color as people write it."""
    return f"{value & 255},{value >> 8 & 255},{value >> 16}"


def _stored_values(image: PillowImage.Image) -> npt.NDArray[Any]:
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
            # A gray image that was saved in color.
            return bands[:, :, 0]
    raise Unusable("the mask holds colors where labels should be", f"mode {image.mode}")


def _color_values(image: PillowImage.Image) -> npt.NDArray[Any]:
    if image.mode.startswith("I"):
        raise Unusable("the mask holds labels where colors should be", f"mode {image.mode}")
    bands = np.asarray(image.convert("RGB")).astype(np.uint32)
    return bands[:, :, 0] | bands[:, :, 1] << 8 | bands[:, :, 2] << 16


def _table(mask: MaskFile, size: int) -> ClassMap:
    """Return class number + 1 by value, 0 where there is none."""
    if mask.kind == "segments":
        return _make_table({0: BACKGROUND} | dict(mask.classes), size)
    return _kept_table(tuple(mask.classes.items()), size)


@lru_cache(maxsize=2)
def _kept_table(classes: tuple[tuple[int, int], ...], size: int) -> ClassMap:
    return _make_table(dict(classes), size)


def _make_table(classes: Mapping[int, int], size: int) -> ClassMap:
    table = np.zeros(size, np.uint32)
    for value, number in classes.items():
        if 0 <= value < size:
            table[value] = number + 1
    return table
