"""Cityscapes: ``leftImg8bit/<split>/<city>/`` and ``gtFine/<split>/<city>/``.

The masks hold label ids, train ids or instance ids (a label id, or 1000 times one and a number).
Nineteen of the classes are evaluated; all else, and 255, does not count. There is no background.
Where there are no masks, the polygons of the JSON files are painted in their order. CVAT writes the
same layout with classes of one's own: then ``label_colors.txt`` names them, a line for each value,
and black is the background.
"""

import re
from typing import Any

from nacre.errors import NacreError
from nacre.importers.files import Export, File, Finder, split_of
from nacre.importers.masks import BACKGROUND, IGNORED, MaskFile
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.reading import Image, Reading, as_dict, as_list, size_of
from nacre.importers.shapes import Box, Shape, points_of, ring_of

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

_LABEL_IDS = "labelids"
_TRAIN_IDS = "labeltrainids"
_INSTANCE_IDS = "instanceids"
_POLYGONS = "polygons"
_GROUND_TRUTH = ("_gtfine_", "_gtcoarse_")
_OWN_CLASSES = "label_colors.txt"
_IMAGE = "_leftimg8bit"
_LINE = re.compile(r"(\d{1,3})\s+(\d{1,3})\s+(\d{1,3})\s+(\S.*)")
_MOST_INSTANCES = 1000

Key = tuple[str | None, str]
"""Split, and city, sequence and frame, of an image or a mask."""


def find(export: Export) -> list[File]:
    """Return the masks, or the polygons where there are none."""
    masks = _ending(export.images, _LABEL_IDS, _TRAIN_IDS, _INSTANCE_IDS)
    return masks or _ending(export.with_suffix(".json"), _POLYGONS)


def _ending(files: list[File], *words: str) -> list[File]:
    endings = tuple(start + word for start in _GROUND_TRUTH for word in words)
    return [file for file in files if file.pure.stem.casefold().endswith(endings)]


def read(reading: Reading, files: list[File]) -> None:
    """Read Cityscapes by its masks, or by its polygons where there are no masks."""
    if files[0].suffix == ".json":
        _read_polygons(reading, files)
        return
    own = reading.export.named(_OWN_CLASSES)
    reading.has_background = bool(own)
    masks = _masks(files, _own_values(reading, own[0]) if own else _values(reading))
    for file in reading.export.images:
        if file.pure.stem.casefold().endswith(_IMAGE):
            mask = masks.get(_key(file, _IMAGE))
            image = Image(file.path, file, split_of(file.folder), mask=mask, is_listed=False)
            image.is_labeled = mask is not None
            reading.images.append(image)


def _key(file: File, ending: str) -> Key:
    return split_of(file.folder), file.pure.stem.casefold().removesuffix(ending)


def _numbers(reading: Reading) -> list[int]:
    """Return the numbers of the evaluated classes."""
    classes = zip(CLASSES.values(), COLORS, strict=True)
    return [reading.class_id(name, color) for name, color in classes]


def _values(reading: Reading) -> dict[str, dict[int, int]]:
    """Return class number by value, for each kind of masks, the best first."""
    numbers = _numbers(reading)
    # Ids outside the list are not evaluated; there are 34, and the number plate is stored as 255.
    labels = dict.fromkeys((*range(35), 255), IGNORED) | dict(zip(CLASSES, numbers, strict=True))
    return {
        _LABEL_IDS: labels,
        _TRAIN_IDS: {255: IGNORED} | dict(enumerate(numbers)),
        _INSTANCE_IDS: _with_instances(labels),
    }


def _with_instances(labels: dict[int, int]) -> dict[int, int]:
    """Return class number by instance id: a label id, or 1000 times one and a number."""
    instances = {
        _MOST_INSTANCES * label + i: number
        for label, number in labels.items()
        if 0 < label < 64
        for i in range(_MOST_INSTANCES)
    }
    return instances | labels


def _own_values(reading: Reading, named: File) -> dict[str, dict[int, int]]:
    """Return class number by value for an export whose classes a file names."""
    values: dict[int, int] = {255: IGNORED}
    for line in reading.load_lines(named):
        if line.startswith("#"):
            continue
        form = _LINE.fullmatch(line)
        if form is None:
            raise NacreError(f"{brief(named.path)}: {brief(line)!r} is not of the form r g b name")
        red, green, blue = (int(form[i]) for i in (1, 2, 3))
        is_black = (red, green, blue) == (0, 0, 0) and BACKGROUND not in values.values()
        color = (red, green, blue) if max(red, green, blue) < 256 else None
        number = BACKGROUND if is_black else reading.list_class(form[4], named, color)
        values[len(values) - 1] = number
    return {_LABEL_IDS: values, _INSTANCE_IDS: _with_instances(values)}


def _masks(files: list[File], values: dict[str, dict[int, int]]) -> dict[Key, MaskFile]:
    """Return the masks; fine ones go before the others, and the best kind before the others."""
    masks: dict[Key, MaskFile] = {}
    for start in _GROUND_TRUTH:
        for word, classes in values.items():
            for file in _ending(files, word):
                if file.pure.stem.casefold().endswith(start + word):
                    masks.setdefault(_key(file, start + word), MaskFile(file, classes))
    return masks


def _read_polygons(reading: Reading, files: list[File]) -> None:
    reading.has_background = False
    classes = dict(zip(CLASSES.values(), _numbers(reading), strict=True))
    finder = Finder(one for one in reading.export.images if _IMAGE in one.name.casefold())
    for file in reading.each(files):
        content = as_dict(reading.load_json(file))
        stem = re.sub("_gt[^_]*_polygons$", "_leftImg8bit", file.pure.stem, flags=re.IGNORECASE)
        size = size_of(content.get("imgWidth"), content.get("imgHeight"))
        image = reading.add_image(stem, split=split_of(file.folder), size=size, finder=finder)
        if size is None:
            image.spoil(Unusable(DAMAGED, "its annotation has no size"))
            continue
        # What no polygon covers is not evaluated.
        image.shapes.append(Shape(IGNORED, Box((0, 0, *size))))
        for item in map(as_dict, as_list(content.get("objects"))):
            try:
                _draw(reading, image, item, classes)
            except Unusable as problem:
                image.spoil(problem)


def _draw(reading: Reading, image: Image, item: dict[str, Any], classes: dict[str, int]) -> None:
    label = item.get("label")
    area = ring_of(points_of(as_list(item.get("polygon"))))
    if item.get("deleted") or area is None:
        reading.skip(image, "outlines that are deleted or have fewer than three corners")
        return
    if label in NOT_EVALUATED:
        number = IGNORED
    else:
        # "cargroup" is cars that cannot be told apart.
        plain = label.removesuffix("group") if isinstance(label, str) else ""
        number = classes[plain] if plain in classes else reading.class_id(label)
    reading.draw(image, number, area, "polygons")
