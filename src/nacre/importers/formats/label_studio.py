"""Label Studio's JSON: tasks with their annotations, or the short form (JSON-MIN).

Corners are percent of the width and height. A brush is a bit stream (see ``rle``). Of several
annotations of a task the one marked as ground truth counts, else the newest; canceled ones and
predictions do not. A result has a shape and its labels, or, in some configurations, there are two
results with one id, of which one has the shape and the other the labels.
"""

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from nacre.importers.files import SUFFIXES, File, split_of
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.reading import Image, Reading, as_dict, as_list, as_text, size_of
from nacre.importers.shapes import (
    Area,
    Bitmap,
    Box,
    Brush,
    Ellipse,
    decode_base64,
    numbers_of,
    points_of,
    ring_of,
)

_KINDS = {
    "brush": "brush strokes",
    "polygon": "polygons",
    "rectangle": "boxes",
    "ellipse": "ellipses",
    "bitmask": "bitmasks",
}
_NO_AREA = {"keypoint": "key points", "vector": "lines"}
_NOT_SHAPES = (
    *("choices", "textarea", "rating", "taxonomy", "relation", "number", "pairwise"),
    *("datetime", "ranker", "videorectangle", "timelinelabels"),
)
_KIND_BY_KEY = {
    "rle": "brush",
    "imageDataURL": "bitmask",
    "points": "polygon",
    "radiusX": "ellipse",
    "vertices": "vector",
}


class _Region(NamedTuple):
    """One region of an image.

    Attributes:
        kind: brush, polygon, rectangle, ellipse, bitmask, keypoint, vector, or another word.
        labels: The names of its classes.
        value: Its geometry.
        size: Width and height of the image that it was drawn on, if it says so.
        rotation: By how many degrees the image was turned in Label Studio.
    """

    kind: str
    labels: list[Any]
    value: dict[str, Any]
    size: tuple[int, int] | None
    rotation: Any


def read(reading: Reading, files: list[File]) -> None:
    """Read Label Studio's JSON files."""
    reading.is_sorted = True
    for file in files:
        for _, task in reading.stream_json(file, [("*",)]):
            _read_task(reading, file, as_dict(task))


def _read_task(reading: Reading, file: File, task: dict[str, Any]) -> None:
    is_full = isinstance(task.get("data"), dict)
    results = _results(task) if is_full else _short_results(task)
    regions = list(_regions(results or []))
    name = _image_name(task["data"] if is_full else task, results or [])
    sizes = {one.size for one in regions} - {None}
    image = reading.add_image(
        name or f"task {brief(task.get('id'))}",
        near=file.folder,
        split=split_of(name.rpartition("/")[0]),
        size=next(iter(sizes)) if len(sizes) == 1 else None,
        is_labeled=results is not None,
        is_listed=False,
    )
    _find_uploaded(reading, image, task)
    if not name:
        image.spoil(Unusable("the export gives it no file name"))
    if len(sizes) > 1:
        image.spoil(Unusable(DAMAGED, "its shapes were drawn on images of several sizes"))
    for region in regions:
        try:
            _draw(reading, image, region)
        except Unusable as problem:
            image.spoil(problem)


def _results(task: dict[str, Any]) -> list[Any] | None:
    """Return the results of the annotation that counts; None if there is none."""
    annotations = map(as_dict, as_list(task.get("annotations") or task.get("completions")))
    valid = [
        one
        for one in annotations
        if not one.get("was_cancelled") and isinstance(one.get("result"), list)
    ]
    if not valid:
        return None
    best = max(valid, key=lambda one: (bool(one.get("ground_truth")), _time(one)))
    return as_list(best["result"])


def _time(annotation: dict[str, Any]) -> tuple[str, int]:
    """Return by what annotations are ordered: their last change, then their number."""
    changed = annotation.get("updated_at") or annotation.get("created_at")
    number = annotation.get("id")
    return changed if isinstance(changed, str) else "", number if isinstance(number, int) else 0


def _short_results(task: dict[str, Any]) -> list[Any] | None:
    """Return the shapes of the short form as results of the long one; None if nobody annotated."""
    found = []
    for value in task.values():
        for one in as_list(value):
            if isinstance(one, dict) and "original_width" in one:
                kind = next((key for key in one if key.endswith("labels")), "")
                found.append({**one, "type": kind, "value": one})
    return found if found or "annotation_id" in task else None


