"""Label Studio's JSON: tasks with their annotations, or the short form (JSON-MIN).

Corners are percent of the width and height. A brush is a bit stream (see ``rle``). Of several
annotations of a task the one marked as ground truth counts, else the newest; cancelled ones and
predictions do not.
"""

from collections.abc import Iterator
from typing import Any

import numpy as np

from nacre.data.importers.catalog import size_of
from nacre.data.importers.files.export import split_of
from nacre.data.importers.files.tree import File
from nacre.data.importers.problems import Unusable, brief
from nacre.data.importers.reading import NO_AREA, SKIPPED_BOX, Source, as_dict, as_list
from nacre.data.importers.shapes import shape as shapes
from nacre.data.importers.shapes.shape import DAMAGED, Shape, decode_base64, numbers_of, points_of

_KINDS = {
    "brush": "brush strokes",
    "polygon": "polygons",
    "rectangle": "boxes",
    "ellipse": "ellipses",
    "bitmask": "bitmasks",
}
_NO_AREA = {"keypoint": "key points", "vector": "lines"}
_NOT_SHAPES = (
    "choices",
    "textarea",
    "rating",
    "taxonomy",
    "relation",
    "number",
    "pairwise",
    "datetime",
)


def read(source: Source, files: list[File]) -> None:
    """Read Label Studio's JSON files."""
    source.catalog.is_sorted = True
    for file in files:
        for _, task in source.stream_json(file, [("*",)]):
            _read_task(source, file, as_dict(task))


def _read_task(source: Source, file: File, task: dict[str, Any]) -> None:
    is_full = isinstance(task.get("data"), dict)
    results, is_labeled = _results(task) if is_full else (_short_results(task), True)
    results = list(_with_labels(results))
    name = _picture_name(task["data"] if is_full else task, results)
    sizes = {size_of(one.get("original_width"), one.get("original_height")) for one in results} - {
        None
    }
    index = source.add_picture(
        name or f"task {brief(task.get('id'))}",
        near=file.folder,
        split=split_of(name.rpartition("/")[0]),
        size=next(iter(sizes)) if len(sizes) == 1 else None,
        is_labeled=is_labeled,
        is_listed=False,
    )
    _find_uploaded(source, index, task)
    if not name:
        source.catalog.spoil(index, Unusable("its task names no picture"))
    if len(sizes) > 1:
        source.catalog.spoil(
            index, Unusable(DAMAGED, "its shapes are of pictures of different sizes")
        )
    for one in results:
        try:
            _draw(source, index, one)
        except Unusable as problem:
            source.catalog.spoil(index, problem)


def _results(task: dict[str, Any]) -> tuple[list[Any], bool]:
    """Return the results of the annotation that counts, and whether there is one."""
    annotations = [
        as_dict(one) for one in as_list(task.get("annotations") or task.get("completions"))
    ]
    valid = [
        one
        for one in annotations
        if not one.get("was_cancelled") and isinstance(one.get("result"), list)
    ]
    if not valid:
        return [], False
    best = max(valid, key=lambda one: (bool(one.get("ground_truth")), _time(one)))
    return best["result"], True


def _time(annotation: dict[str, Any]) -> tuple[str, int]:
    """Return by what annotations are ordered: their last change, then their number."""
    changed = annotation.get("updated_at") or annotation.get("created_at")
    number = annotation.get("id")
    return changed if isinstance(changed, str) else "", number if isinstance(number, int) else 0


def _short_results(task: dict[str, Any]) -> list[Any]:
    """Return the shapes of the short form as results of the long one."""
    found = []
    for value in task.values():
        for one in as_list(value):
            if isinstance(one, dict) and "original_width" in one:
                kind = next((key for key in one if key.endswith("labels")), "")
                found.append({**one, "type": kind, "value": one})
    return found


def _with_labels(results: list[Any]) -> Iterator[dict[str, Any]]:
    """Yield shapes with their labels; some configurations give a shape and its label apart."""
    items = [as_dict(one) for one in results]
    labels: dict[Any, Any] = {}
    for one in items:
        found = _labels_of(one)
        if found and isinstance(one.get("id"), str):
            labels[one["id"]] = found
    drawn = set()
    for one in items:
        key = one.get("id") if isinstance(one.get("id"), str) else None
        kind = _kind(one)
        if kind in _NOT_SHAPES or kind == "" or (kind == "labels" and _geometry(one) == ""):
            continue
        if key is not None and key in drawn:
            continue
        if key is not None:
            drawn.add(key)
        yield {
            **one,
            "labels_": _labels_of(one) or labels.get(key),
            "kind_": _geometry(one) or kind,
        }


def _kind(one: dict[str, Any]) -> str:
    kind = one.get("type")
    if not isinstance(kind, str):
        return ""
    return kind.casefold().removesuffix("labels") or "labels"


def _geometry(one: dict[str, Any]) -> str:
    """Return what kind of shape a value is, by what it holds."""
    value = as_dict(one.get("value"))
    if "rle" in value:
        return "brush"
    if "imageDataURL" in value:
        return "bitmask"
    if "points" in value:
        return "polygon"
    if "radiusX" in value:
        return "ellipse"
    if "vertices" in value:
        return "vector"
    if "width" in value and "height" in value and "x" in value:
        return "keypoint" if _kind(one) == "keypoint" else "rectangle"
    return "keypoint" if "x" in value else ""


