"""Which format an export has: an explicit table, each row with what gives the format away.

Files are recognised by what they hold, wherever they lie: exports come with one folder around them or
none, with pictures or without. The rows are tried in their order, the most particular first.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from nacre.data.importers import jsonstream, xmlstream
from nacre.data.importers.export import Export, clean_parts
from nacre.data.importers.formats import (
    cityscapes,
    coco,
    cvat_masks,
    cvat_xml,
    imagefolder,
    label_studio,
    labelme,
    mapillary,
    panoptic,
    roboflow,
    segments,
    supervisely,
    ultralytics,
)
from nacre.data.importers.problems import shown, some
from nacre.data.importers.reading import Source, as_dict, load_yaml
from nacre.data.importers.tree import File
from nacre.errors import NacreError, unknown_name

_MOST_JSON = 50
"""Where a folder has more JSON files than this, they are one a picture, and few tell their kind."""

_LABEL_STUDIO_PNG = "-annotation-"


class Evidence:
    """What an export holds, looked up once."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.damage: list[NacreError] = []
        self._kinds: dict[File, str] = {}

    @cached_property
    def json_files(self) -> list[File]:
        """JSON files that may be a whole export: not those of folders with one a picture."""
        files = self.export.with_suffix(".json")
        crowded = {folder for folder, count in _counts(files).items() if count > _MOST_JSON}
        return [file for file in files if file.folder not in crowded]

    @cached_property
    def yaml_files(self) -> list[tuple[File, dict[str, Any]]]:
        """YAML files that hold a table, the outermost first."""
        found = []
        for file in sorted(
            self.export.with_suffix(".yaml", ".yml"), key=lambda one: one.path.count("/")
        ):
            try:
                found.append((file, as_dict(load_yaml(self.export, file))))
            except NacreError as error:
                self.damage.append(error)
        return found

    def of_kind(self, kind: str, files: list[File] | None = None) -> list[File]:
        """Return the JSON files of a kind."""
        return [
            file
            for file in (self.json_files if files is None else files)
            if self.kind(file) == kind
        ]

    def kind(self, file: File) -> str:
        """Return what a JSON file is by its first keys; nothing if that is not known."""
        if file not in self._kinds:
            try:
                with self.export.open(file) as opened:
                    self._kinds[file] = _json_kind(jsonstream.outline(opened, file.path))
            except NacreError as error:
                self.damage.append(error)
                self._kinds[file] = "damaged"
        return self._kinds[file]


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
class Recognised:
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


def recognise(export: Export, wanted: str | None = None) -> Recognised:
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
        return Recognised(row, files, tuple(other.name for other, _ in found[1:]))
    if evidence.damage:
        raise evidence.damage[0]
    if wanted:
        raise NacreError(f"{export.main.root} does not look like {FORMATS[wanted].title}")
    raise NacreError(_nothing_known(evidence))


def _json_kind(outline: Any) -> str:
    keys = set()
    for key, sample in outline:
        keys.add(key)
        found = _KEYS[key](sample) if key in _KEYS else ""
        if found:
            return found
        if isinstance(sample, dict) and len(keys) == 1 and key.startswith("_via_"):
            return "via"
    if {"images", "categories"} <= keys:
        return "coco"
    if {"objects", "size"} <= keys:
        return "supervisely-ann"
    return ""


def _task_kind(sample: Any) -> str:
    item = as_dict(sample)
    if isinstance(item.get("data"), dict) and any(
        key in item for key in ("annotations", "completions", "predictions")
    ):
        return "label-studio"
    lists = [value[0] for value in item.values() if isinstance(value, list) and value]
    if any("original_width" in as_dict(one) for one in lists):
        return "label-studio"
    return "coco-results" if {"image_id", "category_id"} <= item.keys() else ""


def _annotations_kind(sample: Any) -> str:
    item = as_dict(sample)
    if "segments_info" in item:
        return "panoptic"
    return "coco" if "image_id" in item else ""


_KEYS: dict[str, Callable[[Any], str]] = {
    "*": _task_kind,
    "annotations": _annotations_kind,
    "shapes": lambda sample: "labelme" if sample is None or isinstance(sample, dict) else "",
    "labels": lambda sample: "mapillary" if "readable" in as_dict(sample) else "",
    "classes": lambda sample: "supervisely" if "title" in as_dict(sample) else "",
    "dataset": lambda sample: "segments" if sample == {} else "",
    "_via_settings": lambda sample: "via",
    "_via_img_metadata": lambda sample: "via",
}


def _find_labelme(evidence: Evidence) -> list[File]:
    """Return LabelMe's files; where there are many, the first few of a folder speak for all."""
    found = []
    by_folder: dict[str, list[File]] = {}
    for file in evidence.export.with_suffix(".json"):
        by_folder.setdefault(file.folder, []).append(file)
    for files in by_folder.values():
        if evidence.of_kind("labelme", files[:_MOST_JSON]):
            few = len(files) <= _MOST_JSON
            found += [
                file for file in files if not few or evidence.kind(file) in ("labelme", "damaged")
            ]
    return found


