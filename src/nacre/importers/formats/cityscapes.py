"""Cityscapes: ``leftImg8bit/<split>/<city>/`` and ``gtFine/<split>/<city>/``.

The masks hold label ids, train ids or instance ids (a label id, or 1000 times one and a number).
Nineteen of the classes are evaluated; all else, and 255, does not count. There is no background.
CVAT writes the same layout with classes of one's own: then ``label_colors.txt`` names them, a line
for each value, and black is the background.
"""

import re

from nacre.errors import NacreError
from nacre.importers.documents import load_lines
from nacre.importers.files import Export, File, split_of
from nacre.importers.masks import Kind, MaskFile
from nacre.importers.problems import brief
from nacre.importers.reading import BACKGROUND, IGNORED, Color, Reading

CLASSES: dict[int, tuple[str, Color]] = {
    7: ("road", (128, 64, 128)),
    8: ("sidewalk", (244, 35, 232)),
    11: ("building", (70, 70, 70)),
    12: ("wall", (102, 102, 156)),
    13: ("fence", (190, 153, 153)),
    17: ("pole", (153, 153, 153)),
    19: ("traffic light", (250, 170, 30)),
    20: ("traffic sign", (220, 220, 0)),
    21: ("vegetation", (107, 142, 35)),
    22: ("terrain", (152, 251, 152)),
    23: ("sky", (70, 130, 180)),
    24: ("person", (220, 20, 60)),
    25: ("rider", (255, 0, 0)),
    26: ("car", (0, 0, 142)),
    27: ("truck", (0, 0, 70)),
    28: ("bus", (0, 60, 100)),
    31: ("train", (0, 80, 100)),
    32: ("motorcycle", (0, 0, 230)),
    33: ("bicycle", (119, 11, 32)),
}
"""Name and color by label id; their order is that of the train ids 0 to 18."""

_MASKS: dict[str, Kind] = {
    "labelids": "values",
    "labeltrainids": "values",
    "instanceids": "instances",
}
"""What the kinds of masks hold, the best first."""

_GROUND_TRUTH = ("_gtfine_", "_gtcoarse_")
_IMAGE = "_leftimg8bit"
_LINE = re.compile(r"(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s+(\S.*)")

Key = tuple[str | None, str]
"""Split, and city, sequence and frame, of an image or a mask."""


def find(export: Export) -> list[File]:
    """Return the masks."""
    endings = tuple(start + word for start in _GROUND_TRUTH for word in _MASKS)
    return [file for file in export.images if file.stem.casefold().endswith(endings)]


def read(reading: Reading, files: list[File]) -> None:
    """Read Cityscapes by its masks."""
    own = reading.export.named("label_colors.txt")
    reading.has_background = bool(own)
    values = _own_values(reading, own[0]) if own else _values(reading)
    masks: dict[Key, MaskFile] = {}
    # Fine masks go before the others, and the best kind before the others.
    for start in _GROUND_TRUTH:
        for word, classes in values.items():
            for file in files:
                if file.stem.casefold().endswith(start + word):
                    masks.setdefault(
                        _key(file, start + word), MaskFile(file, classes, _MASKS[word])
                    )
    for file in reading.export.images:
        if file.stem.casefold().endswith(_IMAGE):
            mask = masks.get(_key(file, _IMAGE))
            reading.add_file(file, split_of(file.folder), mask=mask, is_labeled=mask is not None)


def _key(file: File, ending: str) -> Key:
    return split_of(file.folder), file.stem.casefold().removesuffix(ending)


def _values(reading: Reading) -> dict[str, dict[int, str]]:
    """Return the class by value, for each kind of masks."""
    names = [reading.class_of(name, color) for name, color in CLASSES.values()]
    # Ids outside the list are not evaluated; there are 34, and the number plate is stored as 255.
    labels = dict.fromkeys((*range(35), 255), IGNORED) | dict(zip(CLASSES, names, strict=True))
    train_ids = {255: IGNORED} | dict(enumerate(names))
    return {"labelids": labels, "labeltrainids": train_ids, "instanceids": labels}


def _own_values(reading: Reading, named: File) -> dict[str, dict[int, str]]:
    """Return the class by value for an export whose classes a file names."""
    values: dict[int, str] = {255: IGNORED}
    for line in load_lines(named):
        if line.startswith("#"):
            continue
        form = _LINE.fullmatch(line)
        if form is None:
            raise NacreError(f"{brief(named.path)}: {brief(line)!r} is not of the form r g b name")
        red, green, blue = (int(form[i]) for i in (1, 2, 3))
        is_black = (red, green, blue) == (0, 0, 0) and BACKGROUND not in values.values()
        color = (red, green, blue) if max(red, green, blue) < 256 else None
        name = BACKGROUND if is_black else reading.list_class(form[4], named, color)
        values[len(values) - 1] = name
    return {"labelids": values, "instanceids": values}
