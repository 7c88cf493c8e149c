"""Outlines that are all boxes: are they the objects, or frames around them?

Detection exports write the corners of a box, upright or turned, where an outline should be. Nobody
can tell them from areas, so whoever imports them is asked.
"""

from itertools import chain

import numpy as np
from PIL import Image as PillowImage

from nacre.errors import NacreError
from nacre.importers.files import Export
from nacre.importers.masks import BAD_IMAGE
from nacre.importers.problems import counted
from nacre.importers.rasterize import Points
from nacre.importers.reading import Image, Reading
from nacre.importers.shapes import Outline, Shape

_PIXELS = 1.0
"""Corners that are rounded to whole pixels make a box crooked by about that much."""


def ask_about_boxes(reading: Reading) -> None:
    """Refuse outlines that are all boxes in a format of boxes, unless the user says to fill them.

    Raises:
        NacreError: They are, and the user did not.
    """
    if reading.order != "area" or reading.boxes == "fill":
        return
    shapes = list(chain.from_iterable(image.shapes for image in reading.images))
    if not shapes or not all(_corners(shape) is not None for shape in shapes):
        return
    if all(_has_boxes(reading.export, image) for image in reading.images):
        count = counted(len(shapes), "outline")
        raise NacreError(
            f"all of the export's outlines ({count}) are boxes with four right angles; if these "
            "are the objects themselves, say --boxes fill; if they are frames around objects, the "
            "objects' outlines are missing: label areas, or make masks of the boxes first"
        )


def _corners(shape: Shape) -> Points | None:
    """Return the four corners of a shape that may be a box."""
    area = shape.area
    if not isinstance(area, Outline) or len(area.parts) != 1 or area.parts[0][1]:
        return None
    ring = area.parts[0][0]
    if len(ring) == 5 and np.array_equal(ring[0], ring[4]):
        ring = ring[:4]
    return ring if len(ring) == 4 else None


def _has_boxes(export: Export, image: Image) -> bool:
    """Return whether all shapes of an image are boxes in pixels."""
    is_relative = any(shape.area.is_relative for shape in image.shapes)
    size = _size(export, image) if is_relative else (1, 1)
    return all(_is_box(ring * size) for ring in map(_corners, image.shapes) if ring is not None)


def _is_box(ring: Points) -> bool:
    """Return whether the diagonals of four corners are equally long and halve each other."""
    first, second = ring[2] - ring[0], ring[3] - ring[1]
    apart = np.abs(ring[0] + ring[2] - ring[1] - ring[3]).max() / 2
    lengths = abs(np.hypot(*first) - np.hypot(*second))
    return bool(apart <= _PIXELS and lengths <= _PIXELS)


def _size(export: Export, image: Image) -> tuple[int, int]:
    """Return the size of an image by the head of its file; squares where there is none."""
    if image.size is not None or image.file is None:
        return image.size or (1, 1)
    try:
        with export.open(image.file) as file, PillowImage.open(file) as opened:
            return opened.size
    except (*BAD_IMAGE, NacreError):
        return 1, 1
