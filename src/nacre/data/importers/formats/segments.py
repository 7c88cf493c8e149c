"""Segments.ai: a release file, and the pictures and bitmaps that its SDK downloads.

``<name>_label_<labelset>.png`` holds the number of a segment for every pixel; the release says
which category each has. Samples that nobody labelled are unlabelled, not empty. Polygons ("vector")
are read from the release itself.
"""

from typing import Any

from nacre.data.importers.catalog import Coding, MaskFile, color_of
from nacre.data.importers.files.export import Finder, split_of
from nacre.data.importers.files.tree import File
from nacre.data.importers.problems import Unusable, brief
from nacre.data.importers.reading import (
    NO_AREA,
    SKIPPED_BOX,
    Source,
    as_dict,
    as_key,
    as_list,
    as_text,
)
from nacre.data.importers.shapes import shape as shapes
from nacre.data.importers.shapes.shape import points_of
from nacre.errors import NacreError

TASKS = ("segmentation-bitmap", "segmentation-bitmap-highres", "vector")

_LABELSET = "ground-truth"
_UNLABELED = ("unlabeled", "skipped", "rejected", "reviewing_in_progress", "labeling_in_progress")
_NO_AREA = {"point": "points", "polyline": "lines", "keypoint": "points"}


def read(source: Source, files: list[File]) -> None:
    """Read a release file."""
    for file in files:
        _read(source, file)


def _read(source: Source, file: File) -> None:
    classes = _classes(source, file)
    finder = Finder(one for one in source.export.pictures if "_label_" not in one.name)
    for _, item in source.stream_json(file, [("dataset", "samples", "*")]):
        sample = as_dict(item)
        labels = as_dict(sample.get("labels"))
        label = as_dict(
            labels.get(_LABELSET) or (next(iter(labels.values())) if len(labels) == 1 else None)
        )
        status = str(label.get("label_status", "")).casefold()
        attributes = as_dict(label.get("attributes"))
        is_labeled = bool(attributes) and status not in _UNLABELED
        index = _add(source, file, finder, sample, is_labeled)
        if is_labeled:
            try:
                _labels(source, index, attributes, classes, file)
            except Unusable as problem:
                source.catalog.spoil(index, problem)


def _classes(source: Source, file: File) -> dict[str, int]:
    wanted = [("dataset", "task_attributes"), ("dataset", "task_type"), ("dataset", "categories")]
    found = {place[-1]: value for place, value in source.stream_json(file, wanted)}
    if found.get("task_type") not in (None, *TASKS):
        raise NacreError(
            f"{brief(file.path)} is a release of the kind {brief(found['task_type'])}; "
            f"nacre reads {', '.join(TASKS)}"
        )
    categories = as_list(
        as_dict(found.get("task_attributes")).get("categories") or found.get("categories")
    )
    classes = {}
    for one in map(as_dict, categories):
        color = color_of(as_list(one.get("color"))[:3])
        classes[as_key(one.get("id"))] = source.list_class(one.get("name"), file, color)
    if not classes:
        raise NacreError(f"{brief(file.path)} lists no categories")
    return classes


def _add(
    source: Source, file: File, finder: Finder, sample: dict[str, Any], is_labeled: bool
) -> int:
    name = sample.get("name")
    if not isinstance(name, str) or not name:
        name = f"sample {brief(sample.get('uuid'))}"
    split = split_of(str(as_dict(sample.get("metadata")).get("split", ""))) or split_of(
        name.rpartition("/")[0]
    )
    return source.add_picture(
        name, near=file.folder, split=split, finder=finder, is_labeled=is_labeled, is_listed=False
    )


def _labels(
    source: Source, index: int, attributes: dict[str, Any], classes: dict[str, int], file: File
) -> None:
    segments: dict[int, int] = {}
    for one in map(as_dict, as_list(attributes.get("annotations"))):
        category = as_key(one.get("category_id"))
        if category not in classes:
            raise Unusable(
                "an annotation has a category that is not listed", f"category {brief(category)}"
            )
        if "points" in one or "type" in one:
            _vector(source, index, one, classes[category])
        elif type(one.get("id")) is int:
            segments[one["id"]] = classes[category]
            source.catalog.shape_counts["segments"] += 1
    if "segmentation_bitmap" in attributes:
        picture = source.catalog.pictures[index]
        bitmap = _find_bitmap(source, picture.name, attributes, file.folder)
        picture.mask = MaskFile(bitmap, Coding("ids", segments))


def _find_bitmap(source: Source, name: str, attributes: dict[str, Any], folder: str) -> File:
    """Find the bitmap of a picture by its name, else by its address."""
    stem = name.rpartition(".")[0] or name
    bitmap = source.export.finder.find(f"{stem}_label_{_LABELSET}.png", folder)
    if bitmap is None:
        address = str(as_dict(attributes.get("segmentation_bitmap")).get("url", ""))
        bitmap = source.export.finder.find(address, folder) if address else None
    if bitmap is None:
        raise Unusable("its bitmap is missing", f"{brief(stem)}_label_{_LABELSET}.png")
    return bitmap.file


def _vector(source: Source, index: int, one: dict[str, Any], class_id: int) -> None:
    kind = as_text(one.get("type"), "polygon")
    if kind in _NO_AREA:
        source.catalog.skip(index, NO_AREA.format(_NO_AREA[kind]))
        return
    if kind == "bbox" and source.boxes == "skip":
        source.catalog.skip(index, SKIPPED_BOX)
        return
    points = points_of(as_list(one.get("points")))
    if kind == "bbox" and len(points) == 2:
        (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
        source.catalog.draw(index, shapes.box(class_id, (left, top, right, bottom)), "boxes")
    elif len(points) >= 3:
        source.catalog.draw(index, shapes.rings(class_id, [(points, ())]), "polygons")
    else:
        source.catalog.skip(index, "outlines with fewer than three corners")
