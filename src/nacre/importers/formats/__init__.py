"""The table of formats, and the recognition of an export's format.

Files are recognized by their content, wherever they are: exports come with or without a folder
around them, with or without images. The formats are tried in order, the most specific first. Other
packages register formats under ``nacre.importers``; these are tried if none of ours fits.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nacre.data.folder import misspelled_folder
from nacre.errors import NacreError
from nacre.importers.documents import stream_json, stream_xml
from nacre.importers.files import Export, File, outermost
from nacre.importers.formats import (
    cityscapes,
    coco,
    cvat,
    label_studio,
    labelme,
    mask_folders,
    supervisely,
    yolo,
)
from nacre.importers.problems import brief, some
from nacre.importers.reading import Reading, as_dict
from nacre.utils.system import find_entry, registered

GROUP = "nacre.importers"

_SIGNS = (
    *(("*",), ("annotations", "*"), ("images", "*"), ("categories",), ("shapes",)),
    *(("classes", "*"), ("items", "*"), ("_via_settings",), ("_via_img_metadata",)),
)
"""Places in a JSON document that show its format."""


@dataclass(frozen=True)
class Format:
    """A format of exports.

    Attributes:
        name: The name for ``--format``.
        title: The name in messages.
        find: Returns the files by which it is recognized, or none.
        read: Adds the images and classes of these files to a reading.
    """

    name: str
    title: str
    find: Callable[[Export], list[File]]
    read: Callable[[Reading, list[File]], None]


def recognize(reading: Reading, wanted: str | None = None) -> str:
    """Recognize the format of an export, read it, and return the format's title.

    Args:
        reading: The export; its content is added.
        wanted: Name of the format, if the user gave one.

    Raises:
        NacreError: No format fits; the message names the content.
    """
    export = reading.export
    if not export.files:
        raise NacreError(f"{export.root} has no files")
    rows = [_row(wanted)] if wanted else list(FORMATS.values())
    fitting = [(row, files) for row in rows if (files := row.find(export))]
    if not fitting and not wanted:
        fitting = [(row, files) for row in _others() if (files := row.find(export))]
    if not fitting and reading.named_colors and wanted in (None, "masks"):
        # Even for a data folder of nacre: its masks may have a palette.
        fitting = [(FORMATS["masks"], files)] if (files := mask_folders.all_masks(export)) else []
    if not fitting:
        raise _not_recognized(export, rows[0].title if wanted else None)
    if len(fitting) > 1 and fitting[-1][0].name == "masks":
        del fitting[-1]  # exports of tools may contain masks, too
    if len(fitting) > 1:
        names = ", ".join(other.name for other, _ in fitting[1:])
        reading.notes.append(f"the export also looks like {names}; --format chooses")
    row, files = fitting[0]
    row.read(reading, files)
    return row.title


def _row(name: str) -> Format:
    return find_entry(FORMATS, name, GROUP, Format, "format")


def _others() -> Iterator[Format]:
    """Yield the formats of other packages; a broken one breaks only itself."""
    for name in registered(GROUP, FORMATS):
        with suppress(NacreError):
            yield _row(name)


def _documents(export: Export, kind: str) -> list[File]:
    """Return the JSON and XML files of a kind; the first call looks at all of them.

    Damaged or empty files beside annotations of single images are such annotations, too.
    """
    if not export.kinds:
        export.kinds = defaultdict(list)
        by_folder: dict[tuple[str, str], list[File]] = defaultdict(list)
        for file in export.with_suffix(".json", ".xml"):
            by_folder[file.folder, file.suffix].append(file)
        for files in by_folder.values():
            kinds = [_look(export, file) for file in files]
            per_image = next((name for name in kinds if name.startswith("labelme")), "")
            for file, own in zip(files, kinds, strict=True):
                is_vague = own in ("damaged", "image")
                export.kinds[per_image if per_image and is_vague else own].append(file)
    return export.kinds[kind]


def _look(export: Export, file: File) -> str:
    """Return the kind of a JSON or XML file from its beginning, or nothing."""
    try:
        return _json_kind(file) if file.suffix == ".json" else _xml_kind(file)
    except NacreError as error:
        export.damage[file] = error
        return "damaged"


def _json_kind(file: File) -> str:
    keys = set()
    for place, value in stream_json(file.chunks(), _SIGNS, file.path):
        keys.add(place[0])
        item = as_dict(value)
        if place == ("*",):
            return _task_kind(item)
        if place[0] == "annotations" and item.keys() & {"segments_info", "category_id"}:
            return "panoptic" if "segments_info" in item else "coco"  # not captions
        if place[0] == "shapes" and isinstance(value, list):
            return "labelme"
        if place[0] == "classes" and "title" in item:
            return "supervisely"
        if place[0] == "items" and "annotations" in item:
            return "datumaro"
        if place[0].startswith("_via_"):
            return "via"
    return "coco" if {"images", "categories"} <= keys else ""


def _task_kind(item: dict[str, Any]) -> str:
    if isinstance(item.get("data"), dict) and (
        item.keys() & {"annotations", "completions", "predictions"}
    ):
        return "label-studio"
    lists = [value[0] for value in item.values() if isinstance(value, list) and value]
    if any("original_width" in as_dict(shape) for shape in lists):
        return "label-studio"
    return "coco-results" if {"image_id", "category_id"} <= item.keys() else ""


def _xml_kind(file: File) -> str:
    """Distinguish CVAT's file from files of single images, with areas or with boxes only."""
    kind = ""
    for root, element in stream_xml(file.chunks(), file.path):
        if root == "annotations":
            return "cvat"
        if root != "annotation":
            return ""
        if element.find("polygon") is not None or element.find("segm") is not None:
            return "labelme-xml"
        kind = "boxes" if element.find("bndbox") is not None else kind or "image"
    return kind


