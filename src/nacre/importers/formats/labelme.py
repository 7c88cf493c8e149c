"""LabelMe: a JSON file beside each image; and its older XML, with mask files of objects.

Later shapes cover earlier ones. ``__ignore__`` does not count, ``_background_`` is background. An
image without a JSON file is unlabeled; one whose file has no shapes is empty.

In the XML, an ``<object>`` has a name, a mark if it was deleted, and a ``<polygon>`` of points or a
``<segm>`` with the name of a mask file, which is in a folder ``Masks`` and has the size of the
image. Images are in ``Images`` or beside the XML files. CVAT writes this format, too ("LabelMe
3.0").
"""

import base64
import io
from functools import partial
from typing import Any
from xml.etree.ElementTree import Element

import numpy as np

from nacre.errors import NacreError
from nacre.importers.documents import load_json, load_lines, stream_xml
from nacre.importers.files import File, Finder, split_of
from nacre.importers.problems import Unusable, brief
from nacre.importers.rasterize import Points, fill_ellipse
from nacre.importers.reading import AreaMakers, Image, Reading, as_dict, as_list, as_text, size_of
from nacre.importers.shapes import (
    Area,
    box_of,
    decode_base64,
    fill_bitmap,
    fill_whole_bitmap,
    numbers_of,
    points_of,
    ring_of,
)

_ORDER_FILES = ("labels.txt", "classes.txt", "class_names.txt")
_UNREADABLE = "its annotation cannot be read"


def read(reading: Reading, files: list[File]) -> None:
    """Read LabelMe's JSON files."""
    # A list of labels gives the order of the classes.
    lists = reading.export.named(*_ORDER_FILES)
    reading.is_sorted = not lists
    for line in load_lines(lists[0]) if lists else ():
        reading.list_class(line, lists[0])
    for file in reading.each(files):
        try:
            content = as_dict(load_json(file))
        except NacreError as error:
            _add_damaged(reading, file, error)
            continue
        image = _add(reading, file, content)
        for item in map(as_dict, as_list(content.get("shapes"))):
            with image.noting():
                word = as_text(item.get("shape_type"), "polygon")
                reading.draw_as(image, _AREAS, word, item, item.get("label"))
    _add_unlabeled(reading)


def _add(reading: Reading, file: File, content: dict[str, Any]) -> Image:
    own = f"{file.folder}/{file.stem}".removeprefix("/")
    name = content.get("imagePath")
    image = reading.add_image(
        name if isinstance(name, str) and name else own,
        near=file.folder,
        split=split_of(file.folder),
        size=size_of(content.get("imageWidth"), content.get("imageHeight")),
    )
    if image.file is None and image.problem is None:
        # The image may have been renamed together with its annotation.
        image.find(reading.export.finder, own, file.folder)
    data = content.get("imageData")
    if image.file is None and isinstance(data, str):
        # The first bytes of a PNG; other images are JPEG.
        suffix = ".png" if data.startswith("iVBORw0K") else ".jpg"
        image.file = File(f"{own}{suffix}", len(data), partial(_open_embedded, file))
    return image


def _open_embedded(file: File) -> io.BytesIO:
    """Open the image inside an annotation."""
    return io.BytesIO(base64.b64decode(str(as_dict(load_json(file)).get("imageData"))))


def _corners(item: dict[str, Any]) -> Points:
    return points_of(as_list(item.get("points")))


def _polygon(item: dict[str, Any]) -> Area | None:
    return ring_of(_corners(item))


def _rectangle(item: dict[str, Any]) -> Area | None:
    points = _corners(item)
    return ring_of(points) if len(points) == 4 else box_of(points, "rectangle")


def _circle(item: dict[str, Any]) -> Area:
    points = _corners(item)
    box_of(points, "circle")
    radius = float(np.hypot(*(points[1] - points[0])))
    return partial(fill_ellipse, (points[0, 0], points[0, 1]), (radius, radius), 0.0)


def _mask(item: dict[str, Any]) -> Area:
    points = _corners(item)
    box_of(points, "mask")
    left, top = np.rint(points.min(axis=0)).astype(int).tolist()
    return partial(fill_bitmap, decode_base64(item.get("mask")), left, top)


_AREAS: AreaMakers = {
    "polygon": _polygon,
    "rectangle": _rectangle,
    "oriented_rectangle": _polygon,
    "rotation": _polygon,
    "circle": _circle,
    "mask": _mask,
}


def _add_damaged(reading: Reading, file: File, error: NacreError) -> None:
    reading.images.append(Image(file.path, problem=Unusable(_UNREADABLE, str(error))))


def _add_unlabeled(reading: Reading) -> None:
    """Add the images without an annotation in the folders of the annotated ones."""
    folders = {image.file.folder for image in reading.images if image.file}
    reading.add_unlabeled(file for file in reading.export.images if file.folder in folders)


def read_xml(reading: Reading, files: list[File]) -> None:
    """Read LabelMe's XML files."""
    reading.is_sorted = True
    all_images = reading.export.images
    masks = Finder(file for file in all_images if file.is_below("masks", "scribbles"))
    images = Finder(file for file in all_images if not file.is_below("masks", "scribbles"))
    for file in reading.each(files):
        root = Element("annotation")
        try:
            # Not a generator: `extend` would hide its errors.
            root.extend([element for _, element in stream_xml(file.chunks(), file.path)])
        except NacreError as error:
            _add_damaged(reading, file, error)
            continue
        name, folder = (root.findtext(tag, "").strip() for tag in ("filename", "folder"))
        image = reading.add_image(
            "/".join(part for part in (folder, name or file.stem) if part),
            near=file.folder,
            split=split_of(file.folder),
            size=size_of(root.findtext("imagesize/ncols"), root.findtext("imagesize/nrows")),
            finder=images,
        )
        for item in root.iterfind("object"):
            if item.findtext("deleted", "").strip() in ("", "0"):
                with image.noting("the mask of an object cannot be read"):
                    _draw_object(reading, image, item, file, masks)
    _add_unlabeled(reading)


def _draw_object(reading: Reading, image: Image, item: Element, file: File, masks: Finder) -> None:
    label, name = (item.findtext(tag, "").strip() for tag in ("name", "segm/mask"))
    if not name:
        points = item.iterfind("polygon/pt")
        numbers = numbers_of(*(point.findtext(axis) for point in points for axis in "xy"))
        reading.draw(image, label, ring_of(points_of(numbers)))
        return
    mask = masks.find(name, file.folder)
    if mask is None:
        raise Unusable("the mask of an object is missing", brief(name))
    reading.draw(image, label, partial(fill_whole_bitmap, mask.read()))
