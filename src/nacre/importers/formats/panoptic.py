"""COCO panoptic, as COCO and Segments write it: a PNG of segment numbers and a list of segments.

The number of a segment is r + 256 g + 65536 b, 0 is unlabelled. The PNGs lie in a folder named like
the JSON file, or beside the pictures.
"""

from typing import Any

from nacre.errors import NacreError
from nacre.importers.catalog import Coding, MaskFile, size_of
from nacre.importers.files.export import Finder, split_in_name, split_of
from nacre.importers.files.tree import File
from nacre.importers.formats.coco import read_categories
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import Source, as_dict, as_key, as_list


def read(source: Source, files: list[File]) -> None:
    """Read panoptic files."""
    for file in files:
        _read(source, file)


def _read(source: Source, file: File) -> None:
    split = split_in_name(file.pure.stem) or split_of(file.folder)
    classes = {key: number for key, (number, _) in read_categories(source, file).items()}
    if not classes:
        raise NacreError(f"{brief(file.path)} lists no categories")
    listed = (as_dict(item) for _, item in source.stream_json(file, [("images", "*")]))
    images = {as_key(image.get("id")): image for image in listed}
    # A PNG of the same name is not the picture.
    finder = Finder(one for one in source.export.pictures if not one.path.startswith(_folder(file)))
    annotated = set()
    for _, item in source.stream_json(file, [("annotations", "*")]):
        annotation = as_dict(item)
        key = as_key(annotation.get("image_id"))
        if key in annotated:
            raise NacreError(f"{brief(file.path)} annotates the picture {brief(key)} twice")
        annotated.add(key)
        index = _add(source, finder, images.get(key, {}), file, split, annotation)
        try:
            source.catalog.pictures[index].mask = _mask(source, annotation, classes, file, split)
        except Unusable as problem:
            source.catalog.spoil(index, problem)
    for key, image in images.items():
        if key not in annotated:
            index = _add(source, finder, image, file, split, {})
            source.catalog.pictures[index].is_labeled = False
            source.catalog.pictures[index].is_listed = False


def _add(
    source: Source,
    finder: Finder,
    image: dict[str, Any],
    file: File,
    split: str | None,
    annotation: dict[str, Any],
) -> int:
    # Without a list of images, the picture has the name of its PNG.
    name = image.get("file_name") or annotation.get("file_name")
    size = size_of(image.get("width"), image.get("height"))
    if not isinstance(name, str):
        index = source.add_picture("?", near=file.folder, split=split, size=size)
        source.catalog.spoil(index, Unusable("the export gives it no file name"))
        return index
    return source.add_picture(name, near=file.folder, split=split, size=size, finder=finder)


def _mask(
    source: Source,
    annotation: dict[str, Any],
    classes: dict[str, int],
    file: File,
    split: str | None,
) -> MaskFile:
    name, folder = annotation.get("file_name"), _folder(file)
    finder = source.export.finder
    found = finder.find(f"{folder}{name}", folder, split) if isinstance(name, str) else None
    if found is None:
        raise Unusable("its panoptic PNG is missing", brief(name))
    return MaskFile(found.file, Coding("ids", _segments(source, annotation, classes)))


def _segments(
    source: Source, annotation: dict[str, Any], classes: dict[str, int]
) -> dict[int, int]:
    """Return class number by the number of a segment."""
    segments: dict[int, int] = {}
    for one in as_list(annotation.get("segments_info")):
        segment = as_dict(one)
        category, number = as_key(segment.get("category_id")), segment.get("id")
        if category not in classes:
            raise Unusable(
                "a segment has a category that is not listed", f"category {brief(category)}"
            )
        if type(number) is not int:
            raise Unusable("a segment has no number", brief(number))
        segments[number] = classes[category]
        source.catalog.shape_counts["segments"] += 1
    return segments


def _folder(file: File) -> str:
    """Return the folder that belongs to a JSON file, with a slash at its end."""
    return file.path.removesuffix(file.pure.suffix) + "/"
