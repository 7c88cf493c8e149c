"""CVAT "Segmentation mask 1.1", which is Pascal VOC's layout with a map of colours.

``labelmap.txt`` has a line ``name:r,g,b:parts:actions`` for each class, ``SegmentationClass/`` the
masks, in these colours, ``ImageSets/Segmentation/`` a list of names for each subset, and
``JPEGImages/`` the pictures, if they were saved too. The line is not the label: only the colour
tells the class. A picture that a list names and that has no mask has no annotation.
"""

import re

from nacre.errors import NacreError
from nacre.importers.catalog import BACKGROUND, Coding, MaskFile
from nacre.importers.files.export import Finder, clean_parts, split_of
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import Source

LABELMAP = "labelmap.txt"
MASKS = "segmentationclass"

_LINE = re.compile(r"^(.*\S.*?):\s*(\d{1,9})\s*,\s*(\d{1,9})\s*,\s*(\d{1,9})\s*(:.*)?$")


def read(source: Source, files: list[File]) -> None:
    """Read such exports by their ``labelmap.txt``; there may be one for each of several tasks."""
    for labelmap in files:
        _read_one(source, labelmap)


def _read_one(source: Source, labelmap: File) -> None:
    coding = Coding("colors", _colors(source, labelmap))
    root = clean_parts(labelmap.folder)
    masks, pictures = _below(source, root)
    lists = _lists(source, root)
    exact = {_name_of(mask).casefold(): mask for mask in masks}
    named = {exact[name.casefold()] for name in lists if name.casefold() in exact}
    # A mask may lie in a folder that the list does not name.
    others = Finder(mask for mask in masks if mask not in named)
    finder, taken = Finder(pictures), set()
    for name, split in lists.items():
        index = source.add_picture(name, near=labelmap.folder, split=split, finder=finder)
        picture = source.catalog.pictures[index]
        try:
            found = others.find(name) if name.casefold() not in exact else None
        except Unusable as problem:
            source.catalog.spoil(index, problem)
            continue
        mask = exact.get(name.casefold()) or (found.file if found else None)
        taken.add(mask)
        picture.mask = MaskFile(mask, coding) if mask else None
        picture.is_labeled = mask is not None
    for mask in masks:
        if mask not in taken:
            found_mask = MaskFile(mask, coding)
            source.add_picture(_name_of(mask), near=labelmap.folder, finder=finder, mask=found_mask)


def _colors(source: Source, labelmap: File) -> dict[int, int]:
    """Return class number by colour; black is background unless a class has it."""
    classes: dict[int, int] = {}
    for number, line in enumerate(source.load_text(labelmap).splitlines(), start=1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        form = _LINE.match(line.strip())
        color = tuple(int(form[i]) for i in (2, 3, 4)) if form else ()
        if form is None or max(color) > 255:
            raise NacreError(
                f"{brief(labelmap.path)}, line {number}: {brief(line)!r} is not of the form "
                "name:r,g,b:parts:actions"
            )
        r, g, b = color
        number = source.list_class(form[1], labelmap, (r, g, b))
        if classes.setdefault(r | g << 8 | b << 16, number) != number:
            raise NacreError(f"{brief(labelmap.path)}: two classes have the colour {r},{g},{b}")
    if not classes:
        raise NacreError(f"{brief(labelmap.path)} names no class")
    classes.setdefault(0, BACKGROUND)
    return classes


def _below(source: Source, root: tuple[str, ...]) -> tuple[list[File], list[File]]:
    """Return the masks, and the files that may be pictures."""
    masks, pictures = [], []
    for file in source.export.pictures:
        parts = [part.casefold() for part in clean_parts(file.folder)]
        if file.tree == 0 and MASKS in parts and clean_parts(file.path)[: len(root)] == root:
            masks.append(file)
        elif file.tree == 1 or "segmentationobject" not in parts:
            pictures.append(file)
    return masks, pictures


def _lists(source: Source, root: tuple[str, ...]) -> dict[str, str | None]:
    """Return the split of every name in the lists."""
    found: dict[str, str | None] = {}
    for file in source.export.with_suffix(".txt"):
        parts = [part.casefold() for part in clean_parts(file.folder)]
        if (
            parts[-2:] != ["imagesets", "segmentation"]
            or clean_parts(file.path)[: len(root)] != root
        ):
            continue
        for line in source.load_text(file).splitlines():
            if line.strip():
                found.setdefault("/".join(clean_parts(line.strip())), split_of(file.pure.stem))
    return found


def _name_of(mask: File) -> str:
    """Return a mask's path below its folder without the extension."""
    parts = clean_parts(mask.path)
    last = max(place for place, part in enumerate(parts) if part.casefold() == MASKS)
    return "/".join(parts[last + 1 :]).rpartition(".")[0]
