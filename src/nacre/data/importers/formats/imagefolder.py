"""Hugging Face imagefolder with masks: pictures and masks are paired by a metadata file.

In ``metadata.csv`` or ``metadata.jsonl``, ``file_name`` (or ``image_file_name``) is the picture and
``mask_file_name`` (another ``*_file_name``, or a column ``mask`` with names of files) its mask,
both below the folder of the metadata. ``id2label.json`` names the classes; without it they are
called by their values.
"""

import csv
import json
import re
from collections.abc import Iterator
from typing import Any

import numpy as np
from PIL import Image

from nacre.data.importers.catalog import BACKGROUND, IGNORED, Coding, MaskFile
from nacre.data.importers.files.export import Export, Match, split_of
from nacre.data.importers.files.jsonstream import encoding_of
from nacre.data.importers.files.tree import PICTURE_SUFFIXES, File
from nacre.data.importers.painting.masks import BAD_PICTURE, MASK_FORMATS, stored_values
from nacre.data.importers.problems import Unusable, brief
from nacre.data.importers.reading import Source, as_dict
from nacre.errors import NacreError

METADATA = ("metadata.csv", "metadata.jsonl")
NAMES = ("id2label.json", "label2id.json")

_PREFERRED = ("mask", "label", "annotation", "segmentation", "semantic", "segmentation_mask")
_END = "_file_name"
_IGNORED_VALUE = 255


def read(source: Source, files: list[File]) -> None:
    """Read pictures and masks by the metadata."""
    pairs = [(file, row, column) for file in files for row, column in _rows(source, file)]
    if not pairs:
        raise NacreError(
            f"{brief(files[0].path)} has no column that names masks, such as mask_file_name"
        )
    masks = [_mask_of(source, file, row, column) for file, row, column in pairs]
    coding = Coding("values", _classes(source, [mask for mask in masks if mask is not None]))
    source.catalog.has_background = BACKGROUND in coding.classes.values()
    for (file, row, column), mask in zip(pairs, masks, strict=True):
        index = source.add_picture(
            str(row["file_name"]),
            near=file.folder,
            split=split_of(str(row.get("split", "")))
            or split_of(file.folder)
            or split_of(str(row["file_name"]).rpartition("/")[0]),
            mask=MaskFile(mask, coding) if mask else None,
            is_labeled=mask is not None,
            is_listed=False,
        )
        if mask is None and row.get(column):
            source.catalog.spoil(index, Unusable("its mask is missing", brief(row[column])))
        match = source.catalog.pictures[index].match
        if match is not None and mask is not None and match.file == mask:
            source.catalog.spoil(index, Unusable("picture and mask are one file", brief(mask.path)))


def names_masks(export: Export, file: File) -> bool:
    """Whether the first row of a metadata file names a mask."""
    with export.open(file) as opened:
        start = opened.read(1 << 16)
    lines = start.decode(encoding_of(start), errors="ignore").splitlines()[:2]
    try:
        row = next(_table(file, lines if file.suffix == ".csv" else lines[:1]), None)
    except (csv.Error, ValueError, RecursionError):
        return b"_file_name" in start
    return mask_column(as_dict(row)) is not None


def mask_column(row: dict[str, Any]) -> str | None:
    """Return the column that names the masks; None if there is none."""
    names = [key for key in row if isinstance(key, str)]
    found = [name for name in names if name.endswith(_END) and name != "image" + _END]
    for word in _PREFERRED:
        if word + _END in found:
            return word + _END
        value = row.get(word)
        if isinstance(value, str) and value.casefold().endswith(PICTURE_SUFFIXES):
            return word
    return found[0] if len(found) == 1 else None


def _table(file: File, lines: list[str]) -> Iterator[Any]:
    if file.suffix == ".csv":
        return csv.DictReader(lines)
    return (json.loads(line) for line in lines if line.strip())


def _rows(source: Source, file: File) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield the rows of a metadata file that name a picture, with the column of the masks."""
    text = source.load_text(file)
    try:
        for number, item in enumerate(list(_table(file, text.splitlines())), start=1):
            row = as_dict(item)
            column = mask_column(row)
            if column is None:
                continue
            row["file_name"] = row.get("file_name") or row.get("image" + _END)
            if not isinstance(row.get("file_name"), str) or not row["file_name"]:
                raise NacreError(f"{brief(file.path)}, row {number}: there is no file_name")
            yield row, column
    except (csv.Error, ValueError, RecursionError) as error:
        if isinstance(error, NacreError):
            raise
        raise NacreError(f"{brief(file.path)} cannot be read: {brief(str(error))}") from error


def _mask_of(source: Source, file: File, row: dict[str, Any], column: str) -> File | None:
    name = row.get(column)
    if not isinstance(name, str) or not name:
        return None
    try:
        found: Match | None = source.export.finder.find(f"{file.folder}/{name}", file.folder)
    except Unusable as problem:
        raise NacreError(f"{brief(file.path)}: {problem.reason}: {problem.detail}") from None
    return found.file if found else None


def _classes(source: Source, masks: list[File]) -> dict[int, int]:
    """Return class number by value, by the list of names or else by what the masks hold."""
    named = source.export.named(*NAMES)
    if named:
        return {_IGNORED_VALUE: IGNORED} | _named_classes(source, named[0])
    values: set[int] = set()
    for mask in source.each(masks):
        values |= _values_in(source, mask)
    source.catalog.notes.append(
        "there is no id2label.json: classes are called by their values; --rename gives names"
    )
    # Of masks with black and white only, white is the thing and not what does not count.
    is_binary = values <= {0, _IGNORED_VALUE}
    classes = {0: BACKGROUND} | ({} if is_binary else {_IGNORED_VALUE: IGNORED})
    for value in sorted(values - classes.keys()):
        classes[value] = source.catalog.class_id(f"label {value}")
    return classes


def _named_classes(source: Source, file: File) -> dict[int, int]:
    content = as_dict(source.load_json(file))
    if file.name.casefold() == "label2id.json":
        content = {str(number): name for name, number in content.items()}
    classes = {}
    for key in content:
        if not re.fullmatch(r"\d{1,5}", key):
            raise NacreError(f"{brief(file.path)}: {brief(key)!r} is not a label")
    for key, name in sorted(content.items(), key=lambda item: int(item[0])):
        classes[int(key)] = source.list_class(name, file)
    if not classes:
        raise NacreError(f"{brief(file.path)} names no class")
    return classes


def _values_in(source: Source, mask: File) -> set[int]:
    """Return the values of one mask; those of one that cannot be read are found out later."""
    try:
        with source.export.open(mask) as file, Image.open(file, formats=MASK_FORMATS) as image:
            return {int(value) for value in np.unique(stored_values(image))}
    except (*BAD_PICTURE, Unusable, NacreError):
        return set()
