"""COCO: instances (CVAT "COCO 1.0", Roboflow, Label Studio, VIA and many scripts) and panoptic.

``images`` have an id, a file name and a size, ``categories`` an id and a name, ``annotations`` an
image, a category and a segmentation: a list of outlines that are united, or runs down the columns,
as numbers or compressed. There may be one file per split. Where objects overlap, the smaller one is
on top.

Panoptic annotations have a PNG of segment ids for each image, and a list of its segments. The id of
a segment is r + 256 g + 65536 b; 0 is unlabeled. The PNGs are in a folder with the name of the JSON
file, or beside the images.
"""

from functools import partial
from typing import Any

from nacre.errors import NacreError
from nacre.importers.files import File, Finder, split_in_name, split_of
from nacre.importers.masks import MaskFile
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import (
    BACKGROUND,
    IGNORED,
    NO_OUTLINE,
    Image,
    Reading,
    as_dict,
    as_key,
    as_list,
    color_of,
    size_of,
)
from nacre.importers.shapes import (
    Area,
    Outline,
    check_runs,
    decode_columns,
    parse_compressed,
    points_of,
)

Item = dict[str, Any]
Categories = dict[str, tuple[str, Item]]
"""Class, and the category itself, by id."""


def read(reading: Reading, files: list[File]) -> None:
    """Read COCO files."""
    reading.order = "area"
    # Several files may list an image: each has some of its shapes.
    known: dict[tuple[str | None, str], tuple[Image, File]] = {}
    groups: set[str] = set()
    used: set[str] = set()
    for file in files:
        categories, items = _read_lists(reading, file)
        groups |= _groups(categories)
        images = {key: _add(reading, file, item, key, known) for key, item in items.items()}
        used |= _read_annotations(reading, file, categories, images)
    for name in sorted(groups - used):
        del reading.classes[name]
        reading.notes.append(
            f"no annotation has the category {brief(name)!r}, which is a group of others: it is "
            "not a class"
        )


def _read_lists(reading: Reading, file: File) -> tuple[Categories, dict[str, Item]]:
    """Return the categories and the images of a file by id."""
    categories: Categories = {}
    images: dict[str, Item] = {}
    lists = (("categories",), ("images", "*"), ("annotations", "*"))
    for place, value in reading.stream_json(file, lists):
        if place[0] == "images":
            item = as_dict(value)
            key = as_key(item.get("id"))
            if key in images:
                raise NacreError(f"{brief(file.path)} lists two images with the id {brief(key)}")
            images[key] = item
        elif place[0] == "categories":
            for item in map(as_dict, as_list(value)):
                _add_category(reading, file, item, categories)
        elif categories and images:
            break
    if not categories:
        raise NacreError(f"{brief(file.path)} lists no categories")
    return categories, images


def _add_category(reading: Reading, file: File, item: Item, categories: Categories) -> None:
    key = as_key(item.get("id"))
    if key in categories:
        raise NacreError(f"{brief(file.path)} lists two categories with the id {brief(key)}")
    # COCO-Stuff labels the pixels of all things with the category 183, "other".
    is_things = item.get("id") == 183 and item.get("name") == "other"
    name = BACKGROUND if is_things else item.get("name")
    place = f"category {brief(item.get('id'))}: "
    categories[key] = reading.list_class(name, file, color_of(item.get("color")), place), item


def _groups(categories: Categories) -> set[str]:
    """Return the categories that may only be a group of others, as Roboflow writes one."""
    groups = {as_key(item.get("supercategory")) for _, item in categories.values()}
    return {
        name
        for name, item in categories.values()
        if item.get("name") in groups and item.get("supercategory") != item.get("name")
    } - {BACKGROUND, IGNORED}


def _add(
    reading: Reading,
    file: File,
    item: Item,
    key: str,
    known: dict[tuple[str | None, str], tuple[Image, File]],
) -> Image:
    """Add an image of a list, unless it is known from another file."""
    name = item["file_name"] if isinstance(item.get("file_name"), str) else ""
    split = split_in_name(file.stem) or split_of(file.folder)
    size = size_of(item.get("width"), item.get("height"))
    if name and (split, name) in known:
        image, other = known[split, name]
        if other is file or image.size != size:
            image.spoil("the export lists it twice")
        return image
    image = reading.add_image(
        name or f"image {key}",
        near=file.folder,
        split=split or split_of(name.rpartition("/")[0]),
        size=size,
        is_labeled=False,
    )
    if not name:
        image.spoil("the export gives it no file name")
    known[split, name] = image, file
    return image


