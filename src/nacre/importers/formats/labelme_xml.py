"""LabelMe's older XML: one file per image, with polygons and masks of objects.

``<object>`` has a name, whether it was deleted, and a ``<polygon>`` of points or a ``<segm>`` with
the name of a mask, which lies in a folder ``Masks`` and has the size of the image. Images lie in
``Images`` or beside the files. CVAT writes it, too ("LabelMe 3.0").
"""

from dataclasses import dataclass, field

from nacre.errors import NacreError
from nacre.importers.files import Export, File, Finder, clean_parts, split_of
from nacre.importers.formats.labelme import add_unlabeled
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import Image, Reading, size_of
from nacre.importers.shapes import Area, Bitmap, numbers_of, points_of, ring_of
from nacre.importers.sniff import xml_kind

_FIRST = 50


@dataclass
class _Object:
    """What stands in one ``<object>``."""

    name: str = ""
    is_deleted: bool = False
    points: list[str] = field(default_factory=list)
    mask: str = ""


@dataclass
class _Annotation:
    """What stands in one file."""

    image: str = ""
    folder: str = ""
    size: dict[str, str] = field(default_factory=dict)
    objects: list[_Object] = field(default_factory=list)


def find(export: Export) -> list[File]:
    """Return the XML files of images, if one of the first has an outline or a mask."""
    files = export.with_suffix(".xml")
    if not any(xml_kind(export, file) == "labelme" for file in files[:_FIRST]):
        return []
    kinds = ("labelme", "image", "damaged")
    return [file for file in files if xml_kind(export, file) in kinds]


def read(reading: Reading, files: list[File]) -> None:
    """Read LabelMe's XML files."""
    reading.is_sorted = True
    masks = Finder(one for one in reading.export.images if _is_mask(one))
    images = Finder(one for one in reading.export.images if not _is_mask(one))
    for file in reading.each(files):
        _read_one(reading, file, images, masks)
    add_unlabeled(reading)


def _is_mask(file: File) -> bool:
    return any(part.casefold() in ("masks", "scribbles") for part in clean_parts(file.folder))


def _read_one(reading: Reading, file: File, images: Finder, masks: Finder) -> None:
    try:
        found = _parse(reading, file)
    except NacreError as error:
        problem = Unusable("its annotation cannot be read", str(error))
        reading.images.append(Image(file.path, problem=problem))
        return
    image = reading.add_image(
        "/".join(part for part in (found.folder, found.image or file.pure.stem) if part),
        near=file.folder,
        split=split_of(file.folder),
        size=size_of(found.size.get("ncols"), found.size.get("nrows")),
        finder=images,
    )
    for item in found.objects:
        if item.is_deleted:
            continue
        try:
            class_id = reading.class_id(item.name)
            kind = "masks" if item.mask else "polygons"
            reading.draw(image, class_id, _area(reading, item, file, masks), kind)
        except Unusable as problem:
            image.spoil(problem)


def _parse(reading: Reading, file: File) -> _Annotation:
    found = _Annotation()
    for element in reading.stream_xml(file):
        path, text = element.path[1:], element.text.strip()
        if path == ("object",) and element.is_start:
            found.objects.append(_Object())
        if element.is_start or not path:
            continue
        if path == ("filename",):
            found.image = text
        elif path == ("folder",):
            found.folder = text
        elif path[0] == "imagesize":
            found.size[path[-1]] = text
        elif path[0] == "object":
            _note(found.objects[-1], path[1:], text)
    return found


def _note(item: _Object, path: tuple[str, ...], text: str) -> None:
    if path == ("name",):
        item.name = text
    elif path == ("deleted",):
        item.is_deleted = text not in ("", "0")
    elif path in (("polygon", "pt", "x"), ("polygon", "pt", "y")):
        item.points.append(text)
    elif path == ("segm", "mask"):
        item.mask = text


def _area(reading: Reading, item: _Object, file: File, masks: Finder) -> Area | None:
    if not item.mask:
        return ring_of(points_of(list(numbers_of(*item.points))))
    found = masks.find(item.mask, file.folder)
    if found is None:
        raise Unusable("the mask of an object is missing", brief(item.mask))
    try:
        return Bitmap(reading.export.read(found), is_whole=True)
    except NacreError as error:
        raise Unusable("the mask of an object cannot be read", str(error)) from error