def _labels_of(one: dict[str, Any]) -> list[Any] | None:
    value = as_dict(one.get("value"))
    for key in (one.get("type"), *(key for key in value if str(key).endswith("labels"))):
        if isinstance(key, str) and isinstance(value.get(key), list) and value[key]:
            return as_list(value[key])
    return None


def _draw(source: Source, index: int, one: dict[str, Any]) -> None:
    kind = one["kind_"]
    if kind in _NO_AREA:
        source.catalog.skip(index, NO_AREA.format(_NO_AREA[kind]))
        return
    if kind not in _KINDS:
        source.catalog.skip(index, f"shapes of the kind {brief(kind)!r} are not known")
        return
    if kind == "rectangle" and source.boxes == "skip":
        source.catalog.skip(index, SKIPPED_BOX)
        return
    labels = one["labels_"]
    if not labels:
        source.catalog.skip(index, "shapes without a label")
        return
    if len(labels) > 1:
        raise Unusable("a shape has several labels", brief(labels))
    class_id = source.catalog.class_id(labels[0])
    if one.get("image_rotation") not in (None, 0, 360):
        raise Unusable(
            "it was turned in Label Studio",
            f"by {brief(one['image_rotation'])} degrees; turn it back there",
        )
    value = as_dict(one.get("value"))
    shape = _MAKE[kind](class_id, value, one)
    if shape is None:
        source.catalog.skip(index, "outlines with fewer than three corners")
    else:
        source.catalog.draw(index, shape, _KINDS[kind])


def _brush(class_id: int, value: dict[str, Any], one: dict[str, Any]) -> Shape:
    size = size_of(one.get("original_width"), one.get("original_height"))
    if value.get("format", "rle") != "rle" or size is None:
        raise Unusable(
            DAMAGED,
            f"its brush has the format {brief(value.get('format'))} and the size {brief(size)}",
        )
    try:
        code = bytes(value["rle"]) if isinstance(value["rle"], list) else None
    except (TypeError, ValueError):
        code = None
    if code is None:
        raise Unusable(DAMAGED, f"its brush is {brief(value['rle'])}, not a list of bytes")
    return shapes.brush(class_id, code, *size)


def _polygon(class_id: int, value: dict[str, Any], one: dict[str, Any]) -> Shape | None:
    points = points_of(as_list(value.get("points"))) / 100
    return shapes.rings(class_id, [(points, ())], is_relative=True) if len(points) >= 3 else None


def _rectangle(class_id: int, value: dict[str, Any], one: dict[str, Any]) -> Shape:
    x, y, width, height = (
        np.array(numbers_of(*(value.get(key) for key in ("x", "y", "width", "height")))) / 100
    )
    (degrees,) = numbers_of(value.get("rotation") or 0)
    corners = (float(x), float(y), float(x + width), float(y + height))
    return shapes.box(class_id, corners, degrees, about_corner=True, is_relative=True)


def _ellipse(class_id: int, value: dict[str, Any], one: dict[str, Any]) -> Shape:
    numbers = (
        np.array(numbers_of(*(value.get(key) for key in ("x", "y", "radiusX", "radiusY")))) / 100
    )
    x, y, along, across = numbers.tolist()
    (degrees,) = numbers_of(value.get("rotation") or 0)
    return shapes.ellipse(class_id, (x, y, along, across), degrees, is_relative=True)


def _bitmask(class_id: int, value: dict[str, Any], one: dict[str, Any]) -> Shape:
    return shapes.bitmap(class_id, decode_base64(value.get("imageDataURL")), 0, 0, is_whole=True)


_MAKE = {
    "brush": _brush,
    "polygon": _polygon,
    "rectangle": _rectangle,
    "ellipse": _ellipse,
    "bitmask": _bitmask,
}


def _picture_name(data: dict[str, Any], results: list[dict[str, Any]]) -> str:
    """Return the address of the picture: the one shapes point to, else the first that is one."""
    for one in results:
        key = str(one.get("source", "")).removeprefix("$")
        if isinstance(data.get(key), str):
            return str(data[key])
    texts = [value for value in data.values() if isinstance(value, str)]
    for key in ("image", "img", "ocr", "photo"):
        if isinstance(data.get(key), str):
            return str(data[key])
    images = [
        text
        for text in texts
        if text.split("?")[0]
        .lower()
        .endswith((".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff"))
    ]
    return (images or texts or [""])[0]


def _find_uploaded(source: Source, index: int, task: dict[str, Any]) -> None:
    """Look for a picture without the eight letters that Label Studio puts before its name."""
    picture = source.catalog.pictures[index]
    if picture.match is not None or picture.problem is not None:
        return
    name = task.get("file_upload") or picture.name.rpartition("/")[2]
    if not isinstance(name, str):
        return
    start, dash, rest = name.partition("-")
    is_prefix = bool(dash) and len(start) == 8 and all(char in "0123456789abcdef" for char in start)
    for wanted in (name, rest) if is_prefix else (name,):
        try:
            picture.match = picture.match or source.export.finder.find(wanted)
        except Unusable as problem:
            picture.problem = problem