def _read_annotations(
    reading: Reading, file: File, categories: Categories, images: dict[str, Image]
) -> set[str]:
    """Add the shapes of a file to its images by id, and return the classes that they use."""
    used: set[str] = set()
    for _, value in reading.stream_json(file, [("annotations", "*")]):
        item = as_dict(value)
        key = as_key(item.get("image_id"))
        if key not in images:
            images[key] = Image(f"image {brief(key)}")
            images[key].spoil("annotations name an image that the export does not list")
            reading.images.append(images[key])
        with images[key].noting():
            used.add(_draw(reading, images[key], item, categories))
    if not any(image.is_labeled for image in images.values()):
        # Nobody annotated these images; this does not mean that they are empty.
        for image in images.values():
            image.is_listed = False
    return used


def _draw(reading: Reading, image: Image, item: Item, categories: Categories) -> str:
    """Add the shape of an annotation, and return its class."""
    image.is_labeled = True
    key, segmentation = as_key(item.get("category_id")), item.get("segmentation")
    if key not in categories:
        raise Unusable("an annotation has an unlisted category", f"category {brief(key)}")
    name = categories[key][0]
    try:
        area = _area(segmentation, image)
    except ValueError as error:
        raise ValueError(f"annotation {brief(item.get('id'))}: {error}") from error
    if segmentation:
        reading.draw(image, name, area)
    else:
        reading.skip(image, NO_OUTLINE)
    return name


def _area(segmentation: Any, image: Image) -> Area | None:
    """Return the area of a segmentation, or None."""
    if segmentation in (None, [], {}, ""):
        return None
    if isinstance(segmentation, dict):
        return _runs(segmentation, image)
    if not isinstance(segmentation, list):
        raise ValueError(f"its segmentation is {brief(segmentation)}")
    if all(isinstance(value, (int, float)) for value in segmentation):
        segmentation = [segmentation]
    parts = [points_of(part) for part in segmentation]
    outlines = tuple((ring, ()) for ring in parts if len(ring) >= 3)
    return Outline(outlines) if outlines else None


def _runs(segmentation: Item, image: Image) -> Area:
    size, counts = as_list(segmentation.get("size")), segmentation.get("counts")
    sides = size_of(size[1], size[0]) if len(size) == 2 else None
    if sides is None:
        raise ValueError(f"its RLE has the size {brief(segmentation.get('size'))}")
    image.size = image.size or sides
    if isinstance(counts, (str, list)):
        runs = parse_compressed(counts) if isinstance(counts, str) else check_runs(counts)
        return partial(decode_columns, runs, sides)
    raise ValueError(f"the counts of its RLE are {brief(counts)}")


def read_panoptic(reading: Reading, files: list[File]) -> None:
    """Read panoptic files."""
    for file in files:
        categories, items = _read_lists(reading, file)
        _read_segments(reading, file, categories, items)


def _read_segments(
    reading: Reading, file: File, categories: Categories, items: dict[str, Item]
) -> None:
    split = split_in_name(file.stem) or split_of(file.folder)
    # The folder of this JSON file; its PNGs are not images.
    folder = file.path.removesuffix(file.suffix) + "/"
    finder = Finder(png for png in reading.export.images if not png.path.startswith(folder))

    def add(item: Item, annotation: Item) -> Image:
        # Without a list of images, an image has the name of its PNG.
        name = item.get("file_name") or annotation.get("file_name")
        return reading.add_image(
            name if isinstance(name, str) else "",
            near=file.folder,
            split=split,
            size=size_of(item.get("width"), item.get("height")),
            finder=finder,
        )

    annotated = set()
    for _, value in reading.stream_json(file, [("annotations", "*")]):
        annotation = as_dict(value)
        key = as_key(annotation.get("image_id"))
        if key in annotated:
            raise NacreError(f"{brief(file.path)} annotates the image {brief(key)} twice")
        annotated.add(key)
        image = add(items.get(key, {}), annotation)
        with image.noting():
            image.mask = _panoptic_mask(reading, annotation, categories, folder, split)
    for key, item in items.items():
        if key not in annotated:
            image = add(item, {})
            image.is_labeled = image.is_listed = False


def _panoptic_mask(
    reading: Reading, annotation: Item, categories: Categories, folder: str, split: str | None
) -> MaskFile:
    """Return the PNG of an annotation, with the class of each segment."""
    name = annotation.get("file_name")
    finder = reading.export.finder
    file = finder.find(f"{folder}{name}", folder, split) if isinstance(name, str) else None
    if file is None:
        raise Unusable("its panoptic PNG is missing", brief(name))
    segments = {0: BACKGROUND}
    for segment in map(as_dict, as_list(annotation.get("segments_info"))):
        key, number = as_key(segment.get("category_id")), segment.get("id")
        if key not in categories:
            raise Unusable("a segment has an unlisted category", f"category {brief(key)}")
        if type(number) is not int:
            raise Unusable("a segment has no number", brief(number))
        segments[number] = categories[key][0]
    return MaskFile(file, segments, "colors")
