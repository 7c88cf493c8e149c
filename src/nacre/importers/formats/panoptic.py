"""COCO panoptic: a PNG of segment numbers for each image, and a list of its segments.

The number of a segment is r + 256 g + 65536 b, 0 is unlabeled. The PNGs lie in a folder named like
the JSON file, or beside the images.
"""

from typing import Any

from nacre.errors import NacreError
from nacre.importers.files import File, Finder, split_in_name, split_of
from nacre.importers.formats.coco import Categories, read_categories
from nacre.importers.masks import MaskFile
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import Image, Reading, as_dict, as_key, as_list, size_of


def read(reading: Reading, files: list[File]) -> None:
    """Read panoptic files."""
    for file in files:
        _read(reading, file)


def _read(reading: Reading, file: File) -> None:
    split = split_in_name(file.pure.stem) or split_of(file.folder)
    categories = read_categories(reading, file)
    if not categories:
        raise NacreError(f"{brief(file.path)} lists no categories")
    # The folder that belongs to the JSON file; a PNG in it is not the image.
    folder = file.path.removesuffix(file.pure.suffix) + "/"
    finder = Finder(one for one in reading.export.images if not one.path.startswith(folder))

    def add(listed: dict[str, Any], annotation: dict[str, Any]) -> Image:
        # Without a list of images, the image has the name of its PNG.
        name = listed.get("file_name") or annotation.get("file_name")
        size = size_of(listed.get("width"), listed.get("height"))
        if isinstance(name, str):
            return reading.add_image(name, near=file.folder, split=split, size=size, finder=finder)
        image = reading.add_image("?", near=file.folder, split=split, size=size)
        image.spoil(Unusable("the export gives it no file name"))
        return image

    listed = (as_dict(item) for _, item in reading.stream_json(file, [("images", "*")]))
    images = {as_key(image.get("id")): image for image in listed}
    annotated = set()
    for _, item in reading.stream_json(file, [("annotations", "*")]):
        annotation = as_dict(item)
        key = as_key(annotation.get("image_id"))
        if key in annotated:
            raise NacreError(f"{brief(file.path)} annotates the image {brief(key)} twice")
        annotated.add(key)
        image = add(images.get(key, {}), annotation)
        try:
            image.mask = _mask(reading, annotation, categories, folder, split)
        except Unusable as problem:
            image.spoil(problem)
    for key in images:
        if key not in annotated:
            image = add(images[key], {})
            image.is_labeled = image.is_listed = False


def _mask(
    reading: Reading,
    annotation: dict[str, Any],
    categories: Categories,
    folder: str,
    split: str | None,
) -> MaskFile:
    """Return the PNG of an annotation with the class number by the number of a segment."""
    name = annotation.get("file_name")
    finder = reading.export.finder
    found = finder.find(f"{folder}{name}", folder, split) if isinstance(name, str) else None
    if found is None:
        raise Unusable("its panoptic PNG is missing", brief(name))
    segments: dict[int, int] = {}
    for segment in map(as_dict, as_list(annotation.get("segments_info"))):
        category, number = as_key(segment.get("category_id")), segment.get("id")
        if category not in categories:
            detail = f"category {brief(category)}"
            raise Unusable("a segment has a category that is not listed", detail)
        if type(number) is not int:
            raise Unusable("a segment has no number", brief(number))
        segments[number] = categories[category][0]
        reading.shape_counts["segments"] += 1
    return MaskFile(found, segments, "segments")