def _find_supervisely(evidence: Evidence) -> list[File]:
    metas = [
        file for file in evidence.export.named("meta.json") if evidence.kind(file) == "supervisely"
    ]
    has_annotations = any(
        clean_parts(file.folder)[-1:] == ("ann",) for file in evidence.export.with_suffix(".json")
    )
    return metas[:1] if has_annotations else []


def _find_cvat_masks(evidence: Evidence) -> list[File]:
    folders = {
        part.casefold() for file in evidence.export.files for part in clean_parts(file.folder)
    }
    return evidence.export.named(cvat_masks.LABELMAP)[:1] if cvat_masks.MASKS in folders else []


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
    return (described or (named if labels else []))[:1] if has_pairs else []


def _find_ultralytics_masks(evidence: Evidence) -> list[File]:
    for file, content in evidence.yaml_files:
        if ultralytics.describes(content) and ultralytics.has_masks(evidence.export.files, content):
            return [file]
    return []


def _find_cityscapes(evidence: Evidence) -> list[File]:
    endings = (*cityscapes.LABEL_IDS, *cityscapes.TRAIN_IDS)
    return [
        file for file in evidence.export.pictures if file.pure.stem.casefold().endswith(endings)
    ]


def _find_imagefolder(evidence: Evidence) -> list[File]:
    found = []
    for file in evidence.export.named(*imagefolder.METADATA):
        with evidence.export.open(file) as opened:
            start = opened.read(1 << 16)
        if b"_file_name" in start:
            found.append(file)
    return found


FORMATS: dict[str, Format] = {
    row.name: row
    for row in (
        Format("supervisely", "Supervisely", _find_supervisely, supervisely.read),
        Format("cityscapes", "Cityscapes", _find_cityscapes, cityscapes.read),
        Format("mapillary", "Mapillary Vistas", lambda e: e.of_kind("mapillary"), mapillary.read),
        Format("cvat-masks", "CVAT segmentation mask 1.1", _find_cvat_masks, cvat_masks.read),
        Format("cvat-xml", "CVAT for images 1.1", _find_cvat_xml, cvat_xml.read),
        Format(
            "roboflow-masks",
            "Roboflow masks",
            lambda e: e.export.named(roboflow.CLASSES),
            roboflow.read,
        ),
        Format(
            "ultralytics-masks",
            "Ultralytics masks",
            _find_ultralytics_masks,
            ultralytics.read_masks,
        ),
        Format("yolo", "YOLO polygons", _find_yolo, ultralytics.read_polygons),
        Format("coco-panoptic", "COCO panoptic", lambda e: e.of_kind("panoptic"), panoptic.read),
        Format("coco", "COCO instances", lambda e: e.of_kind("coco"), coco.read),
        Format("segments", "Segments.ai", lambda e: e.of_kind("segments"), segments.read),
        Format(
            "label-studio", "Label Studio", lambda e: e.of_kind("label-studio"), label_studio.read
        ),
        Format("labelme", "LabelMe", _find_labelme, labelme.read),
        Format("imagefolder", "Hugging Face imagefolder", _find_imagefolder, imagefolder.read),
    )
}


def _nothing_known(evidence: Evidence) -> str:
    """Say what is there, and what to do where that is known."""
    export = evidence.export
    root = export.main.root
    kinds = {evidence.kind(file) for file in evidence.json_files}
    if "via" in kinds:
        return f"{root} is a project of VGG's VIA; export it there as COCO"
    if "coco-results" in kinds:
        return f"{root} holds COCO results, not annotations: there is no list of pictures and categories"
    if any(_LABEL_STUDIO_PNG in file.name and "-by-" in file.name for file in export.pictures):
        return f"{root} is Label Studio's export of brushes as PNG, which does not say to which picture one belongs; export as JSON"
    names = {file.name for file in export.files}
    folders = {part for file in export.files for part in clean_parts(file.folder)}
    if "classes.yaml" in names and {"images", "masks"} <= folders:
        return f"{root} is a folder of nacre already; there is nothing to import"
    if any(file.suffix == ".zip" for file in export.files):
        return f"{root} holds another archive; import that one, or unpack it"
    endings = sorted(_counts_of_endings(export.files).items(), key=lambda item: -item[1])
    there = some((f"{count:,} {ending or 'without extension'}" for ending, count in endings), 6)
    known = ", ".join(row.title for row in FORMATS.values())
    return f"{shown(str(root))} has none of the known formats (it holds {there}); known: {known}"


def _counts(files: list[File]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in files:
        counts[file.folder] = counts.get(file.folder, 0) + 1
    return counts


def _counts_of_endings(files: list[File]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for file in files:
        counts[file.suffix] = counts.get(file.suffix, 0) + 1
    return counts
