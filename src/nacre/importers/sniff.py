"""What the files of an export are by what they begin with, looked up once."""

from collections import Counter
from collections.abc import Callable
from typing import Any

from nacre.errors import NacreError
from nacre.importers.documents import outline_json, stream_xml
from nacre.importers.files import Export, File
from nacre.importers.reading import as_dict

MOST_JSON = 50
"""Where a folder has more JSON files than this, they are one per image; few tell their kind."""

_MOST_ELEMENTS = 2000


def of_kind(export: Export, *kinds: str) -> list[File]:
    """Return the JSON files of a kind that may be a whole export, so not one of many.

    Raises:
        NacreError: There are some, and another one is damaged, which may be one of them.
    """
    files = export.with_suffix(".json")
    per_folder = Counter(file.folder for file in files)
    few = [file for file in files if per_folder[file.folder] <= MOST_JSON]
    found = [file for file in few if json_kind(export, file) in kinds]
    damaged = [export.damage[file] for file in few if file in export.damage]
    if found and damaged:
        raise damaged[0]
    return found


def json_kind(export: Export, file: File) -> str:
    """Return what a JSON file is by its first keys; nothing if that is not known."""
    return _looked_up(export, file, _json_kind)


def xml_kind(export: Export, file: File) -> str:
    """Return what an XML file is by its first elements; nothing if that is not known."""
    return _looked_up(export, file, _xml_kind)


def _looked_up(export: Export, file: File, look: Callable[[Any, str], str]) -> str:
    if file not in export.kinds:
        try:
            with export.open(file) as opened:
                export.kinds[file] = look(opened, file.path)
        except NacreError as error:
            export.damage[file] = error
            export.kinds[file] = "damaged"
    return export.kinds[file]


def _xml_kind(opened: Any, name: str) -> str:
    """Tell CVAT's file from those of single images, with areas or with boxes only."""
    kind = ""
    for count, element in enumerate(stream_xml(opened, name)):
        tag = element.path[-1]
        if element.path == ("annotations",):
            return "cvat"
        if element.path[0] != "annotation" or count > _MOST_ELEMENTS:
            return kind
        if tag in ("polygon", "segm"):
            return "labelme"
        kind = "boxes" if tag == "bndbox" else kind or "image"
    return kind


def _json_kind(opened: Any, name: str) -> str:
    keys = set()
    for key, sample in outline_json(opened, name):
        keys.add(key)
        found = _KEYS[key](sample) if key in _KEYS else ""
        if found:
            return found
        if isinstance(sample, dict) and len(keys) == 1 and key.startswith("_via_"):
            return "via"
    if {"images", "categories"} <= keys:
        return "coco"
    return "supervisely-ann" if {"objects", "size"} <= keys else ""


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
    "items": lambda sample: "datumaro" if "annotations" in as_dict(sample) else "",
    "_via_settings": lambda sample: "via",
    "_via_img_metadata": lambda sample: "via",
}
