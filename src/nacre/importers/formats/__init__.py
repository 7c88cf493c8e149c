"""The formats that nacre reads: an explicit table, and what else an export may be.

Files are recognized by what they hold, wherever they lie: exports come with one folder around them
or none, with images or without. The rows are tried in their order, the most particular first; what
other packages register under ``nacre.importers`` is asked where none of ours fits.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from typing import Any

from nacre.errors import NacreError, unknown_name
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
from nacre.utils.system import load_registered, registered

GROUP = "nacre.importers"

_FEW = 50
"""Where a folder has more JSON files than this, there is one per image."""

_SIGNS = (
    *(("*",), ("annotations", "*"), ("images", "*"), ("categories",), ("shapes",)),
    *(("classes", "*"), ("items", "*"), ("_via_settings",), ("_via_img_metadata",)),
)
"""Places in a JSON document that tell what it is."""


@dataclass(frozen=True)
class Format:
    """A row of the table of formats.

    Attributes:
        name: By what a user asks for it.
        title: What it is called for people.
        find: Returns the files that give it away; none if it is something else.
        read: Adds the images and classes of these files to a reading.
    """

    name: str
    title: str
    find: Callable[[Export], list[File]]
    read: Callable[[Reading, list[File]], None]


def recognize(reading: Reading, wanted: str | None = None) -> str:
    """Find out which format an export has, read it, and return what the format is called.

    Args:
        reading: The export, and where to put what is found.
        wanted: Name of a format, if the user says which.

    Raises:
        NacreError: None fits; the message says what is there instead.
    """
    export = reading.export
    others = registered(GROUP, FORMATS)
    if wanted is not None and wanted not in {*FORMATS, *others}:
        raise unknown_name("format", wanted, [*FORMATS, *others])
    if not export.files:
        raise NacreError(f"{export.root} holds no files")
    rows = [_row(wanted, others)] if wanted else list(FORMATS.values())
    found = [(row, files) for row in rows if (files := row.find(export))]
    if not found and wanted is None:
        found = [(row, files) for row in _load(others) if (files := row.find(export))]
    if not found:
        raise _not_recognized(export, rows[0].title if wanted else None)
    if len(found) > 1 and found[-1][0].name == "masks":
        del found[-1]  # what tools export may hold masks, too
    if len(found) > 1:
        names = ", ".join(other.name for other, _ in found[1:])
        reading.notes.append(f"the export also looks like {names}; --format chooses")
    row, files = found[0]
    row.read(reading, files)
    return row.title


def _row(name: str, others: dict[str, EntryPoint]) -> Format:
    if name in FORMATS:
        return FORMATS[name]
    row: Format = load_registered(
        others[name], "the format", "Format", lambda found: isinstance(found, Format)
    )
    return row


def _load(others: dict[str, EntryPoint]) -> list[Format]:
    """Return the formats of other packages; one that is broken breaks only itself."""
    rows = []
    for name in others:
        try:
            rows.append(_row(name, others))
        except NacreError:
            continue
    return rows


def _documents(export: Export, kind: str) -> list[File]:
    """Return the JSON and XML files of a kind; all are looked at once, the first time.

    Of many JSON files in a folder only the first few are, and none of them is a whole export. Where
    one is that of an image, so are those that were not looked at, and the damaged ones.
    """
    if not export.kinds:
        export.kinds = defaultdict(list)
        by_folder: dict[tuple[str, str], list[File]] = defaultdict(list)
        for file in export.with_suffix(".json", ".xml"):
            by_folder[file.folder, file.suffix].append(file)
        for (_, suffix), files in by_folder.items():
            is_per_image = suffix == ".json" and len(files) > _FEW
            told = {file: _look(export, file) for file in files[: _FEW if is_per_image else None]}
            rest = next((one for one in told.values() if one.startswith("labelme")), "")
            for file in files:
                found = told.get(file, rest)
                found = rest if rest and found in ("damaged", "image") else found
                if found.startswith("labelme") or not is_per_image:
                    export.kinds[found].append(file)
    return export.kinds[kind]


def _look(export: Export, file: File) -> str:
    """Return what a JSON or XML file is by what it begins with; nothing if that is not known."""
    try:
        return _json_kind(file) if file.suffix == ".json" else _xml_kind(file)
    except NacreError as error:
        export.damage[file] = error
        return "damaged"


def _json_kind(file: File) -> str:
    seen = set()
    for place, value in stream_json(file.chunks(), _SIGNS, file.path):
        seen.add(place[0])
        item = as_dict(value)
        if place == ("*",):
            return _task_kind(item)
        if place[0] == "annotations" and item.keys() & {"segments_info", "category_id"}:
            return "panoptic" if "segments_info" in item else "coco"  # no captions
        if place[0] == "shapes" and isinstance(value, list):
            return "labelme"
        if place[0] == "classes" and "title" in item:
            return "supervisely"
        if place[0] == "items" and "annotations" in item:
            return "datumaro"
        if place[0].startswith("_via_"):
            return "via"
    return "coco" if {"images", "categories"} <= seen else ""


def _task_kind(item: dict[str, Any]) -> str:
    if isinstance(item.get("data"), dict) and (
        item.keys() & {"annotations", "completions", "predictions"}
    ):
        return "label-studio"
    lists = [value[0] for value in item.values() if isinstance(value, list) and value]
    if any("original_width" in as_dict(one) for one in lists):
        return "label-studio"
    return "coco-results" if {"image_id", "category_id"} <= item.keys() else ""


def _xml_kind(file: File) -> str:
    """Distinguish CVAT's file from those of single images, with areas or with boxes only."""
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
    """Return what finds the documents of a kind.

    It raises an error if they are JSON files of whole exports, and another one, which may be such
    a file, is damaged.
    """

    def find(export: Export) -> list[File]:
        found = _documents(export, kind)
        for damaged in export.kinds["damaged"] if found else ():
            if found[0].suffix == damaged.suffix == ".json" and kind != "labelme":
                raise export.damage[damaged]
        return found

    return find


