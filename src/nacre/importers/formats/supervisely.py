"""Supervisely: ``meta.json`` has the classes, ``<dataset>/ann/<picture>.json`` the objects.

The pictures lie in ``<dataset>/img``. Polygons have true holes; a bitmap is a small PNG,
compressed and in base64, at an origin. Later objects cover earlier ones.
"""

from typing import Any

from nacre.errors import NacreError
from nacre.importers.catalog import Picture, color_of, size_of
from nacre.importers.files.export import Finder, Match, is_inside, split_of
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import NO_AREA, SKIPPED_BOX, Source, as_dict, as_list, as_text
from nacre.importers.shapes import shape as shapes
from nacre.importers.shapes.shape import DAMAGED, Shape, decode_base64, inflate, points_of

_KINDS = {"polygon": "polygons", "bitmap": "bitmaps", "rectangle": "boxes"}
_NO_AREA = {
    "point": "points",
    "line": "lines",
    "polyline": "lines",
    "cuboid": "cuboids",
    "graph": "skeletons",
}


def read(source: Source, files: list[File]) -> None:
    """Read projects, each by its ``meta.json``."""
    for meta in files:
        # The one project of an export may have its meta.json anywhere.
        _read_project(source, meta, meta.folder if len(files) > 1 else "")
    taken = {picture.match.file for picture in source.catalog.pictures if picture.match}
    for file in source.export.pictures:
        if file not in taken and file.tree == 0 and _folder(file) == "img":
            source.catalog.add(
                Picture(file.path, Match(file, True), is_labeled=False, is_listed=False)
            )


def _read_project(source: Source, meta: File, root: str) -> None:
    by_id: dict[Any, Any] = {}
    is_meta = meta.name.casefold() == "meta.json"
    # Without it classes are known from the objects alone.
    source.catalog.is_sorted = not is_meta
    for one in as_list(as_dict(source.load_json(meta)).get("classes") if is_meta else None):
        title = as_dict(one).get("title")
        source.list_class(title, meta, color_of(as_dict(one).get("color")))
        by_id[str(as_dict(one).get("id"))] = title
    finder = Finder(
        file
        for file in source.export.pictures
        if file.tree == 1 or (_folder(file) == "img" and is_inside(file, root))
    )
    annotations = [
        file
        for file in source.export.with_suffix(".json")
        if _folder(file) == "ann" and is_inside(file, root)
    ]
    for file in source.each(annotations):
        _read_one(source, finder, file, by_id)


def _folder(file: File) -> str:
    return file.folder.rpartition("/")[2].casefold()


def _read_one(source: Source, finder: Finder, file: File, by_id: dict[Any, Any]) -> None:
    # ann/a.jpg.json belongs to img/a.jpg; older projects have ann/a.json.
    near = file.folder.rpartition("/")[0] + "/img"
    name = f"{near}/{file.pure.stem}".removeprefix("/")
    index = source.add_picture(name, near=near, split=split_of(near), finder=finder)
    try:
        content = as_dict(source.load_json(file))
    except NacreError as error:
        source.catalog.spoil(index, Unusable("its annotation cannot be read", str(error)))
        return
    size = as_dict(content.get("size"))
    source.catalog.pictures[index].size = size_of(size.get("width"), size.get("height"))
    for one in as_list(content.get("objects")):
        try:
            _draw(source, index, as_dict(one), by_id)
        except Unusable as problem:
            source.catalog.spoil(index, problem)


def _draw(source: Source, index: int, item: dict[str, Any], by_id: dict[Any, Any]) -> None:
    kind = as_text(item.get("geometryType"), "bitmap" if item.get("bitmap") else "polygon")
    if kind in _NO_AREA:
        source.catalog.skip(index, NO_AREA.format(_NO_AREA[kind]))
        return
    if kind not in _KINDS:
        source.catalog.skip(index, f"shapes of the kind {brief(kind)!r} are not known")
        return
    if kind == "rectangle" and source.boxes == "skip":
        source.catalog.skip(index, SKIPPED_BOX)
        return
    title = item.get("classTitle") or by_id.get(str(item.get("classId")))
    class_id = source.catalog.class_id(title)
    shape = _bitmap(class_id, item) if kind == "bitmap" else _outline(class_id, item, kind)
    if shape is None:
        source.catalog.skip(index, "outlines with fewer than three corners")
    else:
        source.catalog.draw(index, shape, _KINDS[kind])


def _outline(class_id: int, item: dict[str, Any], kind: str) -> Shape | None:
    points = as_dict(item.get("points"))
    outer = points_of(as_list(points.get("exterior")))
    if kind == "rectangle":
        if len(outer) != 2:
            raise Unusable(DAMAGED, f"a rectangle has {len(outer)} corners, not 2")
        (left, top), (right, bottom) = outer.min(axis=0).tolist(), outer.max(axis=0).tolist()
        return shapes.box(class_id, (left, top, right, bottom))
    holes = [points_of(hole) for hole in as_list(points.get("interior"))]
    return shapes.rings(class_id, [(outer, holes)]) if len(outer) >= 3 else None


def _bitmap(class_id: int, item: dict[str, Any]) -> Shape:
    content = as_dict(item.get("bitmap"))
    data = decode_base64(content.get("data"))
    origin = points_of(as_list(content.get("origin")))
    if len(origin) != 1:
        raise Unusable(DAMAGED, f"its bitmap has the origin {brief(content.get('origin'))}")
    # Not every version compresses the PNG once more.
    picture = data if data.startswith(b"\x89PNG") else inflate(data)
    return shapes.bitmap(class_id, picture, int(origin[0, 0]), int(origin[0, 1]))
