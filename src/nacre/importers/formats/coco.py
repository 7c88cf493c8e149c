"""COCO instances: CVAT "COCO 1.0", Roboflow, Label Studio, Segments, VIA and many scripts.

``images`` have id, file name and size, ``categories`` id and name, ``annotations`` a picture, a
category and a segmentation: a list of outlines that are united, or runs down the columns, as
numbers or compressed. There may be one file per split. Where objects overlap, the smaller one
lies on top, unless the export says by ``z_order``.
"""

from collections import defaultdict
from typing import Any

from nacre.errors import NacreError
from nacre.importers.catalog import BACKGROUND, Picture, clean_name, color_of, size_of
from nacre.importers.files.export import split_in_name, split_of
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief, counted, some
from nacre.importers.reading import Source, as_dict, as_key, as_layer, as_list
from nacre.importers.shapes import shape as shapes
from nacre.importers.shapes.rle import check_runs, parse_compressed
from nacre.importers.shapes.shape import DAMAGED, Shape, points_of

NOT_LISTED = "annotations name a picture that the export does not list"

_FILE_NAMES = ("file_name", "filename", "name", "path", "coco_url")


def read(source: Source, files: list[File]) -> None:
    """Read COCO files."""
    source.catalog.order = "area"
    reader = _Reader(source)
    for file in files:
        reader.read(file)
    if not reader.has_categories:
        raise NacreError(f"{brief(files[0].path)} lists no categories")
    reader.drop_umbrellas()


class _Reader:
    def __init__(self, source: Source) -> None:
        self.source = source
        self.catalog = source.catalog
        self.has_categories = False
        self.used: set[int] = set()
        self.umbrellas: set[int] = set()
        self.kept_places: set[int] = set()
        self.by_name: dict[tuple[str | None, str], int] = {}

    def read(self, file: File) -> None:
        """Read one file; its identifiers mean nothing in another one."""
        split = split_in_name(file.pure.stem) or split_of(file.folder)
        categories = read_categories(self.source, file)
        if not categories:
            # Such as COCO's captions, which lie beside its instances.
            self.catalog.notes.append(f"{brief(file.path)} lists no categories and is passed over")
            return
        self.has_categories = True
        self._note_umbrellas(categories)
        classes = {key: number for key, (number, _) in categories.items()}
        pictures: dict[str, int] = {}
        new: list[int] = []
        count = 0
        for place, item in self.source.stream_json(file, [("images", "*"), ("annotations", "*")]):
            if place[0] == "images":
                self._picture(as_dict(item), pictures, new, file, split)
            else:
                count += 1
                self._annotation(as_dict(item), pictures, classes)
        self._spoil_unlisted()
        if not count:
            # Pictures that nobody annotated are not pictures in which nothing is.
            for index in new:
                self.catalog.pictures[index].is_listed = False

    def _spoil_unlisted(self) -> None:
        """Leave out pictures that only annotations name."""
        for index in self.kept_places:
            self.catalog.spoil(index, Unusable(NOT_LISTED))
        self.kept_places.clear()

    def drop_umbrellas(self) -> None:
        """Drop categories that only name a group of others, as Roboflow writes one."""
        for number in sorted(self.umbrellas - self.used):
            self.catalog.dropped.add(number)
            name = brief(self.catalog.names[number])
            self.catalog.notes.append(
                f"the category {name!r} names a group of others and no annotation has it: "
                "it is no class"
            )

    def _note_umbrellas(self, categories: dict[str, tuple[int, dict[str, Any]]]) -> None:
        groups = {
            one.get("supercategory")
            for _, one in categories.values()
            if isinstance(one.get("supercategory"), str)
        }
        for number, one in categories.values():
            if (
                number > 1
                and one.get("name") in groups
                and one.get("supercategory") != one.get("name")
            ):
                self.umbrellas.add(number)

    def _picture(
        self,
        item: dict[str, Any],
        pictures: dict[str, int],
        new: list[int],
        file: File,
        split: str | None,
    ) -> None:
        key = as_key(item.get("id"))
        name = next((item[one] for one in _FILE_NAMES if isinstance(item.get(one), str)), "")
        size = size_of(item.get("width"), item.get("height"))
        if key in pictures and pictures[key] not in self.kept_places:
            raise NacreError(f"{brief(file.path)} lists two pictures with the id {brief(key)}")
        known = self.by_name.get((split, name)) if name else None
        if known is not None and key not in pictures:
            if known in new or self.catalog.pictures[known].size != size:
                self.catalog.spoil(known, Unusable("the export lists it twice"))
            pictures[key] = known
            return
        index = self._add(name, key, file, split, size)
        if key in pictures:
            # Its annotations came before it: it takes the place that was kept for them.
            index = self._take_place(pictures[key])
        pictures[key] = self.by_name[split, name] = index
        new.append(index)

    def _add(
        self, name: str, key: str, file: File, split: str | None, size: tuple[int, int] | None
    ) -> int:
        index = self.source.add_picture(
            name or f"picture {key}",
            near=file.folder,
            split=split or split_of(name.rpartition("/")[0]),
            size=size,
            is_labeled=False,
        )
        if not name:
            self.catalog.spoil(index, Unusable("the export gives it no file name"))
        return index

    def _take_place(self, place: int) -> int:
        kept, picture = self.catalog.pictures[place], self.catalog.pictures.pop()
        picture.num_shapes, picture.num_skipped = kept.num_shapes, kept.num_skipped
        picture.is_labeled = kept.is_labeled
        picture.size = picture.size or kept.size
        picture.problem = kept.problem or picture.problem
        self.catalog.pictures[place] = picture
        self.kept_places.remove(place)
        return place

    def _annotation(
        self, item: dict[str, Any], pictures: dict[str, int], classes: dict[str, int]
    ) -> None:
        index = self._index_of(as_key(item.get("image_id")), pictures)
        picture = self.catalog.pictures[index]
        picture.is_labeled = True
        category = as_key(item.get("category_id"))
        if category not in classes:
            problem = Unusable(
                "an annotation has a category that is not listed", f"category {brief(category)}"
            )
            self.catalog.spoil(index, problem)
            return
        self.used.add(classes[category])
        try:
            self._draw(index, classes[category], item)
        except Unusable as problem:
            where = f"annotation {brief(item.get('id'))}: {problem.detail}"
            self.catalog.spoil(index, Unusable(problem.reason, where))

    def _index_of(self, key: str, pictures: dict[str, int]) -> int:
        if key not in pictures:
            pictures[key] = self.catalog.add(Picture(f"picture {brief(key)}"))
            self.kept_places.add(pictures[key])
        return pictures[key]

    def _draw(self, index: int, class_id: int, item: dict[str, Any]) -> None:
        layer = as_layer(item.get("z_order", as_dict(item.get("attributes")).get("z_order")))
        is_crowd = item.get("iscrowd") in (1, True, "1")
        segmentation = item.get("segmentation")
        picture = self.catalog.pictures[index]
        for shape, kind in segmentation_shapes(segmentation, class_id):
            if shape.kind == "columns" and picture.size is None:
                picture.size = (int(shape.numbers[0]), int(shape.numbers[1]))
            drawn = shape._replace(layer=layer)
            self.catalog.draw(index, drawn, "crowd regions" if is_crowd else kind)
            return
        self.catalog.skip(
            index,
            "boxes without an outline"
            if not segmentation
            else "outlines with fewer than three corners",
        )