def _find_supervisely(export: Export) -> list[File]:
    """Return the projects' ``meta.json``."""
    metas = [one for one in export.named("meta.json") if _look(export, one) == "supervisely"]
    has_annotations = any(supervisely.is_in(one, "ann") for one in export.with_suffix(".json"))
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
    endings = Counter(file.suffix or "without extension" for file in export.files)
    there = some((f"{count:,} {ending}" for ending, count in endings.most_common()), 6)
    known = ", ".join(row.title for row in FORMATS.values())
    return NacreError(f"{root} has none of the known formats (it holds {there}); known: {known}")


_ADVICE = {
    "via": "is a project of VGG's VIA; export it there as COCO",
    "coco-results": "holds COCO results, not annotations: categories are missing",
    "datumaro": "is CVAT's export for Datumaro; export it as 'CVAT for images 1.1'",
    "boxes": "holds boxes, no outlines, and boxes are never filled for such data: label areas, or "
    "make masks of the boxes first, with a tool such as SAM",
}
"""What else a JSON or XML file may be, and what to do then."""


def _advice(export: Export) -> str:
    """Return what else an export is, and what to do then; nothing if that is not known."""
    for kind, advice in _ADVICE.items():
        if _documents(export, kind):
            return advice
    if any("-annotation-" in one.name and "-by-" in one.name for one in export.images):
        return (
            "is Label Studio's export of brushes as PNG, which does not say to which image each "
            "belongs; export as JSON"
        )
    if export.named("classes.yaml"):
        return "is a folder of nacre already; there is nothing to import"
    if mask_folders.is_nacres(export):
        is_white = mask_folders.are_black_and_white(export)
        return (
            "has images/ and masks/ as nacre's own folders have"
            f"{', with masks in black and white (0 and 255)' if is_white else ''}; what is missing "
            f"is classes.yaml, such as `classes: {{{255 if is_white else 1}: crack}}`, and then "
            "there is nothing to import"
        )
    if export.with_suffix(".parquet"):
        return "holds parquet files; save images and masks as files"
    if export.with_suffix(".zip", ".tar", ".gz", ".7z", ".rar"):
        return "holds another archive; unpack it, then import"
    return ""
