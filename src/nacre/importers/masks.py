"""Mask files of other tools.

A value is the index of a palette, a gray value of 1 to 16 bits, or a color. A value without a class
means that the values and the class names do not belong together. This concerns all masks, so it
ends the import.
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

from nacre.data.image_io import MAX_PIXELS, stored_labels
from nacre.errors import NacreError, counted
from nacre.importers.files import File
from nacre.importers.problems import Unusable, brief, some

Values = npt.NDArray[Any]
Coding = Literal["values", "colors", "instances"]
"""Meaning of a pixel: a label, a color (r, g, b) as r + 256 g + 65536 b, or a label that may be
followed by three digits of an instance."""

IN_COLOR = "the mask has colors instead of labels"

_FORMATS = ("PNG", "BMP", "TIFF", "GIF", "WEBP")
_NUM_COLORS = 1 << 24
_NUM_INSTANCES = 1000
_ROWS_AT_A_TIME = 256


@contextmanager
def open_image(data: bytes, formats: tuple[str, ...]) -> Iterator[PillowImage.Image]:
    """Open an image of limited size, without Pillow's warnings.

    Raises:
        ValueError: The image is damaged or too large.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            with PillowImage.open(io.BytesIO(data), formats=formats) as image:
                if not 0 < image.width * image.height <= MAX_PIXELS:
                    raise ValueError(f"it has {image.width} x {image.height} pixels")
                yield image
    except Unusable:
        raise
    except Exception as error:  # damaged bytes end in errors of any type
        raise ValueError(brief(str(error).partition(" <")[0])) from error


@dataclass(frozen=True)
class MaskFile:
    """A mask file and the class of each of its values."""

    file: File
    classes: Mapping[int, str]
    coding: Coding = "values"

    def read(self, label_of: Mapping[str, int], dtype: npt.DTypeLike) -> Values:
        """Return the label of every pixel.

        Raises:
            Unusable: The file cannot be read as a mask.
            NacreError: A value has no class.
        """
        values = read_values(self.file, self.coding)
        # Label + 1 by value, 0 for a value without a class.
        lookup = np.zeros(1 << 16 if values.max() < 1 << 16 else _NUM_COLORS, np.uint32)
        for value, name in self.classes.items():
            if 0 <= value < len(lookup):
                lookup[value] = label_of[name] + 1
        labels, unknown = np.empty(values.shape, dtype), []
        for top in range(0, len(values), _ROWS_AT_A_TIME):
            rows = values[top : top + _ROWS_AT_A_TIME]
            plus_one = lookup.take(rows, mode="clip")
            unknown.append(rows[(plus_one == 0) | (rows < 0) | (rows >= len(lookup))])
            labels[top : top + _ROWS_AT_A_TIME] = plus_one - 1
        counts = count_values(unknown).most_common()
        if counts:
            is_color = self.coding == "colors"
            what, show = ("colors", shown_color) if is_color else ("values", str)
            shown = (f"{show(value)} in {counted(count, 'pixel')}" for value, count in counts)
            raise NacreError(
                f"the mask {brief(self.file.path)} has {what} without a class: {some(shown)}; "
                "nothing was imported"
            )
        return labels


def read_values(file: File, coding: Coding) -> Values:
    """Return the stored value of every pixel of a mask."""
    try:
        with open_image(file.read(), _FORMATS) as image:
            if coding == "colors":
                return _color_values(image)
            values = _stored_values(image)
    except NacreError:
        raise
    except ValueError as error:
        raise Unusable("the mask cannot be read", str(error)) from error
    if coding == "instances":
        return np.where(values < _NUM_INSTANCES, values, values // _NUM_INSTANCES)
    return values


def count_values(arrays: Iterable[Values]) -> Counter[int]:
    """Return the number of pixels by value."""
    total: Counter[int] = Counter()
    for values in arrays:
        unique, counts = np.unique(values, return_counts=True)
        total.update(dict(zip(unique.tolist(), counts.tolist(), strict=True)))
    return total


def color_value(color: tuple[int, int, int]) -> int:
    """Return the value of a color."""
    return color[0] | color[1] << 8 | color[2] << 16


def shown_color(value: int) -> str:
    """Return the color of a value as people write it."""
    return f"{value & 255},{value >> 8 & 255},{value >> 16}"


def _stored_values(image: PillowImage.Image) -> Values:
    values = stored_labels(image)
    if values is None and image.mode in ("RGB", "RGBA", "LA"):
        bands = np.array(image)[:, :, : 3 if image.mode != "LA" else 1]
        if np.all(bands == bands[:, :, :1]):
            return bands[:, :, 0]  # a gray image that was saved in color
    if values is None:
        raise Unusable(IN_COLOR, f"mode {image.mode}")
    return values


def _color_values(image: PillowImage.Image) -> Values:
    if image.mode.startswith("I"):
        raise Unusable("the mask has labels instead of colors", f"mode {image.mode}")
    # Converting an RGB image would copy it, and masks may be large.
    bands = np.asarray(image if image.mode == "RGB" else image.convert("RGB"))
    values = bands[:, :, 2].astype(np.uint32)
    for band in (1, 0):
        values <<= 8
        values |= bands[:, :, band]
    return values
