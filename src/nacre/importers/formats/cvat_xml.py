"""CVAT "for images 1.1" (annotations.xml), read piece by piece: such files reach hundreds of MB.

Polygons, boxes, ellipses and masks are painted in the order of ``z_order``, then of the document.
Runs of a mask go along the rows of its box.
"""

import re
from dataclasses import dataclass, field

import numpy as np

from nacre.errors import NacreError
from nacre.importers.catalog import color_of, size_of
from nacre.importers.files.export import split_of
from nacre.importers.files.tree import File
from nacre.importers.files.xmlstream import Element
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import NO_AREA, SKIPPED_BOX, Source, as_layer
from nacre.importers.shapes import shape as shapes
from nacre.importers.shapes.rle import check_runs
from nacre.importers.shapes.shape import DAMAGED, Shape, numbers_of, points_of

_PAIRS = re.compile(r"[^,;]+,[^,;]+(;[^,;]+,[^,;]+)*")
_KINDS = {"polygon": "polygons", "box": "boxes", "ellipse": "ellipses", "mask": "masks (RLE)"}
_NO_AREA = {
    "polyline": "polylines",
    "points": "points",
    "cuboid": "cuboids",
    "skeleton": "skeletons",
}


@dataclass
class _State:
    """Where in the document the reader is."""

    label: dict[str, str] = field(default_factory=dict)
    picture: int | None = None


def read(source: Source, files: list[File]) -> None:
    """Read CVAT's XML files."""
    for file in files:
        state = _State()
        for element in source.stream_xml(file):
            if element.is_start:
                _start(source, file, state, element)
            else:
                _end(source, file, state, element)


def _start(source: Source, file: File, state: _State, element: Element) -> None:
    path, tag = element.path, element.path[-1]
    if path == ("annotations", "track"):
        raise NacreError(
            f"{brief(file.path)} is CVAT's format for videos; export it as 'CVAT for images 1.1' "
            "or 'Segmentation mask 1.1'"
        )
    if path == ("annotations", "image"):
        state.picture = _picture(source, file, element.attributes)
    elif path[:-1] == ("annotations", "image") and state.picture is not None:
        source.catalog.pictures[state.picture].is_labeled |= tag in _KINDS or tag in _NO_AREA
        try:
            _shape(source, state.picture, tag, element.attributes)
        except Unusable as problem:
            source.catalog.spoil(state.picture, problem)


def _end(source: Source, file: File, state: _State, element: Element) -> None:
    path = element.path
    if path == ("annotations", "image"):
        state.picture = None
    elif path[:2] == ("annotations", "meta") and path[-2:-1] == ("label",):
        state.label[path[-1]] = element.text.strip()
    elif path[:2] == ("annotations", "meta") and path[-1] == "label":
        # The points of a skeleton are labels with a parent; they are no classes.
        if state.label.get("name") and not state.label.get("parent"):
            source.list_class(state.label["name"], file, color_of(state.label.get("color")))
        state.label = {}


def _picture(source: Source, file: File, attributes: dict[str, str]) -> int:
    name = attributes.get("name", "")
    subset = attributes.get("subset", "")
    index = source.add_picture(
        f"{subset}/{name}" if subset and name else name or f"image {attributes.get('id')}",
        near=file.folder,
        split=split_of(subset) or split_of(name.rpartition("/")[0]),
        size=size_of(attributes.get("width"), attributes.get("height")),
        is_labeled=False,
    )
    if not name:
        source.catalog.spoil(index, Unusable("the export gives it no file name"))
    return index


def _shape(source: Source, index: int, tag: str, attributes: dict[str, str]) -> None:
    if tag in _NO_AREA:
        source.catalog.skip(index, NO_AREA.format(_NO_AREA[tag]))
    elif tag == "box" and source.boxes == "skip":
        source.catalog.skip(index, SKIPPED_BOX)
    elif tag in _KINDS:
        class_id = source.catalog.class_id(attributes.get("label"))
        shape = _MAKE[tag](class_id, attributes)
        if shape is None:
            source.catalog.skip(index, "outlines with fewer than three corners")
            return
        drawn = shape._replace(layer=as_layer(attributes.get("z_order", 0)))
        source.catalog.draw(index, drawn, _KINDS[tag])


def _polygon(class_id: int, attributes: dict[str, str]) -> Shape | None:
    text = attributes.get("points", "").strip().strip(";")
    if text and not _PAIRS.fullmatch(text):
        raise Unusable(DAMAGED, f"its corners are not pairs of numbers: {brief(text)}")
    try:
        points = points_of([float(number) for number in text.replace(";", ",").split(",") if text])
    except ValueError:
        raise Unusable(DAMAGED, f"its corners are not numbers: {brief(text)}") from None
    return shapes.rings(class_id, [(points, ())]) if len(points) >= 3 else None


def _box(class_id: int, attributes: dict[str, str]) -> Shape:
    left, top, right, bottom = numbers_of(
        *(attributes.get(key) for key in ("xtl", "ytl", "xbr", "ybr"))
    )
    (degrees,) = numbers_of(attributes.get("rotation", 0))
    return shapes.box(class_id, (left, top, right, bottom), degrees)


def _ellipse(class_id: int, attributes: dict[str, str]) -> Shape:
    x, y, rx, ry = numbers_of(*(attributes.get(key) for key in ("cx", "cy", "rx", "ry")))
    (degrees,) = numbers_of(attributes.get("rotation", 0))
    return shapes.ellipse(class_id, (x, y, rx, ry), degrees)


def _mask(class_id: int, attributes: dict[str, str]) -> Shape:
    left, top, width, height = numbers_of(
        *(attributes.get(key) for key in ("left", "top", "width", "height"))
    )
    text = attributes.get("rle", "").replace(",", " ")
    try:
        runs = check_runs(np.array(text.split(), np.float64))
    except ValueError as error:
        raise Unusable(DAMAGED, "its RLE holds something else than numbers") from error
    return shapes.rows(class_id, runs, (int(left), int(top), int(width), int(height)))


_MAKE = {"polygon": _polygon, "box": _box, "ellipse": _ellipse, "mask": _mask}
