"""LabelMe: one JSON file per picture, beside it.

Later shapes cover earlier ones. ``__ignore__`` does not count, ``_background_`` is background. A
picture without a JSON file is unlabelled, one whose file has no shapes is empty.
"""

from typing import Any

import numpy as np

from nacre.errors import NacreError
from nacre.importers.catalog import Picture, size_of
from nacre.importers.files.export import Match, split_of
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import NO_AREA, SKIPPED_BOX, Source, as_dict, as_list, as_text
from nacre.importers.shapes import shape as shapes
from nacre.importers.shapes.shape import DAMAGED, Shape, decode_base64, points_of

_KINDS = {
    "polygon": "polygons",
    "rectangle": "boxes",
    "oriented_rectangle": "turned boxes",
    "rotation": "turned boxes",
    "circle": "circles",
    "mask": "masks",
}
_NO_AREA = {"point": "points", "points": "points", "line": "lines", "linestrip": "lines"}
_ORDER_FILES = ("labels.txt", "classes.txt", "class_names.txt")


def read(source: Source, files: list[File]) -> None:
    """Read LabelMe's files."""
    _read_order(source)
    for file in source.each(files):
        _read_one(source, file)
    _add_unlabeled(source)


def _read_order(source: Source) -> None:
    """Take the order of the classes from LabelMe's list of labels, if there is one."""
    lists = source.export.named(*_ORDER_FILES)
    source.catalog.is_sorted = not lists
    for line in source.load_text(lists[0]).splitlines() if lists else ():
        if line.strip():
            source.list_class(line.strip(), lists[0])


def _read_one(source: Source, file: File) -> None:
    try:
        content = as_dict(source.load_json(file))
    except NacreError as error:
        index = source.catalog.add(Picture(file.path))
        source.catalog.spoil(index, Unusable("its annotation cannot be read", str(error)))
        return
    index = _add_picture(source, file, content)
    for item in as_list(content.get("shapes")):
        try:
            _draw(source, index, as_dict(item))
        except Unusable as problem:
            source.catalog.spoil(index, problem)


def _add_picture(source: Source, file: File, content: dict[str, Any]) -> int:
    name = content.get("imagePath")
    own = f"{file.folder}/{file.pure.stem}".removeprefix("/")
    index = source.add_picture(
        name if isinstance(name, str) and name else own,
        near=file.folder,
        split=split_of(file.folder),
        size=size_of(content.get("imageWidth"), content.get("imageHeight")),
    )
    picture = source.catalog.pictures[index]
    if picture.match is None and picture.problem is None:
        # The picture may have been renamed together with its annotation.
        try:
            picture.match = source.export.finder.find(own, file.folder)
        except Unusable as problem:
            picture.problem = problem
    if picture.match is None and isinstance(content.get("imageData"), str):
        picture.embedded = file
    return index


def _draw(source: Source, index: int, item: dict[str, Any]) -> None:
    kind = as_text(item.get("shape_type"), "polygon")
    if kind in _NO_AREA:
        source.catalog.skip(index, NO_AREA.format(_NO_AREA[kind]))
        return
    if kind not in _KINDS:
        source.catalog.skip(index, f"shapes of the kind {brief(kind)!r} are not known")
        return
    if _KINDS[kind].endswith("boxes") and source.boxes == "skip":
        source.catalog.skip(index, SKIPPED_BOX)
        return
    shape = _shape(kind, source.catalog.class_id(item.get("label")), item)
    if shape is None:
        source.catalog.skip(index, "outlines with fewer than three corners")
    else:
        source.catalog.draw(index, shape, _KINDS[kind])


def _shape(kind: str, class_id: int, item: dict[str, Any]) -> Shape | None:
    points = points_of(as_list(item.get("points")))
    if kind in ("polygon", "oriented_rectangle", "rotation") or (
        kind == "rectangle" and len(points) == 4
    ):
        return shapes.rings(class_id, [(points, ())]) if len(points) >= 3 else None
    if len(points) != 2:
        raise Unusable(DAMAGED, f"a {kind} has {len(points)} points, not 2")
    (left, top), (right, bottom) = points.min(axis=0).tolist(), points.max(axis=0).tolist()
    if kind == "rectangle":
        return shapes.box(class_id, (left, top, right, bottom))
    if kind == "circle":
        radius = float(np.hypot(*(points[1] - points[0])))
        return shapes.ellipse(class_id, (*points[0].tolist(), radius, radius))
    return shapes.bitmap(class_id, decode_base64(item.get("mask")), round(left), round(top))


def _add_unlabeled(source: Source) -> None:
    """Count the pictures beside the annotated ones that have no annotation."""
    taken = {picture.match.file for picture in source.catalog.pictures if picture.match}
    folders = {file.folder for file in taken}
    for file in source.export.pictures:
        if file.tree == 0 and file not in taken and file.folder in folders:
            picture = Picture(file.path, Match(file, True), is_labeled=False, is_listed=False)
            source.catalog.add(picture)
