"""Label Studio's JSON: tasks with their annotations, or the short form (JSON-MIN).

Corners are percent of the width and height. A brush is a bit stream (see ``rle``). Of several
annotations of a task the one marked as ground truth counts, else the newest; cancelled ones and
predictions do not.
"""

from typing import Any

from nacre.importers.files.export import split_of
from nacre.importers.files.tree import PICTURE_SUFFIXES, File
from nacre.importers.formats.label_studio_regions import Region, make_shape, regions_of
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import NO_AREA, SKIPPED_BOX, Source, as_dict, as_list
from nacre.importers.shapes.shape import DAMAGED

_KINDS = {
    "brush": "brush strokes",
    "polygon": "polygons",
    "rectangle": "boxes",
    "ellipse": "ellipses",
    "bitmask": "bitmasks",
}
_NO_AREA = {"keypoint": "key points", "vector": "lines"}


def read(source: Source, files: list[File]) -> None:
    """Read Label Studio's JSON files."""
    source.catalog.is_sorted = True
    for file in files:
        for _, task in source.stream_json(file, [("*",)]):
            _read_task(source, file, as_dict(task))


def _read_task(source: Source, file: File, task: dict[str, Any]) -> None:
    is_full = isinstance(task.get("data"), dict)
    results = _results(task) if is_full else _short_results(task)
    regions = list(regions_of(results or []))
    name = _picture_name(task["data"] if is_full else task, results or [])
    sizes = {one.size for one in regions} - {None}
    index = source.add_picture(
        name or f"task {brief(task.get('id'))}",
        near=file.folder,
        split=split_of(name.rpartition("/")[0]),
        size=next(iter(sizes)) if len(sizes) == 1 else None,
        is_labeled=results is not None,
        is_listed=False,
    )
    _find_uploaded(source, index, task)
    if not name:
        source.catalog.spoil(index, Unusable("its task names no picture"))
    if len(sizes) > 1:
        problem = Unusable(DAMAGED, "its shapes are of pictures of different sizes")
        source.catalog.spoil(index, problem)
    for region in regions:
        try:
            _draw(source, index, region)
        except Unusable as problem:
            source.catalog.spoil(index, problem)


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


def _why_skipped(source: Source, region: Region) -> str | None:
    """Say why a shape is passed over; None if it is drawn."""
    if region.kind in _NO_AREA:
        return NO_AREA.format(_NO_AREA[region.kind])
    if region.kind not in _KINDS:
        return f"shapes of the kind {brief(region.kind)!r} are not known"
    if region.kind == "rectangle" and source.boxes == "skip":
        return SKIPPED_BOX
    return None if region.labels else "shapes without a label"


def _draw(source: Source, index: int, region: Region) -> None:
    reason = _why_skipped(source, region)
    if reason is not None:
        source.catalog.skip(index, reason)
        return
    class_id = source.catalog.class_id(region.labels[0])
    if len(region.labels) > 1:
        raise Unusable("a shape has several labels", brief(region.labels))
    if region.rotation not in (None, 0, 360):
        detail = f"by {brief(region.rotation)} degrees; turn it back there"
        raise Unusable("it was turned in Label Studio", detail)
    shape = make_shape(region, class_id)
    if shape is None:
        source.catalog.skip(index, "outlines with fewer than three corners")
    else:
        source.catalog.draw(index, shape, _KINDS[region.kind])


def _picture_name(data: dict[str, Any], results: list[Any]) -> str:
    """Return the address of the picture: the one shapes point to, else the first that is one."""
    for one in map(as_dict, results):
        key = str(one.get("source", "")).removeprefix("$")
        if isinstance(data.get(key), str):
            return str(data[key])
    usual = [data.get(key) for key in ("image", "img", "ocr", "photo")]
    texts = [text for text in data.values() if isinstance(text, str)]
    pictures = [text for text in texts if text.split("?")[0].lower().endswith(PICTURE_SUFFIXES)]
    named = [text for text in usual if isinstance(text, str)]
    return next(iter((*named, *pictures, *texts)), "")


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
