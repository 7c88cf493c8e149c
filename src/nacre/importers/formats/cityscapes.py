"""Cityscapes: ``leftImg8bit/<split>/<city>/`` and ``gtFine/<split>/<city>/``.

The masks hold label ids or train ids. Nineteen of the classes are evaluated; all else, and 255,
does not count. There is no background. Where there are no masks, the polygons of the JSON files are
painted in their order. CVAT writes the same layout with classes of one's own: then
``label_colors.txt`` names them, a line for each value, and black is the background.
"""

import re
from typing import Any

from nacre.errors import NacreError
from nacre.importers.catalog import BACKGROUND, IGNORED, Coding, MaskFile, Picture, size_of
from nacre.importers.files.export import Finder, Match, split_of
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import Source, as_dict, as_list
from nacre.importers.shapes import shape as shapes
from nacre.importers.shapes.shape import DAMAGED, points_of

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

NOT_EVALUATED = (
    "unlabeled",
    "ego vehicle",
    "rectification border",
    "out of roi",
    "static",
    "dynamic",
    "ground",
    "parking",
    "rail track",
    "guard rail",
    "bridge",
    "tunnel",
    "polegroup",
    "caravan",
    "trailer",
    "license plate",
)

LABEL_IDS = ("_gtfine_labelids", "_gtcoarse_labelids")
TRAIN_IDS = ("_gtfine_labeltrainids", "_gtcoarse_labeltrainids")
POLYGONS = ("_gtfine_polygons", "_gtcoarse_polygons")
OWN_CLASSES = "label_colors.txt"

_PICTURE = "_leftimg8bit"
_LINE = re.compile(r"(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s+(\S.*)")

Key = tuple[str | None, str]
"""Split, and city, sequence and frame, of a picture or a mask."""


def read(source: Source, files: list[File]) -> None:
    """Read Cityscapes by its masks, or by its polygons where there are no masks."""
    if files[0].suffix == ".json":
        _read_polygons(source, files)
        return
    own = source.export.named(OWN_CLASSES)
    source.catalog.has_background = bool(own)
    masks = _own_masks(source, files, own[0]) if own else _masks(source, files)
    for file in source.export.pictures:
        stem = file.pure.stem.casefold()
        if stem.endswith(_PICTURE):
            mask = masks.get(_key(file, _PICTURE))
            picture = Picture(file.path, Match(file, True), split_of(file.folder), mask=mask)
            picture.is_labeled, picture.is_listed = mask is not None, False
            source.catalog.add(picture)


def _key(file: File, ending: str) -> Key:
    return split_of(file.folder), file.pure.stem.casefold().removesuffix(ending)


def _numbers(source: Source) -> list[int]:
    """Return the numbers of the evaluated classes."""
    classes = zip(CLASSES.values(), COLORS, strict=True)
    return [source.catalog.class_id(name, color) for name, color in classes]


def _masks(source: Source, files: list[File]) -> dict[Key, MaskFile]:
    """Return the masks; fine ones and label ids go before the others."""
    numbers = _numbers(source)
    # Ids outside the list are not evaluated; there are 34, and the number plate is stored as 255.
    by_label = dict.fromkeys((*range(35), 255), IGNORED) | dict(zip(CLASSES, numbers, strict=True))
    by_train = {255: IGNORED} | dict(enumerate(numbers))
    masks: dict[Key, MaskFile] = {}
    for fine_or_coarse in zip(LABEL_IDS, TRAIN_IDS, strict=True):
        for ending, values in zip(fine_or_coarse, (by_label, by_train), strict=True):
            _add_masks(masks, files, ending, Coding("values", values))
    return masks


def _own_masks(source: Source, files: list[File], named: File) -> dict[Key, MaskFile]:
    """Return the masks of an export whose classes a file names."""
    values: dict[int, int] = {255: IGNORED}
    for line in source.load_text(named).splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        form = _LINE.fullmatch(line.strip())
        if form is None:
            raise NacreError(f"{brief(named.path)}: {brief(line)!r} is not of the form r g b name")
        red, green, blue = (int(form[i]) for i in (1, 2, 3))
        is_black = (red, green, blue) == (0, 0, 0) and BACKGROUND not in values.values()
        color = (red, green, blue) if max(red, green, blue) < 256 else None
        number = BACKGROUND if is_black else source.list_class(form[4], named, color)
        values[len(values) - 1] = number
    masks: dict[Key, MaskFile] = {}
    for ending in LABEL_IDS:
        _add_masks(masks, files, ending, Coding("values", values))
    return masks


def _add_masks(masks: dict[Key, MaskFile], files: list[File], ending: str, coding: Coding) -> None:
    for file in files:
        if file.pure.stem.casefold().endswith(ending):
            masks.setdefault(_key(file, ending), MaskFile(file, coding))


def _read_polygons(source: Source, files: list[File]) -> None:
    source.catalog.has_background = False
    classes = dict(zip(CLASSES.values(), _numbers(source), strict=True))
    finder = Finder(one for one in source.export.pictures if _PICTURE in one.name.casefold())
    for file in source.each(files):
        content = as_dict(source.load_json(file))
        stem = re.sub("_gt[^_]*_polygons$", "_leftImg8bit", file.pure.stem, flags=re.IGNORECASE)
        size = size_of(content.get("imgWidth"), content.get("imgHeight"))
        index = source.add_picture(stem, split=split_of(file.folder), size=size, finder=finder)
        if size is None:
            source.catalog.spoil(index, Unusable(DAMAGED, "its annotation has no size"))
            continue
        # What no polygon covers is not evaluated.
        source.catalog.spool.add(index, shapes.box(IGNORED, (0, 0, *size)))
        for item in map(as_dict, as_list(content.get("objects"))):
            try:
                _draw(source, index, item, classes)
            except Unusable as problem:
                source.catalog.spoil(index, problem)


def _draw(source: Source, index: int, item: dict[str, Any], classes: dict[str, int]) -> None:
    label = item.get("label")
    points = points_of(as_list(item.get("polygon")))
    if item.get("deleted") or len(points) < 3:
        source.catalog.skip(index, "outlines that are deleted or have fewer than three corners")
        return
    if label in NOT_EVALUATED:
        number = IGNORED
    else:
        # "cargroup" is cars that cannot be told apart.
        plain = label.removesuffix("group") if isinstance(label, str) else label
        number = classes[plain] if plain in classes else source.catalog.class_id(label)
    source.catalog.draw(index, shapes.rings(number, [(points, ())]), "polygons")
