"""Cityscapes: ``leftImg8bit/<split>/<city>/`` and ``gtFine/<split>/<city>/``.

The masks hold label ids or train ids. Nineteen of the classes are evaluated; all else, and 255,
does not count. There is no background.
"""

from nacre.data.importers.catalog import IGNORED, Coding, MaskFile, Picture
from nacre.data.importers.files.export import Match, split_of
from nacre.data.importers.files.tree import File
from nacre.data.importers.reading import Source

CLASSES = {
    7: "road",
    8: "sidewalk",
    11: "building",
    12: "wall",
    13: "fence",
    17: "pole",
    19: "traffic light",
    20: "traffic sign",
    21: "vegetation",
    22: "terrain",
    23: "sky",
    24: "person",
    25: "rider",
    26: "car",
    27: "truck",
    28: "bus",
    31: "train",
    32: "motorcycle",
    33: "bicycle",
}
"""Name by label id; their order is that of the train ids 0 to 18."""

COLORS = (
    (128, 64, 128),
    (244, 35, 232),
    (70, 70, 70),
    (102, 102, 156),
    (190, 153, 153),
    (153, 153, 153),
    (250, 170, 30),
    (220, 220, 0),
    (107, 142, 35),
    (152, 251, 152),
    (70, 130, 180),
    (220, 20, 60),
    (255, 0, 0),
    (0, 0, 142),
    (0, 0, 70),
    (0, 60, 100),
    (0, 80, 100),
    (0, 0, 230),
    (119, 11, 32),
)

LABEL_IDS = ("_gtfine_labelids", "_gtcoarse_labelids")
TRAIN_IDS = ("_gtfine_labeltrainids", "_gtcoarse_labeltrainids")

_PICTURE = "_leftimg8bit"


def read(source: Source, files: list[File]) -> None:
    """Read Cityscapes by its masks; fine ones and label ids go before the others."""
    source.catalog.has_background = False
    masks = _masks(source, files)
    for file in source.export.pictures:
        stem = file.pure.stem.casefold()
        if stem.endswith(_PICTURE):
            mask = masks.get(stem.removesuffix(_PICTURE))
            picture = Picture(file.path, Match(file, True), split_of(file.folder), mask=mask)
            picture.is_labeled, picture.is_listed = mask is not None, False
            source.catalog.add(picture)


def _masks(source: Source, files: list[File]) -> dict[str, MaskFile]:
    """Return the masks by city, sequence and frame."""
    classes = zip(CLASSES.values(), COLORS, strict=True)
    numbers = [source.catalog.class_id(name, color) for name, color in classes]
    # Ids outside the list are not evaluated; there are 34, and the number plate is stored as 255.
    by_label = dict.fromkeys((*range(35), 255), IGNORED) | dict(zip(CLASSES, numbers, strict=True))
    by_train = {255: IGNORED} | dict(enumerate(numbers))
    masks: dict[str, MaskFile] = {}
    for fine_or_coarse in zip(LABEL_IDS, TRAIN_IDS, strict=True):
        for ending, values in zip(fine_or_coarse, (by_label, by_train), strict=True):
            coding = Coding("values", values)
            for file in files:
                stem = file.pure.stem.casefold()
                if stem.endswith(ending):
                    masks.setdefault(stem.removesuffix(ending), MaskFile(file, coding))
    return masks
