"""Label Studio's JSON: tasks with their annotations, or the short form (JSON-MIN).

Corners are percentages of width and height. A brush is a bit stream (`nacre.importers.shapes`). Of
several annotations of a task, the one marked as ground truth counts, else the newest; canceled ones
and predictions do not. A result has a shape and its labels. In some configurations there are two
results with the same id, one with the shape and one with the labels.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from nacre.importers.files import SUFFIXES, Export, File, split_of
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.rasterize import Patch, fill_ellipse, fill_ring, rectangle, rotate
from nacre.importers.reading import AreaMakers, Image, Reading, as_dict, as_list, as_text, size_of
from nacre.importers.shapes import (
    Area,
    decode_base64,
    decode_brush,
    fill_whole_bitmap,
    numbers_of,
    points_of,
    ring_of,
)

Item = dict[str, Any]

_SHAPE_BY_KEY = {
    "rle": "brush",
    "imageDataURL": "bitmask",
    "points": "polygon",
    "radiusX": "ellipse",
    "vertices": "vector",
    "height": "rectangle",
    "x": "keypoint",
}
"""Type of a region by a key of its value; a result without these keys is not a region."""


def read(reading: Reading, files: list[File]) -> None:
    """Read Label Studio's JSON files."""
    reading.is_sorted = True
    for file in files:
        for _, task in reading.stream_json(file, [("*",)]):
            _read_task(reading, file, as_dict(task))


def _read_task(reading: Reading, file: File, task: Item) -> None:
    is_full = isinstance(task.get("data"), dict)
    results = _results(task) if is_full else _short_results(task)
    items = [as_dict(result) for result in results or []]
    # A shape may have its labels in another result with its id.
    labels = {_id(item): _labels(item) for item in items if _labels(item) and _id(item)}
    regions = list(_regions(items))
    name = _image_name(task["data"] if is_full else task, items)
    sizes = {_size(region) for region in regions} - {None}
    image = reading.add_image(
        name or f"task {brief(task.get('id'))}",
        near=file.folder,
        split=split_of(name.rpartition("/")[0]),
        size=next(iter(sizes)) if len(sizes) == 1 else None,
        is_relative=True,
        is_labeled=results is not None,
        is_listed=False,
    )
    _find_uploaded(reading.export, image, task)
    if not name:
        image.spoil("the export gives it no file name")
    if len(sizes) > 1:
        image.spoil(DAMAGED, "its shapes were drawn on images of several sizes")
    for region in regions:
        with image.noting():
            _draw(reading, image, region, _labels(region) or labels.get(_id(region), []))


def _results(task: Item) -> list[Any] | None:
    """Return the results of the annotation that counts, or None."""
    annotations = map(as_dict, as_list(task.get("annotations") or task.get("completions")))
    valid = [
        annotation
        for annotation in annotations
        if not annotation.get("was_cancelled") and isinstance(annotation.get("result"), list)
    ]
    if not valid:
        return None
    best = max(valid, key=_rank)
    return as_list(best["result"])


def _rank(annotation: Item) -> tuple[bool, str, int]:
    """Return True for ground truth, then the last change, then the number."""
    changed = annotation.get("updated_at") or annotation.get("created_at")
    number = annotation.get("id")
    return (
        bool(annotation.get("ground_truth")),
        changed if isinstance(changed, str) else "",
        number if isinstance(number, int) else 0,
    )


def _short_results(task: Item) -> list[Any] | None:
    """Return the shapes of the short form as results of the long one; None if unannotated."""
    shapes = [as_dict(shape) for value in task.values() for shape in as_list(value)]
    results = [{**shape, "value": shape} for shape in shapes if "original_width" in shape]
    return results if results or "annotation_id" in task else None


def _image_name(data: Item, items: list[Item]) -> str:
    """Return the URL of the image: the one that the shapes name, else the likeliest text."""
    sources = [data.get(str(item.get("source", "")).removeprefix("$")) for item in items]
    usual = [data.get(key) for key in ("image", "img", "ocr", "photo")]
    texts = [text for text in data.values() if isinstance(text, str)]
    images = [text for text in texts if text.split("?")[0].lower().endswith(SUFFIXES)]
    named = (text for text in (*sources, *usual, *images, *texts) if isinstance(text, str))
    return next(named, "")