def _image_name(data: dict[str, Any], results: list[Any]) -> str:
    """Return the address of the image: the one shapes point to, else the first that is one."""
    for one in map(as_dict, results):
        key = str(one.get("source", "")).removeprefix("$")
        if isinstance(data.get(key), str):
            return str(data[key])
    usual = [data.get(key) for key in ("image", "img", "ocr", "photo")]
    texts = [text for text in data.values() if isinstance(text, str)]
    images = [text for text in texts if text.split("?")[0].lower().endswith(SUFFIXES)]
    named = [text for text in usual if isinstance(text, str)]
    return next(iter((*named, *images, *texts)), "")


def _find_uploaded(reading: Reading, image: Image, task: dict[str, Any]) -> None:
    """Look for an image without the eight letters that Label Studio puts before its name."""
    name = task.get("file_upload") or image.name.rpartition("/")[2]
    if not isinstance(name, str):
        return
    start, dash, rest = name.partition("-")
    is_prefix = bool(dash) and len(start) == 8 and all(char in "0123456789abcdef" for char in start)
    for wanted in (name, rest) if is_prefix else (name,):
        if image.file is None and image.problem is None:
            image.find(reading.export.finder, wanted)


def _regions(results: list[Any]) -> Iterator[_Region]:
    """Yield the regions that results describe, each once."""
    items = [as_dict(one) for one in results]
    labels = {_id(one): _labels(one) for one in items if _labels(one)}
    seen = set()
    for one in items:
        kind, key = _kind(one), _id(one)
        if kind in _NOT_SHAPES or kind == "" or (key != "" and key in seen):
            continue
        seen.add(key)
        yield _Region(
            kind,
            _labels(one) or (labels.get(key, []) if key else []),
            as_dict(one.get("value")),
            size_of(one.get("original_width"), one.get("original_height")),
            one.get("image_rotation"),
        )


def _id(one: dict[str, Any]) -> str:
    return as_text(one.get("id"), "")


def _kind(one: dict[str, Any]) -> str:
    """Return what kind of region a result is, by what it holds and else by what it is called."""
    value = as_dict(one.get("value"))
    name = one.get("type")
    called = name.casefold().removesuffix("labels") if isinstance(name, str) else ""
    if called in _NOT_SHAPES:
        return called
    for key, kind in _KIND_BY_KEY.items():
        if key in value:
            return kind
    if {"x", "y", "width", "height"} <= value.keys() and called != "keypoint":
        return "rectangle"
    return "keypoint" if "x" in value else called


def _labels(one: dict[str, Any]) -> list[Any]:
    value = as_dict(one.get("value"))
    named = [one.get("type"), *(key for key in value if key.endswith("labels"))]
    found = [as_list(value.get(key)) for key in named if isinstance(key, str)]
    return next((labels for labels in found if labels), [])


def _draw(reading: Reading, image: Image, region: _Region) -> None:
    if not reading.takes(image, region.kind, _KINDS, _NO_AREA):
        return
    if not region.labels:
        reading.skip(image, "shapes without a label")
        return
    class_id = reading.class_id(region.labels[0])
    if len(region.labels) > 1:
        raise Unusable("a shape has several labels", brief(region.labels))
    if region.rotation not in (None, 0, 360):
        detail = f"by {brief(region.rotation)} degrees; turn it back there"
        raise Unusable("it was turned in Label Studio", detail)
    reading.draw(image, class_id, _MAKE[region.kind](region), _KINDS[region.kind])


def _brush(region: _Region) -> Area:
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
    return Brush(code, size)


def _polygon(region: _Region) -> Area | None:
    return ring_of(points_of(as_list(region.value.get("points"))) / 100, is_relative=True)


def _rectangle(region: _Region) -> Area:
    x, y, width, height = _shares(region, "x", "y", "width", "height")
    (degrees,) = numbers_of(region.value.get("rotation") or 0)
    corners = (x, y, x + width, y + height)
    return Box(corners, degrees, about_corner=True, is_relative=True)


def _ellipse(region: _Region) -> Area:
    x, y, along, across = _shares(region, "x", "y", "radiusX", "radiusY")
    (degrees,) = numbers_of(region.value.get("rotation") or 0)
    return Ellipse((x, y, along, across), degrees, is_relative=True)


def _shares(region: _Region, *keys: str) -> list[float]:
    """Return percents as shares."""
    return [number / 100 for number in numbers_of(*(region.value.get(key) for key in keys))]


def _bitmask(region: _Region) -> Area:
    return Bitmap(decode_base64(region.value.get("imageDataURL")), is_whole=True)


_MAKE: dict[str, Callable[[_Region], Area | None]] = {
    "brush": _brush,
    "polygon": _polygon,
    "rectangle": _rectangle,
    "ellipse": _ellipse,
    "bitmask": _bitmask,
}
