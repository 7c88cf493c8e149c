"""What an export holds, looked up once: files by what they begin with, and damage on the way."""

from collections import Counter
from collections.abc import Callable, Iterable
from functools import cached_property
from typing import Any

from nacre.errors import NacreError
from nacre.importers.files import jsonstream
from nacre.importers.files.export import Export, clean_parts
from nacre.importers.files.tree import File
from nacre.importers.problems import brief, some
from nacre.importers.reading import as_dict, load_yaml

MOST_JSON = 50
"""Where a folder has more JSON files than this, they are one per picture; few tell their kind."""

_LABEL_STUDIO_PNG = ("-annotation-", "-by-")


class Evidence:
    """What an export holds, looked up once."""

    def __init__(self, export: Export) -> None:
        self.export = export
        self.damage: list[NacreError] = []
        self._kinds: dict[File, str] = {}

    @cached_property
    def json_files(self) -> list[File]:
        """JSON files that may be a whole export: not those of folders with one per picture."""
        files = self.export.with_suffix(".json")
        per_folder = Counter(file.folder for file in files)
        crowded = {folder for folder, count in per_folder.items() if count > MOST_JSON}
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
    "shapes": lambda sample: "labelme" if sample is None or as_dict(sample) else "",
    "classes": lambda sample: "supervisely" if "title" in as_dict(sample) else "",
    "_via_settings": lambda sample: "via",
    "_via_img_metadata": lambda sample: "via",
}


def describe(evidence: Evidence, known: Iterable[str]) -> str:
    """Say what is there where no format was recognised, and what to do where that is known.

    Args:
        evidence: What the export holds.
        known: The formats that nacre reads.
    """
    root = brief(str(evidence.export.main.root))
    for fits, advice in _ADVICE:
        if fits(evidence):
            return f"{root} {advice}"
    endings = Counter(file.suffix or "without extension" for file in evidence.export.files)
    there = some((f"{count:,} {ending}" for ending, count in endings.most_common()), 6)
    return f"{root} has none of the known formats (it holds {there}); known: {', '.join(known)}"


def _holds(kind: str) -> Callable[[Evidence], bool]:
    return lambda evidence: bool(evidence.of_kind(kind))


def _ends(*suffixes: str) -> Callable[[Evidence], bool]:
    return lambda evidence: bool(evidence.export.with_suffix(*suffixes))


def _is_label_studio_png(evidence: Evidence) -> bool:
    return any(
        all(part in file.name for part in _LABEL_STUDIO_PNG) for file in evidence.export.pictures
    )


def _is_nacre_folder(evidence: Evidence) -> bool:
    return bool(evidence.export.named("classes.yaml")) and {"images", "masks"} <= _folders(evidence)


def _folders(evidence: Evidence) -> set[str]:
    return {part for file in evidence.export.files for part in clean_parts(file.folder)}


_ADVICE: tuple[tuple[Callable[[Evidence], bool], str], ...] = (
    (_holds("via"), "is a project of VGG's VIA; export it there as COCO"),
    (
        _holds("coco-results"),
        "holds COCO results, not annotations: categories are missing",
    ),
    (
        _is_label_studio_png,
        "is Label Studio's export of brushes as PNG, which does not say to which picture each "
        "belongs; export as JSON",
    ),
    (_is_nacre_folder, "is a folder of nacre already; there is nothing to import"),
    (
        lambda evidence: {"images", "masks"} <= _folders(evidence),
        "has images/ and masks/ as nacre's own folders have; what is missing is classes.yaml, such "
        "as `classes: {1: crack}`, and then there is nothing to import",
    ),
    (
        lambda evidence: "SegmentationClass" in _folders(evidence),
        "has Pascal VOC's folders but no labelmap.txt, which says what the colours mean; Pascal "
        "VOC itself needs no import: nacre data voc --root FOLDER",
    ),
    (_ends(".parquet"), "holds parquet files; save pictures and masks as files"),
    (_ends(".zip", ".tar", ".gz", ".7z", ".rar"), "holds another archive; unpack it, then import"),
)
"""What else an export may be, and what to do then."""
