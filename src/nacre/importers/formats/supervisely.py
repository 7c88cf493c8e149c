"""Supervisely: ``meta.json`` has the classes, ``<dataset>/ann/<image>.json`` the objects.

The images lie in ``<dataset>/img``. Polygons have true holes; a bitmap is a small PNG, compressed
and in base64, at an origin. Later objects cover earlier ones.
"""

from typing import Any

from nacre.errors import NacreError
from nacre.importers.files import Export, File, Finder, is_inside, outermost, split_of
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.reading import (
    Image,
    Reading,
    as_dict,
    as_list,
    as_text,
    color_of,
    size_of,
)
from nacre.importers.shapes import (
    Area,
    Bitmap,
    box_of,
    decode_base64,
    inflate,
    points_of,
    ring_of,
)
from nacre.importers.sniff import json_kind

_KINDS = {"polygon": "polygons", "bitmap": "bitmaps", "rectangle": "boxes"}
_NO_AREA = {
    "point": "points",
    "line": "lines",
    "polyline": "lines",
    "cuboid": "cuboids",
    "graph": "skeletons",
}


def find(export: Export) -> list[File]:
    """Return the projects' ``meta.json``, or one annotation where people left that out."""
    annotations = [file for file in export.with_suffix(".json") if _folder(file) == "ann"]
    metas = [one for one in export.named("meta.json") if json_kind(export, one) == "supervisely"]
    if not annotations or metas:
        return outermost(metas) if annotations else []
    return [one for one in annotations[:1] if json_kind(export, one) == "supervisely-ann"]


def read(reading: Reading, files: list[File]) -> None:
    """Read projects, each by its ``meta.json``."""
    for meta in files:
        # The one project of an export may have its meta.json anywhere.
        _read_project(reading, meta, meta.folder if len(files) > 1 else "")
    taken = {image.file for image in reading.images}
    for file in reading.export.images:
        if file not in taken and file.tree == 0 and _folder(file) == "img":
            reading.add_unlabeled(file)


def _read_project(reading: Reading, meta: File, root: str) -> None:
    titles: dict[str, Any] = {}
    is_meta = meta.name.casefold() == "meta.json"
    # Without it classes are known from the objects alone.
    reading.is_sorted = not is_meta
    classes = as_dict(reading.load_json(meta)).get("classes") if is_meta else None
    for one in map(as_dict, as_list(classes)):
        reading.list_class(one.get("title"), meta, color_of(one.get("color")))
        titles[str(one.get("id"))] = one.get("title")
    finder = Finder(
        file
        for file in reading.export.images
        if file.tree == 1 or (_folder(file) == "img" and is_inside(file, root))
    )
    annotations = reading.export.with_suffix(".json")
    inside = [one for one in annotations if _folder(one) == "ann" and is_inside(one, root)]
    for file in reading.each(inside):
        _read_one(reading, finder, file, titles)


def _folder(file: File) -> str:
    return file.folder.rpartition("/")[2].casefold()


def _read_one(reading: Reading, finder: Finder, file: File, titles: dict[str, Any]) -> None:
    # ann/a.jpg.json belongs to img/a.jpg; older projects have ann/a.json.
    near = file.folder.rpartition("/")[0] + "/img"
    name = f"{near}/{file.pure.stem}".removeprefix("/")
    image = reading.add_image(name, near=near, split=split_of(near), finder=finder)
    try:
        content = as_dict(reading.load_json(file))
    except NacreError as error:
        image.spoil(Unusable("its annotation cannot be read", str(error)))
        return
    size = as_dict(content.get("size"))
    image.size = size_of(size.get("width"), size.get("height"))
    for item in map(as_dict, as_list(content.get("objects"))):
        try:
            _draw(reading, image, item, titles)
        except Unusable as problem:
            image.spoil(problem)


def _draw(reading: Reading, image: Image, item: dict[str, Any], titles: dict[str, Any]) -> None:
    kind = as_text(item.get("geometryType"), "bitmap" if item.get("bitmap") else "polygon")
    if reading.takes(image, kind, _KINDS, _NO_AREA):
        title = item.get("classTitle") or titles.get(str(item.get("classId")))
        class_id = reading.class_id(title)
        area = _bitmap(item) if kind == "bitmap" else _outline(item, kind)
        reading.draw(image, class_id, area, _KINDS[kind])


def _outline(item: dict[str, Any], kind: str) -> Area | None:
    points = as_dict(item.get("points"))
    outer = points_of(as_list(points.get("exterior")))
    if kind == "rectangle":
        return box_of(outer, kind)
    return ring_of(outer, [points_of(hole) for hole in as_list(points.get("interior"))])


def _bitmap(item: dict[str, Any]) -> Bitmap:
    content = as_dict(item.get("bitmap"))
    data = decode_base64(content.get("data"))
    origin = points_of(as_list(content.get("origin")))
    if len(origin) != 1:
        raise Unusable(DAMAGED, f"its bitmap has the origin {brief(content.get('origin'))}")
    # Not every version compresses the PNG once more.
    return Bitmap(
        data if data.startswith(b"\x89PNG") else inflate(data),
        int(origin[0, 0]),
        int(origin[0, 1]),
    )
