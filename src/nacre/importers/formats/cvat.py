"""CVAT "for images 1.1" (annotations.xml), read image by image: these files reach hundreds of MB.

Polygons, boxes, ellipses and masks are painted in the order of ``z_order``, then of the document.
Runs of a mask go along the rows of its box.
"""

import re
from functools import partial
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from nacre.errors import NacreError
from nacre.importers.files import File, split_of
from nacre.importers.problems import brief
from nacre.importers.rasterize import fill_ellipse, rectangle
from nacre.importers.reading import AreaMakers, Reading, color_of, size_of
from nacre.importers.shapes import Area, check_runs, decode_rows, numbers_of, points_of, ring_of

_PAIRS = re.compile(r"[^,;]+,[^,;]+(;[^,;]+,[^,;]+)*")


def read(reading: Reading, files: list[File]) -> None:
    """Read CVAT's XML files."""
    for file in files:
        for _, element in reading.stream_xml(file):
            if element.tag == "track":
                raise NacreError(
                    f"{brief(file.path)} is CVAT's format for videos; export it as 'CVAT for "
                    "images 1.1' or 'Segmentation mask 1.1'"
                )
            if element.tag == "image":
                _read_image(reading, file, element)
            elif element.tag == "meta":
                _read_labels(reading, file, element)


def _read_labels(reading: Reading, file: File, meta: Element) -> None:
    for label in meta.iter("label"):
        name = label.findtext("name", "").strip()
        # The points of a skeleton are labels with a parent, not classes.
        if name and not label.findtext("parent", "").strip():
            reading.list_class(name, file, color_of(label.findtext("color")))


def _read_image(reading: Reading, file: File, element: Element) -> None:
    name, subset = element.get("name", ""), element.get("subset", "")
    image = reading.add_image(
        f"{subset}/{name}" if subset and name else name,
        near=file.folder,
        split=split_of(subset) or split_of(name.rpartition("/")[0]),
        size=size_of(element.get("width"), element.get("height")),
    )
    shapes = [shape for shape in element if shape.tag != "tag"]
    image.is_labeled = bool(shapes)
    for shape in sorted(shapes, key=_layer):
        with image.noting():
            reading.draw_as(image, _AREAS, shape.tag, shape, shape.get("label"))


def _layer(shape: Element) -> float:
    """Return the z order of a shape, or 0 if it is not a number."""
    try:
        return numbers_of(shape.get("z_order", 0))[0]
    except ValueError:
        return 0


def _polygon(shape: Element) -> Area | None:
    text = shape.get("points", "").strip().strip(";")
    if text and not _PAIRS.fullmatch(text):
        raise ValueError(f"its corners are not pairs of numbers: {brief(text)}")
    return ring_of(points_of(text.replace(";", ",").split(",") if text else []))


def _numbers(shape: Element, *keys: str) -> tuple[Any, ...]:
    return numbers_of(*(shape.get(key) for key in keys), shape.get("rotation", 0))


def _box(shape: Element) -> Area | None:
    return ring_of(rectangle(*_numbers(shape, "xtl", "ytl", "xbr", "ybr")))


def _ellipse(shape: Element) -> Area:
    x, y, along, across, degrees = _numbers(shape, "cx", "cy", "rx", "ry")
    return partial(fill_ellipse, (x, y), (along, across), degrees)


def _mask(shape: Element) -> Area:
    left, top, width, height, _ = map(int, _numbers(shape, "left", "top", "width", "height"))
    try:
        runs = check_runs(np.array(shape.get("rle", "").replace(",", " ").split(), np.float64))
    except ValueError as error:
        raise ValueError("its RLE is not a list of numbers") from error
    return partial(decode_rows, runs, (left, top, width, height))


_AREAS: AreaMakers = {
    "polygon": _polygon,
    "box": _box,
    "ellipse": _ellipse,
    "mask": _mask,
}
