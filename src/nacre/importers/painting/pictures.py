"""The pictures of an export: their size upright and as stored, and which of the two was annotated.

A camera that was held sideways stores the picture as its sensor saw it and says how to turn it
(EXIF orientation). Annotation tools show the turned picture, but not all of them, and some code
that handles exports reads the stored one. nacre turns pictures when it reads them, so masks are
upright, too: one that was drawn on the stored pixels is turned.
"""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.data.image_io import FORMATS, load, open_image, orientation
from nacre.errors import NacreError
from nacre.importers.painting.masks import BAD_PICTURE
from nacre.importers.problems import Unusable, brief

Frame = Literal["upright", "stored"]

_ORIENTATION = 0x0112
_SIDEWAYS = (5, 6, 7, 8)
_SMALL = 64


@dataclass(frozen=True)
class Look:
    """What a picture file says of itself.

    Attributes:
        stored: Width and height of the stored pixels.
        orientation: How they are to be turned; 1 is upright.
    """

    stored: tuple[int, int]
    orientation: int

    @property
    def upright(self) -> tuple[int, int]:
        """Width and height of the turned picture."""
        wide, high = self.stored
        return (high, wide) if self.orientation in _SIDEWAYS else (wide, high)


def look_at(path: Path) -> Look:
    """Read a picture as nacre will, to see that it is whole; return its size and orientation.

    Raises:
        Unusable: It is damaged, too large or not a picture.
    """
    try:
        picture = open_image(path)
        # A JPEG is decoded at an eighth of its size, which reads all of the file as well.
        picture.draft("RGB", (_SMALL, _SMALL))
        load(picture)
        with Image.open(path, formats=FORMATS) as image:
            size, turn = image.size, orientation(image)
            if image.format == "PNG":
                # Pillow takes the pixels from a file whose chunks are wrong; the index does not.
                image.verify()
            if image.format != "TIFF":
                return Look(size, turn)
            # Pillow turns TIFF files by itself and tells their upright size.
            turn = int(image.getexif().get(_ORIENTATION, 1) or 1)
    except (NacreError, *BAD_PICTURE, TypeError) as error:
        reason = str(error).rpartition(str(path))[2].strip() or type(error).__name__
        raise Unusable("the picture cannot be used", brief(reason)) from error
    turn = turn if 1 <= turn <= 8 else 1
    return Look((size[1], size[0]) if turn in _SIDEWAYS else size, turn)


def choose_frame(
    look: Look, annotated: tuple[int, int] | None, is_relative: bool
) -> tuple[Frame, bool]:
    """Say in which frame a picture was annotated, and whether that is sure.

    Args:
        look: The picture.
        annotated: Width and height that the annotation was made at, if known.
        is_relative: Coordinates are shares of the size, so that only its proportions count.

    Raises:
        Unusable: The annotation fits in neither.
    """
    upright, stored = look.upright, look.stored
    if annotated is None:
        return "upright", look.orientation == 1
    fits = {
        frame: size == annotated or (is_relative and _alike(size, annotated))
        for frame, size in (("upright", upright), ("stored", stored))
    }
    if fits["upright"]:
        return "upright", look.orientation == 1 or not fits["stored"]
    if fits["stored"]:
        return "stored", True
    raise Unusable(
        "the picture has another size than its annotation",
        f"{upright[0]} x {upright[1]}, annotated at {annotated[0]} x {annotated[1]}",
    )


def turn_upright(mask: npt.NDArray[Any], orientation: int) -> npt.NDArray[Any]:
    """Turn a mask of the stored pixels as the picture is turned."""
    return _TURNS[orientation](mask)


def _alike(size: tuple[int, int], other: tuple[int, int]) -> bool:
    """Whether two sizes have the same proportions, rounding to whole pixels aside."""
    return abs(size[0] * other[1] - size[1] * other[0]) <= max(*size, *other)


_TURNS: dict[int, Callable[[npt.NDArray[Any]], npt.NDArray[Any]]] = {
    1: lambda mask: mask,
    2: np.fliplr,
    3: lambda mask: np.rot90(mask, 2),
    4: np.flipud,
    5: np.transpose,
    6: lambda mask: np.rot90(mask, -1),
    7: lambda mask: np.transpose(np.rot90(mask, 2)),
    8: np.rot90,
}