def read_categories(source: Source, file: File) -> dict[str, tuple[int, dict[str, Any]]]:
    """Return class number and the category itself by identifier, in the order of the file."""
    found: dict[str, tuple[int, dict[str, Any]]] = {}
    names: dict[str, list[str]] = defaultdict(list)
    for place, item in source.stream_json(file, [("categories",)]):
        for one in as_list(item):
            category = as_dict(one)
            key = as_key(category.get("id"))
            if key in found:
                raise NacreError(
                    f"{brief(file.path)} lists two categories with the id {brief(key)}"
                )
            found[key] = (_class_id(source, category, file), category)
            names[clean_name(str(category.get("name")))].append(key)
        if place:
            break
    twice = [name for name, keys in names.items() if len(keys) > 1]
    if twice:
        source.catalog.notes.append(
            f"{counted(len(twice), 'name')} of categories in {brief(file.path)} stand there twice: "
            f"such categories are one class ({some(twice)})"
        )
    return found


def _class_id(source: Source, category: dict[str, Any], file: File) -> int:
    # COCO-Stuff gives all pixels of things the category 183, "other".
    if category.get("id") == 183 and category.get("name") == "other":
        return BACKGROUND
    where = f"category {brief(category.get('id'))}: "
    return source.list_class(category.get("name"), file, color_of(category.get("color")), where)


def segmentation_shapes(segmentation: Any, class_id: int) -> list[tuple[Shape, str]]:
    """Return the shape of a segmentation and what people call it; nothing if it has no area.

    Raises:
        Unusable: It is damaged.
    """
    if isinstance(segmentation, dict) and segmentation:
        return [(_runs_shape(segmentation, class_id), "masks (RLE)")]
    if not isinstance(segmentation, list) or not segmentation:
        if segmentation in (None, [], {}, ""):
            return []
        raise Unusable(DAMAGED, f"its segmentation is {brief(segmentation)}")
    if all(isinstance(one, (int, float)) for one in segmentation):
        segmentation = [segmentation]
    if all(isinstance(one, dict) for one in segmentation):
        if len(segmentation) > 1:
            raise Unusable(DAMAGED, "its segmentation is a list of several RLEs")
        return [(_runs_shape(segmentation[0], class_id), "masks (RLE)")]
    parts = [points_of(part) for part in segmentation]
    outlines = [(ring, ()) for ring in parts if len(ring) >= 3]
    return [(shapes.rings(class_id, outlines), "polygons")] if outlines else []


def _runs_shape(segmentation: dict[str, Any], class_id: int) -> Shape:
    size, counts = as_list(segmentation.get("size")), segmentation.get("counts")
    sides = size_of(size[1], size[0]) if len(size) == 2 else None
    if sides is None:
        raise Unusable(DAMAGED, f"its RLE has the size {brief(segmentation.get('size'))}")
    try:
        if isinstance(counts, str):
            runs = parse_compressed(counts)
        elif isinstance(counts, list):
            runs = check_runs(counts)
        else:
            raise ValueError(f"the counts of its RLE are {brief(counts)}")
    except ValueError as error:
        raise Unusable(DAMAGED, str(error)) from error
    return shapes.columns(class_id, runs, *sides)
