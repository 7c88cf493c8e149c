"""Mask files of other tools: the label of every pixel, by what is stored for it.

The values are taken as they are stored: the index of a palette, a gray value of 1 to 16 bits, or a
color. A value without a class is never guessed: it means that values and class names do not belong
together, which concerns all masks.
"""

import io
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image as PillowImage

from nacre.data.image_io import MOST_PIXELS, stored_labels
from nacre.errors import NacreError
from nacre.importers.files import File
from nacre.importers.problems import Unusable, brief, counted, some

Values = npt.NDArray[Any]
Kind = Literal["values", "colors", "instances"]

_FORMATS = ("PNG", "BMP", "TIFF", "GIF", "WEBP")
_COLORS = 1 << 24
_INSTANCES = 1000
_ROWS = 256


@contextmanager
def open_image(data: bytes, formats: tuple[str, ...]) -> Iterator[PillowImage.Image]:
    """Open an image that is not too large; what is odd about it is an error or nothing to tell.

    Raises:
        ValueError: It is damaged or too large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with PillowImage.open(io.BytesIO(data), formats=formats) as image:
                if not 0 < image.width * image.height <= MOST_PIXELS:
                    raise ValueError(f"it has {image.width} x {image.height} pixels")
                yield image
    except Unusable:
        raise
    except Exception as error:  # damaged bytes end in errors of any type
        raise ValueError(brief(str(error).partition(" <")[0])) from error


@dataclass(frozen=True)
class MaskFile:
    """A file with a value for every pixel.

    Attributes:
        file: The file.
        classes: Class by value.
        kind: What a value is: a stored label, a color (r, g, b) as r + 256 g + 65536 b, or a label
            that may be followed by the three digits of an instance.
    """

    file: File
    classes: Mapping[int, str]
    kind: Kind = "values"

    def read(self, label_of: Mapping[str, int], dtype: npt.DTypeLike) -> Values:
        """Return the label of every pixel.

        Raises:
            Unusable: The file cannot be read as a mask.
            NacreError: It can, but a value has no class.
        """
        values = read_values(self.file, self.kind)
        # Label + 1 by value, 0 where there is no class.
        table = np.zeros(1 << 16 if values.max() < 1 << 16 else _COLORS, np.uint32)
        for value, name in self.classes.items():
            if 0 <= value < len(table):
                table[value] = label_of[name] + 1
        labels, unknown = np.empty(values.shape, dtype), []
        for top in range(0, len(values), _ROWS):
            rows = values[top : top + _ROWS]
            found = table.take(rows, mode="clip")
            unknown.append(rows[(found == 0) | (rows < 0) | (rows >= len(table))])
            labels[top : top + _ROWS] = found - 1
        if any(one.size for one in unknown):
            raise self._unknown(count_values(unknown))
        return labels

    def _unknown(self, counts: Counter[int]) -> NacreError:
        """Return the error for values that no class stands for."""
        is_color = self.kind == "colors"
        found = (
            f"{shown_color(value) if is_color else value} in {counted(count, 'pixel')}"
            for value, count in counts.most_common()
        )
        what = "colors" if is_color else "values"
        return NacreError(
            f"the mask {brief(self.file.path)} holds {what} that no class stands for: "
            f"{some(found)}; nothing was imported"
        )


def read_values(file: File, kind: Kind) -> Values:
    """Return what a mask stores for every pixel.

    Raises:
        Unusable: The file cannot be read as a mask of this kind.
    """
    try:
        with open_image(file.read(), _FORMATS) as image:
            if kind == "colors":
                return _color_values(image)
            values = _stored_values(image)
    except NacreError:
        raise
    except ValueError as error:
        raise Unusable("the mask cannot be read", str(error)) from error
    is_label = kind != "instances" or values.max() < _INSTANCES
    return values if is_label else np.where(values < _INSTANCES, values, values // _INSTANCES)


def count_values(arrays: Iterable[Values]) -> Counter[int]:
    """Return how many pixels have each value."""
    total: Counter[int] = Counter()
    for values in arrays:
        found, counts = np.unique(values, return_counts=True)
        total.update(dict(zip(found.tolist(), counts.tolist(), strict=True)))
    return total


def color_value(color: tuple[int, int, int]) -> int:
    """Return the value that stands for a color."""
    return color[0] | color[1] << 8 | color[2] << 16


def shown_color(value: int) -> str:
    """Return the value of a color as people write it."""
    return f"{value & 255},{value >> 8 & 255},{value >> 16}"


def _stored_values(image: PillowImage.Image) -> Values:
    values = stored_labels(image)
    if values is None and image.mode in ("RGB", "RGBA", "LA"):
        bands = np.array(image)[:, :, : 3 if image.mode != "LA" else 1]
        if np.all(bands == bands[:, :, :1]):
            return bands[:, :, 0]  # a gray image that was saved in color
    if values is None:
        raise Unusable("the mask holds colors where labels should be", f"mode {image.mode}")
    return values


def _color_values(image: PillowImage.Image) -> Values:
    if image.mode.startswith("I"):
        raise Unusable("the mask holds labels where colors should be", f"mode {image.mode}")
    # Of the same mode it would be a copy, and masks may be large.
    bands = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    values = bands[:, :, 2].astype(np.uint32)
    for band in (1, 0):
        values <<= 8
        values |= bands[:, :, band]
    return values
