"""CVAT "for images 1.1" (annotations.xml), read piece by piece: such files reach hundreds of MB.

Polygons, boxes, ellipses and masks are painted in the order of ``z_order``, then of the document.
Runs of a mask go along the rows of its box.
"""

import re

import numpy as np

from nacre.errors import NacreError
from nacre.importers.documents import Element
from nacre.importers.files import Export, File, split_of
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.reading import Image, Reading, as_layer, color_of, size_of
from nacre.importers.rle import check_runs
from nacre.importers.shapes import Area, Box, Ellipse, RowRuns, numbers_of, points_of, ring_of
from nacre.importers.sniff import xml_kind

_PAIRS = re.compile(r"[^,;]+,[^,;]+(;[^,;]+,[^,;]+)*")
_KINDS = {"polygon": "polygons", "box": "boxes", "ellipse": "ellipses", "mask": "masks (RLE)"}
_NO_AREA = {
    "polyline": "polylines",
    "points": "points",
    "cuboid": "cuboids",
    "skeleton": "skeletons",
}


def find(export: Export) -> list[File]:
    """Return CVAT's XML files."""
    return [file for file in export.with_suffix(".xml") if xml_kind(export, file) == "cvat"]


def read(reading: Reading, files: list[File]) -> None:
    """Read CVAT's XML files."""
    for file in files:
        label: dict[str, str] = {}
        image: Image | None = None
        for element in reading.stream_xml(file):
            path = element.path
            if path == ("annotations", "track"):
                raise NacreError(
                    f"{brief(file.path)} is CVAT's format for videos; export it as 'CVAT for "
                    "images 1.1' or 'Segmentation mask 1.1'"
                )
            if path == ("annotations", "image"):
                image = _add(reading, file, element.attributes) if element.is_start else None
            elif path[:-1] == ("annotations", "image") and element.is_start and image is not None:
                _draw(reading, image, path[-1], element.attributes)
            elif path[:2] == ("annotations", "meta") and not element.is_start:
                _label(reading, file, element, label)


def _label(reading: Reading, file: File, element: Element, label: dict[str, str]) -> None:
    """Collect what stands in a label, and list its class at its end."""
    if element.path[-2:-1] == ("label",):
        label[element.path[-1]] = element.text.strip()
    elif element.path[-1] == "label":
        # The points of a skeleton are labels with a parent; they are no classes.
        if label.get("name") and not label.get("parent"):
            reading.list_class(label["name"], file, color_of(label.get("color")))
        label.clear()


def _add(reading: Reading, file: File, attributes: dict[str, str]) -> Image:
    name, subset = attributes.get("name", ""), attributes.get("subset", "")
    image = reading.add_image(
        f"{subset}/{name}" if subset and name else name or f"image {attributes.get('id')}",
        near=file.folder,
        split=split_of(subset) or split_of(name.rpartition("/")[0]),
        size=size_of(attributes.get("width"), attributes.get("height")),
        is_labeled=False,
    )
    if not name:
        image.spoil(Unusable("the export gives it no file name"))
    return image


def _draw(reading: Reading, image: Image, tag: str, attributes: dict[str, str]) -> None:
    if tag not in _KINDS and tag not in _NO_AREA:
        return
    image.is_labeled = True
    if not reading.takes(image, tag, _KINDS, _NO_AREA):
        return
    try:
        class_id, area = reading.class_id(attributes.get("label")), _MAKE[tag](attributes)
        layer = as_layer(attributes.get("z_order", 0))
        reading.draw(image, class_id, area, _KINDS[tag], layer)
    except Unusable as problem:
        image.spoil(problem)


def _polygon(attributes: dict[str, str]) -> Area | None:
    text = attributes.get("points", "").strip().strip(";")
    if text and not _PAIRS.fullmatch(text):
        raise Unusable(DAMAGED, f"its corners are not pairs of numbers: {brief(text)}")
    try:
        points = points_of([float(number) for number in text.replace(";", ",").split(",") if text])
    except ValueError:
        raise Unusable(DAMAGED, f"its corners are not numbers: {brief(text)}") from None
    return ring_of(points)


def _four(attributes: dict[str, str], *keys: str) -> tuple[float, float, float, float]:
    one, two, three, four = numbers_of(*(attributes.get(key) for key in keys))
    return one, two, three, four


def _box(attributes: dict[str, str]) -> Box:
    (degrees,) = numbers_of(attributes.get("rotation", 0))
    return Box(_four(attributes, "xtl", "ytl", "xbr", "ybr"), degrees)


def _ellipse(attributes: dict[str, str]) -> Ellipse:
    (degrees,) = numbers_of(attributes.get("rotation", 0))
    return Ellipse(_four(attributes, "cx", "cy", "rx", "ry"), degrees)


def _mask(attributes: dict[str, str]) -> RowRuns:
    left, top, width, height = map(int, _four(attributes, "left", "top", "width", "height"))
    text = attributes.get("rle", "").replace(",", " ")
    try:
        runs = check_runs(np.array(text.split(), np.float64))
    except ValueError as error:
        raise Unusable(DAMAGED, "its RLE holds something else than numbers") from error
    return RowRuns(runs, (left, top, width, height))


_MAKE = {"polygon": _polygon, "box": _box, "ellipse": _ellipse, "mask": _mask}
