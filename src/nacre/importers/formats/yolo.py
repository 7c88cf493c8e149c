"""YOLO polygons in the layout of Ultralytics.

``data.yaml`` names the classes. Images are below a folder ``images``; the labels of each image are
in a text file in the same place below ``labels``. Without ``data.yaml``, the lines of
``classes.txt`` or ``obj.names`` are the classes. A line of labels has a class and the corners of an
outline as fractions of width and height; a line of five numbers is a box. Where outlines overlap,
the smaller one is on top.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from operator import itemgetter
from typing import Any

from nacre.errors import NacreError
from nacre.importers.documents import load_lines, load_text, load_yaml
from nacre.importers.files import (
    SPLITS,
    Export,
    File,
    Finder,
    clean_parts,
    outermost,
    split_of,
)
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import NO_OUTLINE, Image, Reading, as_dict
from nacre.importers.shapes import points_of, ring_of

_NAME_FILES = ("classes.txt", "obj.names", "labels.txt")
_NOT_LABELS = ("classes.txt", "labels.txt", "notes.txt", "readme.txt", "requirements.txt")
_SPLIT_KEYS = ("train", "val", "valid", "validation", "test")
_TOLERANCE = 0.01


def find(export: Export) -> list[File]:
    """Return the files that name the classes, if there are labels in text files."""
    texts = export.with_suffix(".txt")
    has_labels = any(file.is_below("labels") for file in texts)
    keys = ("names",) if has_labels else (*_SPLIT_KEYS, "nc", "path")
    described = [
        file for file in export.with_suffix(".yaml", ".yml") if _describes(export, file, keys)
    ]
    if described and texts:
        return outermost(described)
    return export.named(*_NAME_FILES)[:1] if has_labels else []


def _describes(export: Export, file: File, keys: Sequence[str]) -> bool:
    """Return True if a YAML file describes such a data set: it has names and one of the keys."""
    try:
        description = as_dict(load_yaml(file))
    except NacreError as error:
        export.damage[file] = error
        return False
    return "names" in description and any(key in description for key in keys)


def read(reading: Reading, files: list[File]) -> None:
    """Read data sets, each with its own description."""
    reading.order = "area"
    for file in files:
        # The description of a single data set may be anywhere.
        _read_set(reading, file, file.folder if len(files) > 1 else "")


def _read_set(reading: Reading, table: File, root: str) -> None:
    is_yaml = table.suffix in (".yaml", ".yml")
    description = as_dict(load_yaml(table)) if is_yaml else {"names": load_lines(table)}
    if "kpt_shape" in description:
        raise NacreError(f"{brief(table.path)} describes key points (kpt_shape), not areas")
    classes = _classes(reading, table, description.get("names"))
    texts = [text for text in reading.export.with_suffix(".txt") if text.is_inside(root)]
    labels = [text for text in texts if _is_label(text)]
    files = [
        image
        for image in reading.export.images
        if not image.is_below("masks", "labels") and (image.is_extra or image.is_inside(root))
    ]
    split = _splits(reading, description, files)
    by_key = {file.path.rpartition(".")[0].casefold(): file for file in files}
    images, finder = [], Finder(files)
    for label in reading.each(labels):
        key = _key(label)
        if file := by_key.get(key.casefold()):
            image = reading.add_file(file, is_labeled=True, is_listed=True)
        else:
            image = reading.add_image(key, near=label.folder, finder=finder)
        image.is_relative = True
        image.split = (split(image.file) if image.file else None) or split(label)
        with image.noting("its labels cannot be read"):
            for number, line in enumerate(load_text(label).splitlines(), start=1):
                _read_line(reading, image, line.split(), classes, f"line {number}")
        images.append(image)
    used = {image.file for image in images}
    # In a folder with labels, an image without any is empty.
    folders = {_key(label).casefold().rpartition("/")[0] for label in labels}
    for file in files:
        if file not in used and not file.is_extra:
            is_listed = file.folder.casefold() in folders
            reading.add_file(file, split(file), is_relative=True, is_listed=is_listed)


def _classes(reading: Reading, file: File, names: Any) -> dict[int, str]:
    """Return the class by its number in the labels."""
    names = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(names, dict) or not names:
        raise NacreError(f"{brief(file.path)} names no class")
    try:
        numbered = sorted((int(key), name) for key, name in names.items())
    except (TypeError, ValueError) as error:
        raise NacreError(
            f"{brief(file.path)}: `names` must be class names by number, not {brief(names)}"
        ) from error
    return {key: reading.list_class(name, file) for key, name in numbered}


def _splits(
    reading: Reading, description: Mapping[str, Any], files: list[File]
) -> Callable[[File], str | None]:
    """Return a function from a file to its split: by the description, else by its folders."""
    folders: dict[str, str | None] = {}
    listed: dict[File, str] = {}
    finder = Finder(files)
    for key in _SPLIT_KEYS:
        value = description.get(key)
        for path in value if isinstance(value, list) else [value]:
            parts = clean_parts(path) if isinstance(path, str) else ()
            if parts and parts[-1].endswith(".txt"):
                for file in reading.export.named(parts[-1].casefold())[:1]:
                    for line in load_lines(file):
                        with suppress(Unusable):  # several files fit: the line names none
                            if image := finder.find(line):
                                listed[image] = SPLITS[key]
            elif parts:
                place = "/".join(parts)
                name = folders.setdefault(place.casefold(), SPLITS[key])
                if name == "train" and key != "train":
                    reading.notes.append(
                        f"train and {key} are the same folder {brief(place)}: its images are in no "
                        "split, and without lists nacre tests on one image in five"
                    )
                    folders[place.casefold()] = None
                elif name is not None:
                    folders[place.casefold()] = SPLITS[key]

    def split(file: File) -> str | None:
        if file in listed:
            return listed[file]
        folder = f"/{_key(file).casefold().rpartition('/')[0]}/"
        fitting = [(len(path), name) for path, name in folders.items() if f"/{path}/" in folder]
        return max(fitting, key=itemgetter(0))[1] if fitting else split_of(file.folder)

    return split


def _read_line(
    reading: Reading, image: Image, words: list[str], classes: Mapping[int, str], where: str
) -> None:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise ValueError(f"{where} has something other than numbers") from None
    if not numbers:
        return
    if numbers[0] not in classes:
        raise Unusable("a label has an unlisted class", f"{where}: class {brief(words[0])}")
    if len(numbers) == 5:
        reading.skip(image, NO_OUTLINE)
        return
    points = points_of(numbers[1:])
    area = ring_of(points, is_relative=True)
    if area is not None and (points.min() < -_TOLERANCE or points.max() > 1 + _TOLERANCE):
        raise Unusable("its corners are not fractions of width and height, from 0 to 1", where)
    reading.draw(image, classes[int(numbers[0])], area)


def _key(label: File) -> str:
    """Return the path of an image without extension: ``labels`` is ``images`` there."""
    parts = list(clean_parts(label.path))
    for i in range(len(parts) - 2, -1, -1):
        if parts[i].casefold() == "labels":
            parts[i] = "images"
            break
    return "/".join([*parts[:-1], label.stem])


def _is_label(file: File) -> bool:
    """Return True if a text file has labels and is not a list of something."""
    name = file.name.casefold()
    if file.is_below("labels"):
        return name != "classes.txt"
    return not (
        name in _NOT_LABELS or split_of(file.stem) or name.startswith(("readme", "license"))
    )
