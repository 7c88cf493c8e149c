"""Which format an export has: an explicit table, each row with what gives the format away.

Files are recognised by what they hold, wherever they lie: exports come with one folder around them
or none, with pictures or without. The rows are tried in their order, the most particular first.
"""

from collections.abc import Callable
from dataclasses import dataclass

from nacre.errors import NacreError, unknown_name
from nacre.importers.files import xmlstream
from nacre.importers.files.export import Export, clean_parts, outermost
from nacre.importers.files.tree import File
from nacre.importers.formats import (
    cityscapes,
    coco,
    cvat_masks,
    cvat_xml,
    label_studio,
    labelme,
    panoptic,
    roboflow,
    supervisely,
    ultralytics,
)
from nacre.importers.reading import Source
from nacre.importers.sniff import MOST_JSON, Evidence, describe


@dataclass(frozen=True)
class Format:
    """A row of the table of formats.

    Attributes:
        name: By what a user asks for it.
        title: What it is called for people.
        find: Returns the files that give it away; none if it is something else.
        read: Fills the catalogue from these files.
    """

    name: str
    title: str
    find: Callable[[Evidence], list[File]]
    read: Callable[[Source, list[File]], None]


@dataclass(frozen=True)
class Recognized:
    """A format, and the files by which it was recognised."""

    format: Format
    files: list[File]
    others: tuple[str, ...]

    @property
    def title(self) -> str:
        """What the format is called for people."""
        return self.format.title

    def read(self, source: Source) -> None:
        """Fill the catalogue."""
        if self.others:
            source.catalog.notes.append(
                f"the export also looks like {', '.join(self.others)}; --format chooses"
            )
        self.format.read(source, self.files)


def recognize(export: Export, wanted: str | None = None) -> Recognized:
    """Find out which format an export has.

    Args:
        export: The export.
        wanted: Name of a format, if the user says which.

    Raises:
        NacreError: None fits; the message says what is there instead.
    """
    if wanted is not None and wanted not in FORMATS:
        raise unknown_name("format", wanted, FORMATS)
    if not export.files:
        raise NacreError(f"{export.main.root} holds no files")
    evidence = Evidence(export)
    rows = [FORMATS[wanted]] if wanted else FORMATS.values()
    found = [(row, files) for row in rows if (files := row.find(evidence))]
    if found:
        row, files = found[0]
        return Recognized(row, files, tuple(other.name for other, _ in found[1:]))
    if evidence.damage:
        raise evidence.damage[0]
    if wanted:
        raise NacreError(f"{export.main.root} does not look like {FORMATS[wanted].title}")
    raise NacreError(describe(evidence, [row.title for row in FORMATS.values()]))


def _find_labelme(evidence: Evidence) -> list[File]:
    """Return LabelMe's files; where there are many, the first few of a folder speak for all."""
    found = []
    by_folder: dict[str, list[File]] = {}
    for file in evidence.export.with_suffix(".json"):
        by_folder.setdefault(file.folder, []).append(file)
    for files in by_folder.values():
        if evidence.of_kind("labelme", files[:MOST_JSON]):
            few = len(files) <= MOST_JSON
            found += [
                file for file in files if not few or evidence.kind(file) in ("labelme", "damaged")
            ]
    return found


def _find_supervisely(evidence: Evidence) -> list[File]:
    """Return the projects' ``meta.json``, or one annotation where people left that out."""
    metas = [
        file for file in evidence.export.named("meta.json") if evidence.kind(file) == "supervisely"
    ]
    annotations = [
        file
        for file in evidence.export.with_suffix(".json")
        if clean_parts(file.folder)[-1:] == ("ann",)
    ]
    if not annotations or metas:
        return outermost(metas) if annotations else []
    return evidence.of_kind("supervisely-ann", annotations[:1])


def _find_cvat_masks(evidence: Evidence) -> list[File]:
    folders = {
        part.casefold() for file in evidence.export.files for part in clean_parts(file.folder)
    }
    labelmaps = outermost(evidence.export.named(cvat_masks.LABELMAP))
    return labelmaps if cvat_masks.MASKS in folders else []


def _find_cvat_xml(evidence: Evidence) -> list[File]:
    found = []
    for file in evidence.export.with_suffix(".xml"):
        try:
            with evidence.export.open(file) as opened:
                first = next(xmlstream.stream(opened, file.path), None)
        except NacreError as error:
            evidence.damage.append(error)
            continue
        if first is not None and first.path == ("annotations",):
            found.append(file)
    return found


def _find_yolo(evidence: Evidence) -> list[File]:
    """Return the file that names the classes, if there are labels in text files."""
    labels = [
        file
        for file in evidence.export.with_suffix(".txt")
        if "labels" in clean_parts(file.folder.casefold())
    ]
    described = [file for file, content in evidence.yaml_files if ultralytics.describes(content)]
    named = evidence.export.named(*ultralytics.NAME_FILES)
    has_pairs = bool(labels) or (bool(described) and bool(evidence.export.with_suffix(".txt")))
    return outermost(described) or (named[:1] if labels else []) if has_pairs else []


def _find_cityscapes(evidence: Evidence) -> list[File]:
    endings = (*cityscapes.LABEL_IDS, *cityscapes.TRAIN_IDS)
    masks = [
        file for file in evidence.export.pictures if file.pure.stem.casefold().endswith(endings)
    ]
    return masks or [
        file
        for file in evidence.export.with_suffix(".json")
        if file.pure.stem.casefold().endswith(cityscapes.POLYGONS)
    ]


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("supervisely", "Supervisely", _find_supervisely, supervisely.read),
        Format("cityscapes", "Cityscapes", _find_cityscapes, cityscapes.read),
        Format("cvat-masks", "CVAT segmentation mask 1.1", _find_cvat_masks, cvat_masks.read),
        Format("cvat-xml", "CVAT for images 1.1", _find_cvat_xml, cvat_xml.read),
        Format(
            "roboflow-masks",
            "Roboflow masks",
            lambda e: e.export.named(roboflow.CLASSES),
            roboflow.read,
        ),
        Format("yolo", "YOLO polygons", _find_yolo, ultralytics.read_polygons),
        Format("coco-panoptic", "COCO panoptic", lambda e: e.of_kind("panoptic"), panoptic.read),
        Format("coco", "COCO instances", lambda e: e.of_kind("coco"), coco.read),
        Format(
            "label-studio", "Label Studio", lambda e: e.of_kind("label-studio"), label_studio.read
        ),
        Format("labelme", "LabelMe", _find_labelme, labelme.read),
    )
}
