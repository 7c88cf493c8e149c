"""Label Studio's JSON: tasks with their annotations, or the short form (JSON-MIN).

Corners are percent of the width and height. A brush is a bit stream (see ``shapes``). Of several
annotations of a task the one marked as ground truth counts, else the newest; canceled ones and
predictions do not. A result has a shape and its labels, or, in some configurations, there are two
results with one id, of which one has the shape and the other the labels.
"""

from collections.abc import Iterator
from functools import partial
from typing import Any

from nacre.importers.files import SUFFIXES, Export, File, split_of
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.rasterize import Patch, fill_ellipse, fill_ring, rectangle, turned
from nacre.importers.reading import Image, Kinds, Reading, as_dict, as_list, as_text, size_of
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

_KIND_BY_KEY = {
    "rle": "brush",
    "imageDataURL": "bitmask",
    "points": "polygon",
    "radiusX": "ellipse",
    "vertices": "vector",
    "height": "rectangle",
    "x": "keypoint",
}
"""What kind of region a result is, by what its value holds; without any of these it is none."""


def read(reading: Reading, files: list[File]) -> None:
    """Read Label Studio's JSON files."""
    reading.is_sorted = True
    for file in files:
        for _, task in reading.stream_json(file, [("*",)]):
            _read_task(reading, file, as_dict(task))


def _read_task(reading: Reading, file: File, task: Item) -> None:
    is_full = isinstance(task.get("data"), dict)
    results = _results(task) if is_full else _short_results(task)
    items = [as_dict(one) for one in results or []]
    # A shape may have its labels in another result with its id.
    labels = {_id(one): _labels(one) for one in items if _labels(one) and _id(one)}
    regions = list(_regions(items))
    name = _image_name(task["data"] if is_full else task, items)
    sizes = {_size(one) for one in regions} - {None}
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
    """Return the results of the annotation that counts; None if there is none."""
    annotations = map(as_dict, as_list(task.get("annotations") or task.get("completions")))
    valid = [
        one
        for one in annotations
        if not one.get("was_cancelled") and isinstance(one.get("result"), list)
    ]
    if not valid:
        return None
    best = max(valid, key=lambda one: (bool(one.get("ground_truth")), *_time(one)))
    return as_list(best["result"])


def _time(annotation: Item) -> tuple[str, int]:
    """Return by what annotations are ordered: their last change, then their number."""
    changed = annotation.get("updated_at") or annotation.get("created_at")
    number = annotation.get("id")
    return changed if isinstance(changed, str) else "", number if isinstance(number, int) else 0


def _short_results(task: Item) -> list[Any] | None:
    """Return the shapes of the short form as results of the long one; None if nobody annotated."""
    found = []
    for value in task.values():
        for one in as_list(value):
            if isinstance(one, dict) and "original_width" in one:
                found.append({**one, "value": one})
    return found if found or "annotation_id" in task else None


def _image_name(data: Item, items: list[Item]) -> str:
    """Return the address of the image: the one shapes point to, else the first that is one."""
    sources = [data.get(str(one.get("source", "")).removeprefix("$")) for one in items]
    usual = [data.get(key) for key in ("image", "img", "ocr", "photo")]
    texts = [text for text in data.values() if isinstance(text, str)]
    images = [text for text in texts if text.split("?")[0].lower().endswith(SUFFIXES)]
    named = (text for text in (*sources, *usual, *images, *texts) if isinstance(text, str))
    return next(named, "")


def _find_uploaded(export: Export, image: Image, task: Item) -> None:
    """Look for an image without the eight letters that Label Studio puts before its name."""
    name = task.get("file_upload") or image.name.rpartition("/")[2]
    if not isinstance(name, str):
        return
    start, dash, rest = name.partition("-")
    is_prefix = bool(dash) and len(start) == 8 and all(char in "0123456789abcdef" for char in start)
    for wanted in (name, rest) if is_prefix else (name,):
        if image.file is None and image.problem is None:
            image.find(export.finder, wanted)


