"""Cityscapes: ``leftImg8bit/<split>/<city>/`` and ``gtFine/<split>/<city>/``.

The masks hold label ids, train ids or instance ids (a label id, or 1000 times one and a number).
Nineteen of the classes are evaluated; all else, and 255, does not count. There is no background.
"""

from nacre.errors import NacreError
from nacre.importers.files import Export, File, split_of
from nacre.importers.masks import Kind, MaskFile
from nacre.importers.reading import IGNORED, Color, Image, Reading

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

Key = tuple[str | None, str]
"""Split, and city, sequence and frame, of an image or a mask."""


def find(export: Export) -> list[File]:
    """Return the masks."""
    endings = tuple(start + word for start in _GROUND_TRUTH for word in _MASKS)
    return [file for file in export.images if file.stem.casefold().endswith(endings)]


def read(reading: Reading, files: list[File]) -> None:
    """Read Cityscapes by its masks."""
    if reading.export.named("label_colors.txt"):
        raise NacreError(
            "the export has Cityscapes' folders, but classes of its own (label_colors.txt); export "
            "it from CVAT as 'Segmentation mask 1.1'"
        )
    reading.has_background = False
    values = _classes_by_value(reading)
    masks: dict[Key, MaskFile] = {}
    # Fine masks go before the others, and the best kind before the others.
    for start in _GROUND_TRUTH:
        for word, kind in _MASKS.items():
            for file in files:
                if file.stem.casefold().endswith(start + word):
                    key = _key(file, start + word)
                    masks.setdefault(key, MaskFile(file, values[word], kind))
    for file in reading.export.images:
        if file.stem.casefold().endswith(_IMAGE):
            mask = masks.pop(_key(file, _IMAGE), None)
            reading.add_file(file, split_of(file.folder), mask=mask, is_labeled=mask is not None)
    # What is left are masks whose images are missing.
    reading.images += [Image(mask.file.path, mask=mask) for mask in masks.values()]


def _key(file: File, ending: str) -> Key:
    return split_of(file.folder), file.stem.casefold().removesuffix(ending)


def _classes_by_value(reading: Reading) -> dict[str, dict[int, str]]:
    """Return the class by value, for each kind of masks."""
    names = [reading.class_of(name, color) for name, color in CLASSES.values()]
    # Ids outside the list are not evaluated; there are 34, and the number plate is stored as 255.
    labels = dict.fromkeys((*range(35), 255), IGNORED) | dict(zip(CLASSES, names, strict=True))
    train_ids = {255: IGNORED} | dict(enumerate(names))
    return {"labelids": labels, "labeltrainids": train_ids, "instanceids": labels}
