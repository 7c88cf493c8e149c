"""Cityscapes: ``leftImg8bit/<split>/<city>/`` and ``gtFine/<split>/<city>/``.

The masks have label ids, train ids or instance ids (a label id, or 1000 times one plus a number).
Nineteen of the classes are evaluated; the others and 255 do not count. There is no background.
"""

from nacre.errors import NacreError
from nacre.importers.files import Export, File, split_of
from nacre.importers.masks import Coding, MaskFile
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
"""Name and color by label id, in the order of the train ids 0 to 18."""

_CODINGS: dict[str, Coding] = {
    "labelids": "values",
    "labeltrainids": "values",
    "instanceids": "instances",
}
"""Coding by the type of a mask, the best type first."""

_GROUND_TRUTH = ("_gtfine_", "_gtcoarse_")
_IMAGE = "_leftimg8bit"

Key = tuple[str | None, str]
"""Split; and city, sequence and frame of an image or a mask."""


def find(export: Export) -> list[File]:
    """Return the masks."""
    endings = tuple(start + word for start in _GROUND_TRUTH for word in _CODINGS)
    return [file for file in export.images if file.stem.casefold().endswith(endings)]


def read(reading: Reading, files: list[File]) -> None:
    """Read Cityscapes from its masks."""
    if reading.export.named("label_colors.txt"):
        raise NacreError(
            "the export has Cityscapes' folders but its own classes (label_colors.txt); export it "
            "from CVAT as 'Segmentation mask 1.1'"
        )
    reading.has_background = False
    names = [reading.class_of(name, color) for name, color in CLASSES.values()]
    # Other ids are not evaluated. There are 34, and the license plate is stored as 255.
    labels = dict.fromkeys((*range(35), 255), IGNORED) | dict(zip(CLASSES, names, strict=True))
    train_ids = {255: IGNORED} | dict(enumerate(names))
    masks: dict[Key, MaskFile] = {}
    # Fine masks take precedence over coarse ones, and better types over others.
    for start in _GROUND_TRUTH:
        for word, coding in _CODINGS.items():
            classes = train_ids if word == "labeltrainids" else labels
            for file in files:
                if file.stem.casefold().endswith(start + word):
                    masks.setdefault(_key(file, start + word), MaskFile(file, classes, coding))
    for file in reading.export.images:
        if file.stem.casefold().endswith(_IMAGE):
            mask = masks.pop(_key(file, _IMAGE), None)
            reading.add_file(file, split_of(file.folder), mask=mask, is_labeled=mask is not None)
    # The images of the remaining masks are missing.
    reading.images += [Image(mask.file.path, mask=mask) for mask in masks.values()]


def _key(file: File, ending: str) -> Key:
    return split_of(file.folder), file.stem.casefold().removesuffix(ending)