def _find_uploaded(export: Export, image: Image, task: Item) -> None:
    """Look for an image without the eight characters that Label Studio puts before its name."""
    name = task.get("file_upload") or image.name.rpartition("/")[2]
    if not isinstance(name, str):
        return
    start, dash, rest = name.partition("-")
    is_prefix = bool(dash) and len(start) == 8 and all(char in "0123456789abcdef" for char in start)
    for wanted in (name, rest) if is_prefix else (name,):
        if image.file is None and image.problem is None:
            image.find(export.finder, wanted)


def _regions(items: list[Item]) -> Iterator[Item]:
    """Yield the results that are regions of the image, each id once."""
    ids = set()
    for item in items:
        if _shape_type(item) and _id(item) not in ids:
            yield item
            ids |= {_id(item)} - {""}


def _id(item: Item) -> str:
    return as_text(item.get("id"), "")


def _size(item: Item) -> tuple[int, int] | None:
    return size_of(item.get("original_width"), item.get("original_height"))


def _shape_type(item: Item) -> str:
    value, name = _value(item), as_text(item.get("type"), "")
    default = name.removesuffix("labels") if name.endswith("labels") else ""
    return next((shape for key, shape in _SHAPE_BY_KEY.items() if key in value), default)


def _labels(item: Item) -> list[Any]:
    value = _value(item)
    lists = (as_list(value[key]) for key in value if key.endswith("labels"))
    return next(filter(None, lists), [])


def _draw(reading: Reading, image: Image, region: Item, labels: list[Any]) -> None:
    shape_type = _shape_type(region)
    if shape_type in _AREAS:
        if not labels:
            reading.skip(image, "shapes without a label")
            return
        if len(labels) > 1:
            raise Unusable("a shape has several labels", brief(labels))
        rotation = region.get("image_rotation")
        if rotation not in (None, 0, 360):
            detail = f"by {brief(rotation)} degrees; rotate it back there"
            raise Unusable("it was rotated in Label Studio", detail)
    reading.draw_as(image, _AREAS, shape_type, region, labels[0] if labels else None)


def _value(region: Item) -> Item:
    return as_dict(region.get("value"))


def _polygon(region: Item) -> Area | None:
    return ring_of(points_of(as_list(_value(region).get("points"))) / 100, is_relative=True)


def _bitmask(region: Item) -> Area:
    return partial(fill_whole_bitmap, decode_base64(_value(region).get("imageDataURL")))


def _brush(region: Item) -> Area:
    value, size = _value(region), _size(region)
    if value.get("format", "rle") != "rle" or size is None:
        raise ValueError(
            f"its brush has the format {brief(value.get('format'))} and the size {brief(size)}"
        )
    try:
        return partial(decode_brush, bytes(as_list(value.get("rle"))), size)
    except (TypeError, ValueError):
        reason = f"its brush is {brief(value['rle'])}, not a list of bytes"
        raise ValueError(reason) from None


def _fractions(region: Item, *keys: str) -> tuple[float, ...]:
    """Return position and size as fractions of the image's, and the rotation in degrees."""
    value = _value(region)
    percent = numbers_of(*(value.get(key) for key in ("x", "y", *keys)))
    return (*(number / 100 for number in percent), *numbers_of(value.get("rotation") or 0))


def _ellipse(region: Item) -> Area:
    return partial(_fill_ellipse, _fractions(region, "radiusX", "radiusY"))


def _fill_ellipse(fractions: tuple[float, ...], width: int, height: int) -> Patch:
    x, y, along, across, degrees = fractions
    center, radii = (x * width, y * height), (along * width, across * height)
    return fill_ellipse(center, radii, degrees, width, height)


def _box(region: Item) -> Area:
    return partial(_fill_box, _fractions(region, "width", "height"))


def _fill_box(fractions: tuple[float, ...], width: int, height: int) -> Patch:
    """Fill a box that is rotated about its first corner."""
    x, y, wide, high, degrees = fractions
    left, top = x * width, y * height
    ring = rectangle(left, top, (x + wide) * width, (y + high) * height)
    return fill_ring(rotate(ring, degrees, (left, top)), width, height)


_AREAS: AreaMakers = {
    "brush": _brush,
    "polygon": _polygon,
    "rectangle": _box,
    "ellipse": _ellipse,
    "bitmask": _bitmask,
}
