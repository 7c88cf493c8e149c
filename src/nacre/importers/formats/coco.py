"""COCO instances: CVAT "COCO 1.0", Roboflow, Label Studio, Segments, VIA and many scripts.

``images`` have id, file name and size, ``categories`` id and name, ``annotations`` an image, a
category and a segmentation: a list of outlines that are united, or runs down the columns, as
numbers or compressed. There may be one file per split. Where objects overlap, the smaller one
lies on top, unless the export says by ``z_order``.
"""

from collections import defaultdict
from typing import Any

from nacre.errors import NacreError
from nacre.importers.files import File, split_in_name, split_of
from nacre.importers.masks import BACKGROUND, IGNORED
from nacre.importers.problems import DAMAGED, Unusable, brief, counted, some
from nacre.importers.reading import (
    FEW_CORNERS,
    NO_OUTLINE,
    Image,
    Reading,
    as_dict,
    as_key,
    as_layer,
    as_list,
    clean_name,
    color_of,
    size_of,
)
from nacre.importers.rle import check_runs, parse_compressed
from nacre.importers.shapes import Area, ColumnRuns, Outline, points_of

Categories = dict[str, tuple[int, dict[str, Any]]]

NOT_LISTED = "annotations name an image that the export does not list"

_FILE_NAMES = ("file_name", "filename", "name", "path", "coco_url")


def read(reading: Reading, files: list[File]) -> None:
    """Read COCO files."""
    reading.order = "area"
    reader = _Reader(reading)
    for file in files:
        reader.read(file)
    if not reader.has_categories:
        raise NacreError(f"{brief(files[0].path)} lists no categories")
    reader.drop_umbrellas()


class _Reader:
    """What is known while the files of one export are read."""

    def __init__(self, reading: Reading) -> None:
        self.reading = reading
        self.has_categories = False
        self.used: set[int] = set()
        self.umbrellas: set[int] = set()
        self.by_name: dict[tuple[str | None, str], Image] = {}

    def read(self, file: File) -> None:
        """Read one file; its identifiers mean nothing in another one."""
        categories = read_categories(self.reading, file)
        if not categories:
            # Such as COCO's captions, which lie beside its instances.
            self.reading.notes.append(f"{brief(file.path)} lists no categories and is passed over")
            return
        self.has_categories = True
        self._note_umbrellas(categories)
        # Annotations may come before the images that they belong to.
        images: dict[str, Image] = defaultdict(lambda: Image("", is_labeled=False))
        listed: dict[str, Image] = {}
        count = 0
        wanted = [("images", "*"), ("annotations", "*")]
        for place, item in self.reading.stream_json(file, wanted):
            if place[0] == "images":
                self._image(as_dict(item), images, listed, file)
            else:
                count += 1
                key = as_key(as_dict(item).get("image_id"))
                self._annotation(as_dict(item), images[key], categories)
        for key, image in images.items():
            if key not in listed:
                image.name = f"image {brief(key)}"
                image.spoil(Unusable(NOT_LISTED))
                self.reading.images.append(image)
        if not count:
            # Images that nobody annotated are not images in which nothing is.
            for image in listed.values():
                image.is_listed = False

    def drop_umbrellas(self) -> None:
        """Drop categories that only name a group of others, as Roboflow writes one."""
        for number in sorted(self.umbrellas - self.used):
            self.reading.dropped.add(number)
            name = brief(self.reading.names[number])
            self.reading.notes.append(
                f"the category {name!r} names a group of others and no annotation has it: "
                "it is no class"
            )

    def _note_umbrellas(self, categories: Categories) -> None:
        every = [one.get("supercategory") for _, one in categories.values()]
        groups = {group for group in every if isinstance(group, str)}
        for number, one in categories.values():
            name = one.get("name")
            if number > IGNORED and name in groups and one.get("supercategory") != name:
                self.umbrellas.add(number)

    def _image(
        self, item: dict[str, Any], images: dict[str, Image], listed: dict[str, Image], file: File
    ) -> None:
        key = as_key(item.get("id"))
        if key in listed:
            raise NacreError(f"{brief(file.path)} lists two images with the id {brief(key)}")
        name = next((item[one] for one in _FILE_NAMES if isinstance(item.get(one), str)), "")
        split = split_in_name(file.pure.stem) or split_of(file.folder)
        size = size_of(item.get("width"), item.get("height"))
        known = self.by_name.get((split, name)) if name else None
        if known is not None and key not in images:
            if known in listed.values() or known.size != size:
                known.spoil(Unusable("the export lists it twice"))
            images[key] = listed[key] = known
            return
        image = listed[key] = images[key]
        image.name = name or f"image {key}"
        image.split = split or split_of(name.rpartition("/")[0])
        image.size = size or image.size
        image.find(self.reading.export.finder, image.name, file.folder, image.split)
        if not name:
            image.spoil(Unusable("the export gives it no file name"))
        self.by_name[split, name] = image
        self.reading.images.append(image)

    def _annotation(self, item: dict[str, Any], image: Image, categories: Categories) -> None:
        image.is_labeled = True
        category = as_key(item.get("category_id"))
        if category not in categories:
            detail = f"category {brief(category)}"
            image.spoil(Unusable("an annotation has a category that is not listed", detail))
            return
        class_id = categories[category][0]
        self.used.add(class_id)
        try:
            self._draw(image, class_id, item)
        except Unusable as problem:
            where = f"annotation {brief(item.get('id'))}: {problem.detail}"
            image.spoil(Unusable(problem.reason, where))

    def _draw(self, image: Image, class_id: int, item: dict[str, Any]) -> None:
        segmentation = item.get("segmentation")
        area = _area(segmentation)
        if area is None:
            self.reading.skip(image, FEW_CORNERS if segmentation else NO_OUTLINE)
            return
        kind = "polygons"
        if isinstance(area, ColumnRuns):
            image.size = image.size or area.size
            kind = "masks (RLE)"
        if item.get("iscrowd") in (1, True, "1"):
            kind = "crowd regions"
        layer = as_layer(item.get("z_order", as_dict(item.get("attributes")).get("z_order")))
        self.reading.draw(image, class_id, area, kind, layer)


