"""LabelMe: one JSON file per image, beside it.

Later shapes cover earlier ones. ``__ignore__`` does not count, ``_background_`` is background. An
image without a JSON file is unlabeled, one whose file has no shapes is empty.
"""

from typing import Any

import numpy as np

from nacre.errors import NacreError
from nacre.importers.files import Export, File, split_of
from nacre.importers.problems import Unusable
from nacre.importers.reading import Image, Reading, as_dict, as_list, as_text, size_of
from nacre.importers.shapes import (
    Area,
    Bitmap,
    Ellipse,
    box_of,
    decode_base64,
    points_of,
    ring_of,
)
from nacre.importers.sniff import MOST_JSON, json_kind

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


def find(export: Export) -> list[File]:
    """Return LabelMe's files; where there are many, the first few of a folder speak for all."""
    found = []
    by_folder: dict[str, list[File]] = {}
    for file in export.with_suffix(".json"):
        by_folder.setdefault(file.folder, []).append(file)
    for files in by_folder.values():
        kinds = [json_kind(export, file) for file in files[:MOST_JSON]]
        if "labelme" in kinds and len(files) > MOST_JSON:
            found += files
        elif "labelme" in kinds:
            pairs = zip(files, kinds, strict=True)
            found += [file for file, kind in pairs if kind in ("labelme", "damaged")]
    return found


def read(reading: Reading, files: list[File]) -> None:
    """Read LabelMe's files."""
    # Its list of labels has the order of the classes.
    lists = reading.export.named(*_ORDER_FILES)
    reading.is_sorted = not lists
    for line in reading.load_lines(lists[0]) if lists else ():
        reading.list_class(line, lists[0])
    for file in reading.each(files):
        _read_one(reading, file)
    add_unlabeled(reading)


def _read_one(reading: Reading, file: File) -> None:
    try:
        content = as_dict(reading.load_json(file))
    except NacreError as error:
        problem = Unusable("its annotation cannot be read", str(error))
        reading.images.append(Image(file.path, problem=problem))
        return
    image = _add(reading, file, content)
    for item in map(as_dict, as_list(content.get("shapes"))):
        try:
            kind = as_text(item.get("shape_type"), "polygon")
            if reading.takes(image, kind, _KINDS, _NO_AREA):
                class_id = reading.class_id(item.get("label"))
                reading.draw(image, class_id, _area(kind, item), _KINDS[kind])
        except Unusable as problem:
            image.spoil(problem)


def _add(reading: Reading, file: File, content: dict[str, Any]) -> Image:
    name = content.get("imagePath")
    own = f"{file.folder}/{file.pure.stem}".removeprefix("/")
    image = reading.add_image(
        name if isinstance(name, str) and name else own,
        near=file.folder,
        split=split_of(file.folder),
        size=size_of(content.get("imageWidth"), content.get("imageHeight")),
    )
    if image.file is None and image.problem is None:
        # The image may have been renamed together with its annotation.
        image.find(reading.export.finder, own, file.folder)
    if image.file is None and isinstance(content.get("imageData"), str):
        image.embedded = file
    return image


def _area(kind: str, item: dict[str, Any]) -> Area | None:
    points = points_of(as_list(item.get("points")))
    if kind in ("polygon", "oriented_rectangle", "rotation") or (
        kind == "rectangle" and len(points) == 4
    ):
        return ring_of(points)
    box = box_of(points, kind)
    if kind == "rectangle":
        return box
    if kind == "circle":
        x, y = points[0].tolist()
        radius = float(np.hypot(*(points[1] - points[0])))
        return Ellipse((x, y, radius, radius))
    return Bitmap(decode_base64(item.get("mask")), round(box.corners[0]), round(box.corners[1]))


def add_unlabeled(reading: Reading) -> None:
    """Add the images beside the annotated ones that have no annotation."""
    taken = {image.file for image in reading.images if image.file}
    folders = {file.folder for file in taken}
    for file in reading.export.images:
        if file.tree == 0 and file not in taken and file.folder in folders:
            reading.add_unlabeled(file)
