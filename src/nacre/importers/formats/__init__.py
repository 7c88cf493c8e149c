"""The formats that nacre reads: an explicit table, and what else an export may be.

Files are recognized by what they hold, wherever they lie: exports come with one folder around them
or none, with images or without. The rows are tried in their order, the most particular first; what
other packages register under ``nacre.importers`` is asked where none of ours fits.
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import EntryPoint

from nacre.errors import NacreError, unknown_name
from nacre.importers.files import Export, File, clean_parts
from nacre.importers.formats import (
    cityscapes,
    coco,
    cvat,
    label_studio,
    labelme,
    labelme_xml,
    mask_folders,
    panoptic,
    supervisely,
    yolo,
)
from nacre.importers.problems import brief, some
from nacre.importers.reading import Reading
from nacre.importers.sniff import of_kind, xml_kind
from nacre.utils.system import load_registered, registered

GROUP = "nacre.importers"


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


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("supervisely", "Supervisely", supervisely.find, supervisely.read),
        Format("cityscapes", "Cityscapes", cityscapes.find, cityscapes.read),
        Format("voc", "masks as in Pascal VOC", mask_folders.find_voc, mask_folders.read),
        Format("cvat", "CVAT for images 1.1", cvat.find, cvat.read),
        Format("yolo", "YOLO polygons", yolo.find, yolo.read),
        Format("coco-panoptic", "COCO panoptic", lambda e: of_kind(e, "panoptic"), panoptic.read),
        Format("coco", "COCO instances", lambda e: of_kind(e, "coco"), coco.read),
        Format(
            "label-studio", "Label Studio", lambda e: of_kind(e, "label-studio"), label_studio.read
        ),
        Format("labelme", "LabelMe", labelme.find, labelme.read),
        Format("labelme-xml", "LabelMe XML", labelme_xml.find, labelme_xml.read),
        Format("masks", "folders of masks", mask_folders.find, mask_folders.read),
    )
}


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
    return lambda export: bool(of_kind(export, kind))


def _ends(*suffixes: str) -> Callable[[Export], bool]:
    return lambda export: bool(export.with_suffix(*suffixes))


def _has_folders(export: Export, *names: str) -> bool:
    return set(names) <= {part for file in export.files for part in clean_parts(file.folder)}


def _is_label_studio_png(export: Export) -> bool:
    return any("-annotation-" in file.name and "-by-" in file.name for file in export.images)


_BOXES_ONLY = (
    "holds boxes, no outlines, and boxes are never filled for such data: label areas, or make "
    "masks of the boxes first, with a tool such as SAM"
)
_ADVICE: tuple[tuple[Callable[[Export], bool], str], ...] = (
    (_holds("via"), "is a project of VGG's VIA; export it there as COCO"),
    (_holds("coco-results"), "holds COCO results, not annotations: categories are missing"),
    (_holds("datumaro"), "is in Datumaro's format; export it as CVAT for images 1.1 or COCO"),
    (
        _is_label_studio_png,
        "is Label Studio's export of brushes as PNG, which does not say to which image each "
        "belongs; export as JSON",
    ),
    (
        lambda e: bool(e.named("classes.yaml")) and _has_folders(e, "images", "masks"),
        "is a folder of nacre already; there is nothing to import",
    ),
    (
        lambda e: _has_folders(e, "images", "masks") and mask_folders.are_binary(e),
        "has images/ and masks/ as nacre's own folders have, with masks in black and white (0 and "
        "255); what is missing is classes.yaml, such as `classes: {255: crack}`, and then there is "
        "nothing to import",
    ),
    (
        lambda e: _has_folders(e, "images", "masks"),
        "has images/ and masks/ as nacre's own folders have; what is missing is classes.yaml, such "
        "as `classes: {1: crack}`, and then there is nothing to import",
    ),
    (lambda e: any(xml_kind(e, one) == "boxes" for one in e.with_suffix(".xml")[:5]), _BOXES_ONLY),
    (_ends(".parquet"), "holds parquet files; save images and masks as files"),
    (_ends(".zip", ".tar", ".gz", ".7z", ".rar"), "holds another archive; unpack it, then import"),
)
"""What else an export may be, and what to do then."""
