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
"""Where a folder has more JSON or XML files than this, there is one per image."""

_SIGNS = (
    *(("*",), ("annotations", "*"), ("images", "*"), ("categories",), ("shapes",)),
    *(("classes", "*"), ("objects",), ("size",), ("_via_settings",), ("_via_img_metadata",)),
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


def _kind(export: Export, file: File) -> str:
    """Return what a JSON or XML file is by what it begins with; nothing if that is not known."""
    if file not in export.kinds:
        look = _json_kind if file.suffix == ".json" else _xml_kind
        try:
            export.kinds[file] = look(file)
        except NacreError as error:
            export.damage[file] = error
            export.kinds[file] = "damaged"
    return export.kinds[file]


def _json_kind(file: File) -> str:
    seen = set()
    for place, value in stream_json(file.chunks(), _SIGNS, file.path):
        seen.add(place[0])
        item = as_dict(value)
        if place == ("*",):
            return _task_kind(item)
        if place[0] == "annotations" and ("segments_info" in item or "image_id" in item):
            return "panoptic" if "segments_info" in item else "coco"
        if place[0] == "shapes" and isinstance(value, list):
            return "labelme"
        if place[0] == "classes" and "title" in item:
            return "supervisely"
        if place[0].startswith("_via_"):
            return "via"
    if {"images", "categories"} <= seen:
        return "coco"
    return "supervisely-ann" if {"objects", "size"} <= seen else ""


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
            return "labelme"
        kind = "boxes" if element.find("bndbox") is not None else kind or "image"
    return kind


def _whole(*kinds: str) -> Callable[[Export], list[File]]:
    """Return what finds the JSON files of a kind that may be a whole export, so not one of many.

    It raises an error if there are some, and another one is damaged, which may be one of them.
    """

    def find(export: Export) -> list[File]:
        files = export.with_suffix(".json")
        per_folder = Counter(file.folder for file in files)
        few = [file for file in files if per_folder[file.folder] <= _FEW]
        found = [file for file in few if _kind(export, file) in kinds]
        damaged = [export.damage[file] for file in few if file in export.damage]
        if found and damaged:
            raise damaged[0]
        return found

    return find


def _per_image(suffix: str, *kinds: str) -> Callable[[Export], list[File]]:
    """Return what finds files of single images, by the first few of each folder.

    The first kind gives a folder away; files of the other kinds in it, and damaged ones, are images
    without a shape, or belong to images that cannot be imported.
    """

    def find(export: Export) -> list[File]:
        found = []
        by_folder: dict[str, list[File]] = defaultdict(list)
        for file in export.with_suffix(suffix):
            by_folder[file.folder].append(file)
        for files in by_folder.values():
            told = {file: _kind(export, file) for file in files[:_FEW]}
            if kinds[0] in told.values():
                found += [one for one in files if told.get(one, kinds[0]) in (*kinds, "damaged")]
        return found

    return find


def _find_cvat(export: Export) -> list[File]:
    return [file for file in export.with_suffix(".xml") if _kind(export, file) == "cvat"]


def _find_supervisely(export: Export) -> list[File]:
    """Return the projects' ``meta.json``, or one annotation where people left that out."""
    annotations = [one for one in export.with_suffix(".json") if supervisely.is_in(one, "ann")]
    metas = [one for one in export.named("meta.json") if _kind(export, one) == "supervisely"]
    if not annotations or metas:
        return outermost(metas) if annotations else []
    return [one for one in annotations[:1] if _kind(export, one) == "supervisely-ann"]


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("supervisely", "Supervisely", _find_supervisely, supervisely.read),
        Format("cityscapes", "Cityscapes", cityscapes.find, cityscapes.read),
        Format("voc", "masks as in Pascal VOC", mask_folders.find_voc, mask_folders.read),
        Format("cvat", "CVAT for images 1.1", _find_cvat, cvat.read),
        Format("yolo", "YOLO polygons", yolo.find, yolo.read),
        Format("coco-panoptic", "COCO panoptic", _whole("panoptic"), coco.read_panoptic),
        Format("coco", "COCO instances", _whole("coco"), coco.read),
        Format("label-studio", "Label Studio", _whole("label-studio"), label_studio.read),
        Format("labelme", "LabelMe", _per_image(".json", "labelme"), labelme.read),
        Format(
            "labelme-xml", "LabelMe XML", _per_image(".xml", "labelme", "image"), labelme.read_xml
        ),
        Format("masks", "folders of masks", mask_folders.find, mask_folders.read),
    )
}


def _not_recognized(export: Export, wanted: str | None) -> NacreError:
    for damage in export.damage.values():
        return damage
    root = brief(str(export.root))
    if wanted:
        return NacreError(f"{root} does not look like {wanted}")
    for fits, advice in _ADVICE:
        if fits(export):
            return NacreError(f"{root} {advice}")
    endings = Counter(file.suffix or "without extension" for file in export.files)
    there = some((f"{count:,} {ending}" for ending, count in endings.most_common()), 6)
    known = ", ".join(row.title for row in FORMATS.values())
    return NacreError(f"{root} has none of the known formats (it holds {there}); known: {known}")


def _holds(kind: str) -> Callable[[Export], bool]:
    files = _whole(kind)
    return lambda export: bool(files(export))


def _has_folders(export: Export) -> bool:
    """Return whether there are ``images/`` and ``masks/``, as nacre's own folders have."""
    return all(any(one.is_below(name) for one in export.files) for name in ("images", "masks"))


_MISSING = "has images/ and masks/ as nacre's own folders have{}; what is missing is classes.yaml, "
_MISSING += "such as `classes: {{{}: crack}}`, and then there is nothing to import"
_ADVICE: tuple[tuple[Callable[[Export], bool], str], ...] = (
    (_holds("via"), "is a project of VGG's VIA; export it there as COCO"),
    (_holds("coco-results"), "holds COCO results, not annotations: categories are missing"),
    (
        lambda e: any("-annotation-" in one.name and "-by-" in one.name for one in e.images),
        "is Label Studio's export of brushes as PNG, which does not say to which image each "
        "belongs; export as JSON",
    ),
    (
        lambda e: bool(e.named("classes.yaml")) and _has_folders(e),
        "is a folder of nacre already; there is nothing to import",
    ),
    (
        lambda e: _has_folders(e) and mask_folders.are_black_and_white(e),
        _MISSING.format(", with masks in black and white (0 and 255)", 255),
    ),
    (_has_folders, _MISSING.format("", 1)),
    (
        lambda e: any(_kind(e, one) == "boxes" for one in e.with_suffix(".xml")[:5]),
        "holds boxes, no outlines, and boxes are never filled for such data: label areas, or make "
        "masks of the boxes first, with a tool such as SAM",
    ),
    (
        lambda e: bool(e.with_suffix(".parquet")),
        "holds parquet files; save images and masks as files",
    ),
    (
        lambda e: bool(e.with_suffix(".zip", ".tar", ".gz", ".7z", ".rar")),
        "holds another archive; unpack it, then import",
    ),
)
"""What else an export may be, and what to do then."""