def _of_kind(kind: str) -> Callable[[Export], list[File]]:
    """Return a function that finds the documents of a kind.

    If they are JSON files of whole exports, a damaged JSON file may be one, too: it is an error.
    """

    def find(export: Export) -> list[File]:
        files = _documents(export, kind)
        for damaged in export.kinds["damaged"] if files else ():
            if files[0].suffix == damaged.suffix == ".json" and kind != "labelme":
                raise export.damage[damaged]
        return files

    return find


def _find_supervisely(export: Export) -> list[File]:
    """Return the projects' ``meta.json``."""
    metas = [file for file in export.named("meta.json") if _look(export, file) == "supervisely"]
    files = export.with_suffix(".json")
    has_annotations = any(supervisely.is_in(file, "ann") for file in files)
    return outermost(metas) if has_annotations else []


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("supervisely", "Supervisely", _find_supervisely, supervisely.read),
        Format("cityscapes", "Cityscapes", cityscapes.find, cityscapes.read),
        Format("cvat", "CVAT for images 1.1", _of_kind("cvat"), cvat.read),
        Format("yolo", "YOLO polygons", yolo.find, yolo.read),
        Format("coco-panoptic", "COCO panoptic", _of_kind("panoptic"), coco.read_panoptic),
        Format("coco", "COCO instances", _of_kind("coco"), coco.read),
        Format("label-studio", "Label Studio", _of_kind("label-studio"), label_studio.read),
        Format("labelme", "LabelMe", _of_kind("labelme"), labelme.read),
        Format("labelme-xml", "LabelMe XML", _of_kind("labelme-xml"), labelme.read_xml),
        Format("masks", "folders of masks", mask_folders.find, mask_folders.read),
    )
}


def _not_recognized(export: Export, wanted: str | None) -> NacreError:
    for damage in export.damage.values():
        return damage
    root = brief(str(export.root))
    if wanted:
        return NacreError(f"{root} does not look like {wanted}")
    if advice := _advice(export):
        return NacreError(f"{root} {advice}")
    suffixes = Counter(file.suffix or "without extension" for file in export.files)
    content = some((f"{count:,} {suffix}" for suffix, count in suffixes.most_common()), 6)
    known = ", ".join(row.title for row in FORMATS.values())
    return NacreError(f"{root} has no known format (it contains {content}); known: {known}")


_ADVICE = {
    "via": "is a project of VGG's VIA; export it there as COCO",
    "coco-results": "contains COCO results without categories, not annotations; give the "
    "annotation file",
    "datumaro": "is CVAT's export for Datumaro; export it as 'CVAT for images 1.1'",
    "boxes": "contains boxes but no outlines, and these boxes are never filled; label areas, or "
    "make masks of the boxes first, with a tool such as SAM",
}
"""Other kinds of JSON or XML files, and what to do with them."""


def _advice(export: Export) -> str:
    """Return what else an export is and what to do with it, or nothing."""
    for kind, advice in _ADVICE.items():
        if _documents(export, kind):
            return advice
    if any("-annotation-" in file.name and "-by-" in file.name for file in export.images):
        return (
            "is Label Studio's export of brushes as PNG, which does not name the image of a mask; "
            "export it as JSON"
        )
    if jpegs := mask_folders.jpeg_masks(export):
        return (
            f"has masks that are JPEG files, such as {brief(jpegs[0].path)}, whose compression "
            "changes labels; export the masks as PNG from the annotation tool"
        )
    if tables := export.named("classes.yaml"):
        return _misfit(export, tables[0].folder) or (
            "is a data folder of nacre already; use it as it is"
        )
    if mask_folders.is_nacres(export):
        is_white = mask_folders.are_black_and_white(export)
        return (
            "has images/ and masks/ like a data folder of nacre"
            f"{', with masks in black and white (0 and 255)' if is_white else ''}; add a file "
            f"classes.yaml, such as `classes: {{{255 if is_white else 1}: crack}}`, and use it "
            "without an import"
        )
    if export.with_suffix(".zip", ".tar", ".gz", ".7z", ".rar"):
        return "contains another archive; unpack it, then import"
    return ""


def _misfit(export: Export, root: str) -> str:
    """Return why a folder with classes.yaml is no data folder of nacre yet, or nothing."""
    paths = [file.path.removeprefix(f"{root}/") for file in export.files if file.is_inside(root)]
    names = {path.partition("/")[0] for path in paths if "/" in path}
    if wrong := misspelled_folder(names):
        return f"has {wrong[0]}; rename it to {wrong[1]}, and use the folder without an import"
    for name in ("images", "masks"):
        if name not in names:
            return (
                f"has classes.yaml but no files in {name}/; a data folder of nacre contains "
                "images/, masks/ and classes.yaml, and needs no import"
            )
    if not mask_folders.are_named_alike(export, root):
        return (
            "has masks that are not named like their images; give the mask of images/a.jpg the "
            "name masks/a.png, and use the folder without an import"
        )
    return ""
