"""Roboflow "Semantic Segmentation Masks": ``<name>.jpg``, ``<name>_mask.png`` and ``_classes.csv``.

Each split is a folder with its own ``_classes.csv``, whose lines are a value in the masks and the
name of its class; 0 is the background.
"""

import csv

from nacre.errors import NacreError
from nacre.importers.catalog import BACKGROUND, Coding, MaskFile, Picture
from nacre.importers.files.export import Match, split_of
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import Source

CLASSES = "_classes.csv"

_MASK = "_mask"


def read(source: Source, files: list[File]) -> None:
    """Read such an export by its ``_classes.csv`` files."""
    for file in files:
        coding = Coding("values", _classes(source, file))
        _read_folder(source, file.folder, coding)


def _classes(source: Source, file: File) -> dict[int, int]:
    """Return class number by value."""
    classes = {0: BACKGROUND}
    rows = csv.reader(source.load_text(file).splitlines(), skipinitialspace=True)
    try:
        lines = [row for row in rows if row]
    except csv.Error as error:
        raise NacreError(f"{brief(file.path)} is not CSV that can be read: {error}") from error
    for number, row in enumerate(lines[1:], start=2):
        try:
            value = int(row[0])
            classes[value] = source.catalog.class_id(",".join(row[1:]).strip())
        except (ValueError, IndexError, Unusable):
            raise NacreError(
                f"{brief(file.path)}, line {number}: {brief(row)} is not a value and a class"
            ) from None
    if len(lines) < 2:
        raise NacreError(f"{brief(file.path)} names no class")
    return classes


def _read_folder(source: Source, folder: str, coding: Coding) -> None:
    inside = [file for file in source.export.pictures if file.folder == folder and file.tree == 0]
    masks = {
        file.pure.stem.casefold(): file
        for file in inside
        if file.pure.stem.casefold().endswith(_MASK)
    }
    are_masks = set(masks.values())
    for file in inside:
        if file in are_masks:
            continue
        mask = masks.pop(file.pure.stem.casefold() + _MASK, None)
        picture = Picture(
            file.path, Match(file, True), split_of(folder), is_labeled=mask is not None
        )
        picture.is_listed = False
        picture.mask = MaskFile(mask, coding) if mask else None
        source.catalog.add(picture)
    for mask in masks.values():
        name = mask.pure.stem[: -len(_MASK)]
        source.add_picture(name, near=folder, split=split_of(folder), mask=MaskFile(mask, coding))
