"""Supervisely: ``meta.json`` has the classes, ``<dataset>/ann/<image>.json`` the objects.

The images lie in ``<dataset>/img``. Polygons have true holes; a bitmap is a small PNG, compressed
and in base64, at an origin. Later objects cover earlier ones.
"""

from functools import partial
from typing import Any

from nacre.importers.documents import load_json
from nacre.importers.files import File, Finder, is_inside, split_of
from nacre.importers.problems import brief
from nacre.importers.reading import Kinds, Reading, as_dict, as_list, as_text, color_of, size_of
from nacre.importers.shapes import (
    Area,
    box_of,
    decode_base64,
    fill_bitmap,
    inflate,
    points_of,
    ring_of,
)


def read(reading: Reading, files: list[File]) -> None:
    """Read projects, each by its ``meta.json``."""
    for meta in files:
        # The one project of an export may have its meta.json anywhere.
        _read_project(reading, meta, meta.folder if len(files) > 1 else "")
    reading.add_unlabeled(one for one in reading.export.images if is_in(one, "img"))


def is_in(file: File, folder: str) -> bool:
    """Return whether a file lies directly in a folder of a name."""
    return file.folder.rpartition("/")[2].casefold() == folder


def _read_project(reading: Reading, meta: File, root: str) -> None:
    for one in map(as_dict, as_list(as_dict(load_json(meta)).get("classes"))):
        reading.list_class(one.get("title"), meta, color_of(one.get("color")))
    finder = Finder(
        file
        for file in reading.export.images
        if file.is_extra or (is_in(file, "img") and is_inside(file, root))
    )
    annotations = reading.export.with_suffix(".json")
    inside = [one for one in annotations if is_in(one, "ann") and is_inside(one, root)]
    for file in reading.each(inside):
        # ann/a.jpg.json belongs to img/a.jpg; older projects have ann/a.json.
        near = file.folder.rpartition("/")[0] + "/img"
        name = f"{near}/{file.stem}".removeprefix("/")
        image = reading.add_image(name, near=near, split=split_of(near), finder=finder)
        with image.noting("its annotation cannot be read"):
            content = as_dict(load_json(file))
            size = as_dict(content.get("size"))
            image.size = size_of(size.get("width"), size.get("height"))
            for item in map(as_dict, as_list(content.get("objects"))):
                kind = as_text(item.get("geometryType"), "polygon")
                reading.draw_kind(image, _KINDS, kind, item, item.get("classTitle"))


def _polygon(item: dict[str, Any]) -> Area | None:
    points = as_dict(item.get("points"))
    holes = [points_of(hole) for hole in as_list(points.get("interior"))]
    return ring_of(points_of(as_list(points.get("exterior"))), holes)


def _rectangle(item: dict[str, Any]) -> Area | None:
    return box_of(points_of(as_list(as_dict(item.get("points")).get("exterior"))), "rectangle")


def _bitmap(item: dict[str, Any]) -> Area:
    content = as_dict(item.get("bitmap"))
    data = decode_base64(content.get("data"))
    origin = points_of(as_list(content.get("origin")))
    if len(origin) != 1:
        raise ValueError(f"its bitmap has the origin {brief(content.get('origin'))}")
    # Not every version compresses the PNG once more.
    data = data if data.startswith(b"\x89PNG") else inflate(data)
    return partial(fill_bitmap, data, int(origin[0, 0]), int(origin[0, 1]))


_KINDS: Kinds = {
    "polygon": ("polygons", _polygon),
    "bitmap": ("bitmaps", _bitmap),
    "rectangle": ("boxes", _rectangle),
}