def read_categories(reading: Reading, file: File) -> Categories:
    """Return class number and the category itself by identifier, in the order of the file."""
    found: Categories = {}
    names: dict[str, list[str]] = defaultdict(list)
    for _, item in reading.stream_json(file, [("categories",)]):
        for category in map(as_dict, as_list(item)):
            key = as_key(category.get("id"))
            if key in found:
                raise NacreError(
                    f"{brief(file.path)} lists two categories with the id {brief(key)}"
                )
            found[key] = (_class_id(reading, category, file), category)
            names[clean_name(str(category.get("name")))].append(key)
        break
    twice = [name for name, keys in names.items() if len(keys) > 1]
    if twice:
        reading.notes.append(
            f"{counted(len(twice), 'name')} of categories in {brief(file.path)} stand there twice: "
            f"such categories are one class ({some(twice)})"
        )
    return found


def _class_id(reading: Reading, category: dict[str, Any], file: File) -> int:
    # COCO-Stuff gives all pixels of things the category 183, "other".
    if category.get("id") == 183 and category.get("name") == "other":
        return BACKGROUND
    where = f"category {brief(category.get('id'))}: "
    return reading.list_class(category.get("name"), file, color_of(category.get("color")), where)


def _area(segmentation: Any) -> Area | None:
    """Return what a segmentation covers; None if it has no area.

    Raises:
        Unusable: It is damaged.
    """
    if isinstance(segmentation, dict) and segmentation:
        return _runs(segmentation)
    if not isinstance(segmentation, list) or not segmentation:
        if segmentation in (None, [], {}, ""):
            return None
        raise Unusable(DAMAGED, f"its segmentation is {brief(segmentation)}")
    if all(isinstance(one, (int, float)) for one in segmentation):
        segmentation = [segmentation]
    if all(isinstance(one, dict) for one in segmentation):
        if len(segmentation) > 1:
            raise Unusable(DAMAGED, "its segmentation is a list of several RLEs")
        return _runs(segmentation[0])
    parts = [points_of(part) for part in segmentation]
    outlines = tuple((ring, ()) for ring in parts if len(ring) >= 3)
    return Outline(outlines) if outlines else None


def _runs(segmentation: dict[str, Any]) -> ColumnRuns:
    size, counts = as_list(segmentation.get("size")), segmentation.get("counts")
    sides = size_of(size[1], size[0]) if len(size) == 2 else None
    if sides is None:
        raise Unusable(DAMAGED, f"its RLE has the size {brief(segmentation.get('size'))}")
    try:
        if isinstance(counts, str):
            return ColumnRuns(parse_compressed(counts), sides)
        if isinstance(counts, list):
            return ColumnRuns(check_runs(counts), sides)
    except ValueError as error:
        raise Unusable(DAMAGED, str(error)) from error
    raise Unusable(DAMAGED, f"the counts of its RLE are {brief(counts)}")
