"""Supervisely: ``meta.json`` has the classes, ``<dataset>/ann/<image>.json`` the objects.

Images are in ``<dataset>/img``. Polygons have true holes. A bitmap is a small PNG, compressed, in
base64 and at an origin. Later objects cover earlier ones.
"""

from functools import partial
from typing import Any

from nacre.importers.documents import load_json
from nacre.importers.files import File, Finder, split_of
from nacre.importers.problems import brief
from nacre.importers.reading import (
    AreaMakers,
    Reading,
    as_dict,
    as_list,
    as_text,
    color_of,
    size_of,
)
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
        # The meta.json of a single project may be anywhere.
        _read_project(reading, meta, meta.folder if len(files) > 1 else "")
    reading.add_unlabeled(file for file in reading.export.images if is_in(file, "img"))


def is_in(file: File, folder: str) -> bool:
    """Return True if a file is directly in a folder with this name."""
    return file.folder.rpartition("/")[2].casefold() == folder


def _read_project(reading: Reading, meta: File, root: str) -> None:
    for item in map(as_dict, as_list(as_dict(load_json(meta)).get("classes"))):
        reading.list_class(item.get("title"), meta, color_of(item.get("color")))
    finder = Finder(
        file
        for file in reading.export.images
        if file.is_extra or (is_in(file, "img") and file.is_inside(root))
    )
    files = reading.export.with_suffix(".json")
    annotations = [file for file in files if is_in(file, "ann") and file.is_inside(root)]
    for file in reading.each(annotations):
        # ann/a.jpg.json belongs to img/a.jpg; older projects have ann/a.json.
        near = file.folder.rpartition("/")[0] + "/img"
        name = f"{near}/{file.stem}".removeprefix("/")
        image = reading.add_image(name, near=near, split=split_of(near), finder=finder)
        with image.noting("its annotation cannot be read"):
            content = as_dict(load_json(file))
            size = as_dict(content.get("size"))
            image.size = size_of(size.get("width"), size.get("height"))
            for item in map(as_dict, as_list(content.get("objects"))):
                word = as_text(item.get("geometryType"), "polygon")
                reading.draw_as(image, _AREAS, word, item, item.get("classTitle"))


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
    # Some versions do not compress the PNG again.
    data = data if data.startswith(b"\x89PNG") else inflate(data)
    return partial(fill_bitmap, data, int(origin[0, 0]), int(origin[0, 1]))


_AREAS: AreaMakers = {
    "polygon": _polygon,
    "bitmap": _bitmap,
    "rectangle": _rectangle,
}
