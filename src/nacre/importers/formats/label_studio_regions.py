"""The regions that Label Studio's results describe: their kind, their labels and their shape.

A result holds a shape and its labels, or, in some configurations, there are two results with one
id, of which one has the shape and the other the labels.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nacre.importers.catalog import size_of
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import as_dict, as_list, as_text
from nacre.importers.shapes import shape as shapes
from nacre.importers.shapes.shape import (
    DAMAGED,
    Shape,
    decode_base64,
    numbers_of,
    points_of,
)

_NOT_SHAPES = (
    *("choices", "textarea", "rating", "taxonomy", "relation", "number", "pairwise"),
    *("datetime", "ranker", "videorectangle", "timelinelabels"),
)


class Region(NamedTuple):
    """One region of a picture.

    Attributes:
        kind: brush, polygon, rectangle, ellipse, bitmask, keypoint, vector, or another word.
        labels: The names of its classes.
        value: Its geometry.
        size: Width and height of the picture that it was drawn on, if it says so.
        rotation: By how many degrees the picture was turned in Label Studio.
    """

    kind: str
    labels: list[Any]
    value: dict[str, Any]
    size: tuple[int, int] | None
    rotation: Any


def regions_of(results: list[Any]) -> Iterator[Region]:
    """Yield the regions that results describe, each once."""
    items = [as_dict(one) for one in results]
    labels = {_id(one): _labels(one) for one in items if _labels(one)}
    seen = set()
    for one in items:
        kind, key = _kind(one), _id(one)
        if kind in _NOT_SHAPES or kind == "" or (key != "" and key in seen):
            continue
        seen.add(key)
        yield Region(
            kind,
            _labels(one) or (labels.get(key, []) if key else []),
            as_dict(one.get("value")),
            size_of(one.get("original_width"), one.get("original_height")),
            one.get("image_rotation"),
        )


def make_shape(region: Region, class_id: int) -> Shape | None:
    """Return the shape of a region; None if it has too few corners.

    Raises:
        Unusable: It is damaged.
    """
    return _MAKE[region.kind](class_id, region)


def _id(one: dict[str, Any]) -> str:
    return as_text(one.get("id"), "")


def _kind(one: dict[str, Any]) -> str:
    """Return what kind of region a result is, by what it holds and else by what it is called."""
    value = as_dict(one.get("value"))
    name = one.get("type")
    called = name.casefold().removesuffix("labels") if isinstance(name, str) else ""
    if called in _NOT_SHAPES:
        return called
    for key, kind in _BY_KEY.items():
        if key in value:
            return kind
    if {"x", "y", "width", "height"} <= value.keys() and called != "keypoint":
        return "rectangle"
    return "keypoint" if "x" in value else called


_BY_KEY = {
    "rle": "brush",
    "imageDataURL": "bitmask",
    "points": "polygon",
    "radiusX": "ellipse",
    "vertices": "vector",
}


def _labels(one: dict[str, Any]) -> list[Any]:
    value = as_dict(one.get("value"))
    named = [one.get("type"), *(key for key in value if key.endswith("labels"))]
    found = [as_list(value.get(key)) for key in named if isinstance(key, str)]
    return next((labels for labels in found if labels), [])


def _brush(class_id: int, region: Region) -> Shape:
    value, size = region.value, region.size
    if value.get("format", "rle") != "rle" or size is None:
        form = f"the format {brief(value.get('format'))} and the size {brief(size)}"
        raise Unusable(DAMAGED, f"its brush has {form}")
    try:
        code = bytes(value["rle"]) if isinstance(value["rle"], list) else None
    except (TypeError, ValueError):
        code = None
    if code is None:
        raise Unusable(DAMAGED, f"its brush is {brief(value['rle'])}, not a list of bytes")
    return shapes.brush(class_id, code, *size)


def _polygon(class_id: int, region: Region) -> Shape | None:
    points = points_of(as_list(region.value.get("points"))) / 100
    return shapes.rings(class_id, [(points, ())], is_relative=True) if len(points) >= 3 else None


def _rectangle(class_id: int, region: Region) -> Shape:
    x, y, width, height = _shares(region, "x", "y", "width", "height")
    (degrees,) = numbers_of(region.value.get("rotation") or 0)
    corners = (x, y, x + width, y + height)
    return shapes.box(class_id, corners, degrees, about_corner=True, is_relative=True)


def _ellipse(class_id: int, region: Region) -> Shape:
    x, y, along, across = _shares(region, "x", "y", "radiusX", "radiusY")
    (degrees,) = numbers_of(region.value.get("rotation") or 0)
    return shapes.ellipse(class_id, (x, y, along, across), degrees, is_relative=True)


def _shares(region: Region, *keys: str) -> list[float]:
    """Return percents as shares."""
    return [number / 100 for number in numbers_of(*(region.value.get(key) for key in keys))]


def _bitmask(class_id: int, region: Region) -> Shape:
    picture = decode_base64(region.value.get("imageDataURL"))
    return shapes.bitmap(class_id, picture, 0, 0, is_whole=True)


_MAKE: dict[str, Callable[[int, Region], Shape | None]] = {
    "brush": _brush,
    "polygon": _polygon,
    "rectangle": _rectangle,
    "ellipse": _ellipse,
    "bitmask": _bitmask,
}