def _regions(items: list[Item]) -> Iterator[Item]:
    """Yield the results that are regions of the image, each once."""
    seen = set()
    for one in items:
        if _kind(one) and _id(one) not in seen:
            yield one
            seen |= {_id(one)} - {""}


def _id(item: Item) -> str:
    return as_text(item.get("id"), "")


def _size(item: Item) -> tuple[int, int] | None:
    return size_of(item.get("original_width"), item.get("original_height"))


def _kind(item: Item) -> str:
    value, called = _value(item), as_text(item.get("type"), "")
    named = called.removesuffix("labels") if called.endswith("labels") else ""
    return next((kind for key, kind in _KIND_BY_KEY.items() if key in value), named)


def _labels(item: Item) -> list[Any]:
    value = _value(item)
    lists = (as_list(value[key]) for key in value if key.endswith("labels"))
    return next(filter(None, lists), [])


def _draw(reading: Reading, image: Image, region: Item, labels: list[Any]) -> None:
    kind = _kind(region)
    if kind in _KINDS:
        if not labels:
            reading.skip(image, "shapes without a label")
            return
        if len(labels) > 1:
            raise Unusable("a shape has several labels", brief(labels))
        rotation = region.get("image_rotation")
        if rotation not in (None, 0, 360):
            detail = f"by {brief(rotation)} degrees; turn it back there"
            raise Unusable("it was turned in Label Studio", detail)
    reading.draw_kind(image, _KINDS, kind, region, labels[0] if labels else None)


def _value(region: Item) -> Item:
    return as_dict(region.get("value"))


def _polygon(region: Item) -> Area | None:
    return ring_of(points_of(as_list(_value(region).get("points"))) / 100, is_relative=True)


def _bitmask(region: Item) -> Area:
    return partial(fill_whole_bitmap, decode_base64(_value(region).get("imageDataURL")))


def _brush(region: Item) -> Area:
    value, size = _value(region), _size(region)
    if value.get("format", "rle") != "rle" or size is None:
        form = f"the format {brief(value.get('format'))} and the size {brief(size)}"
        raise ValueError(f"its brush has {form}")
    try:
        return partial(decode_brush, bytes(as_list(value.get("rle"))), size)
    except (TypeError, ValueError):
        reason = f"its brush is {brief(value['rle'])}, not a list of bytes"
        raise ValueError(reason) from None


def _shares(region: Item, *keys: str) -> tuple[float, ...]:
    """Return place and size as shares of the image's, and by how many degrees it is turned."""
    value = _value(region)
    shares = (number / 100 for number in numbers_of(*(value.get(key) for key in ("x", "y", *keys))))
    return (*shares, *numbers_of(value.get("rotation") or 0))


def _ellipse(region: Item) -> Area:
    return partial(_fill_ellipse, _shares(region, "radiusX", "radiusY"))


def _fill_ellipse(shares: tuple[float, ...], width: int, height: int) -> Patch:
    x, y, along, across, degrees = shares
    center, radii = (x * width, y * height), (along * width, across * height)
    return fill_ellipse(center, radii, degrees, width, height)


def _box(region: Item) -> Area:
    return partial(_fill_box, _shares(region, "width", "height"))


def _fill_box(shares: tuple[float, ...], width: int, height: int) -> Patch:
    """Fill a box that is turned about its first corner."""
    x, y, wide, high, degrees = shares
    left, top = x * width, y * height
    ring = rectangle(left, top, (x + wide) * width, (y + high) * height)
    return fill_ring(turned(ring, degrees, (left, top)), width, height)


_KINDS: Kinds = {
    "brush": ("brush strokes", _brush),
    "polygon": ("polygons", _polygon),
    "rectangle": ("boxes", _box),
    "ellipse": ("ellipses", _ellipse),
    "bitmask": ("bitmasks", _bitmask),
}
