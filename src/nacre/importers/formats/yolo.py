"""YOLO polygons, as Ultralytics lays them out.

``data.yaml`` names the classes; images lie below a folder ``images``, and the labels of each in a
text file in the same place below ``labels``. Without ``data.yaml`` the classes are the lines of
``classes.txt`` or ``obj.names``. A line of a text file is a class and the corners of an outline as
shares of the width and height; five numbers are a box. Where outlines overlap, the smaller one
lies on top.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from nacre.errors import NacreError
from nacre.importers.documents import load_lines, load_text, load_yaml
from nacre.importers.files import (
    SPLITS,
    Export,
    File,
    Finder,
    clean_parts,
    is_inside,
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
    """Return the file that names the classes, if there are labels in text files."""
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
    """Return whether a YAML file describes such a data set: by names and one of the keys."""
    try:
        known = as_dict(load_yaml(file))
    except NacreError as error:
        export.damage[file] = error
        return False
    return "names" in known and any(key in known for key in keys)


def read(reading: Reading, files: list[File]) -> None:
    """Read YOLO's text files; there may be several data sets, each with its own description."""
    reading.order = "area"
    for file in files:
        # The one data set of an export may be described anywhere.
        _read_set(reading, file, file.folder if len(files) > 1 else "")


def _read_set(reading: Reading, file: File, root: str) -> None:
    is_yaml = file.suffix in (".yaml", ".yml")
    description = as_dict(load_yaml(file)) if is_yaml else {"names": load_lines(file)}
    if "kpt_shape" in description:
        raise NacreError(f"{brief(file.path)} describes key points (kpt_shape), not areas")
    classes = _classes(reading, file, description.get("names"))
    texts = [one for one in reading.export.with_suffix(".txt") if is_inside(one, root)]
    labels = [one for one in texts if _is_label(one)]
    files = [
        one
        for one in reading.export.images
        if not one.is_below("masks", "labels") and (one.is_extra or is_inside(one, root))
    ]
    pairs = _pair(reading, files, labels, _splits(reading, description, files))
    # Where a folder has labels, an image without any has nothing on it.
    folders = {_key(one, "labels").rpartition("/")[0] for one in labels}
    for image, text in reading.each(pairs):
        image.is_relative = True
        if text is not None:
            with image.noting("its labels cannot be read"):
                for number, line in enumerate(load_text(text).splitlines(), start=1):
                    _read_line(reading, image, line.split(), classes, f"line {number}")
        elif image.file is not None:
            image.is_listed = _key(image.file, "images").rpartition("/")[0] in folders


def _classes(reading: Reading, file: File, names: Any) -> dict[int, str]:
    """Return the class by the number in the labels."""
    names = dict(enumerate(names)) if isinstance(names, list) else names
    if not isinstance(names, dict) or not names:
        raise NacreError(f"{brief(file.path)} names no class")
    try:
        numbered = sorted((int(key), name) for key, name in names.items())
    except (TypeError, ValueError) as error:
        raise NacreError(
            f"{brief(file.path)}: `names` must be class names by their numbers: {brief(names)}"
        ) from error
    return {key: reading.list_class(name, file) for key, name in numbered}


def _pair(
    reading: Reading,
    files: list[File],
    labels: list[File],
    split: Callable[[File], str | None],
) -> list[tuple[Image, File | None]]:
    """Add all images; return each with the file of its labels, if it has one."""
    by_key = {_key(file, "labels"): file for file in labels}
    pairs: list[tuple[Image, File | None]] = []
    bare = []
    for file in files:
        label = by_key.pop(_key(file, "images"), None)
        if label is None:
            bare.append(file)
        else:
            image = reading.add_file(file, split(file), is_labeled=True, is_listed=True)
            pairs.append((image, label))
    # Labels may lie elsewhere than those of their image should.
    finder = Finder(bare)
    for label in by_key.values():
        name = _key(label, "labels", fold=False)
        image = reading.add_image(name, near=label.folder, split=split(label), finder=finder)
        pairs.append((image, label))
    taken = {image.file for image, _ in pairs}
    left = [file for file in bare if file not in taken and not file.is_extra]
    return pairs + [(reading.add_file(file, split(file)), None) for file in left]


def _splits(
    reading: Reading, description: Mapping[str, Any], files: list[File]
) -> Callable[[File], str | None]:
    """Return what tells the split of a file: lists or folders that are named, else its folders."""
    folders: dict[str, str] = {}
    listed: dict[File, str] = {}
    finder = Finder(files)
    for key in _SPLIT_KEYS:
        value = description.get(key)
        for path in value if isinstance(value, list) else [value]:
            parts = clean_parts(path) if isinstance(path, str) else ()
            if parts and parts[-1].endswith(".txt"):
                for file in reading.export.named(parts[-1].casefold())[:1]:
                    for line in load_lines(file):
                        with suppress(Unusable):  # several files may be meant: it says nothing
                            found = finder.find(line)
                            listed |= {found: SPLITS[key]} if found else {}
            elif parts:
                folders["/".join(parts).casefold()] = SPLITS[key]

    def split(file: File) -> str | None:
        if file in listed:
            return listed[file]
        folder = f"/{_key(file, 'labels').rpartition('/')[0]}/"
        fitting = [(len(path), name) for path, name in folders.items() if f"/{path}/" in folder]
        return max(fitting)[1] if fitting else split_of(file.folder)

    return split


def _read_line(
    reading: Reading, image: Image, words: list[str], classes: Mapping[int, str], where: str
) -> None:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise ValueError(f"{where} holds something else than numbers") from None
    if not numbers:
        return
    if numbers[0] not in classes:
        detail = f"{where}: class {brief(words[0])}"
        raise Unusable("a label has a class that is not listed", detail)
    if len(numbers) == 5:
        reading.skip(image, NO_OUTLINE)
        return
    points = points_of(numbers[1:])
    area = ring_of(points, is_relative=True)
    if area is not None and (points.min() < -_TOLERANCE or points.max() > 1 + _TOLERANCE):
        raise Unusable("its corners are not shares of the width and height, from 0 to 1", where)
    reading.draw(image, classes[int(numbers[0])], area, "polygons")


def _key(file: File, folder: str, fold: bool = True) -> str:
    """Return what an image and its labels have in common: the path with one folder replaced."""
    parts = list(clean_parts(file.path))
    for i in range(len(parts) - 2, -1, -1):
        if parts[i].casefold() == folder:
            parts[i] = "images"
            break
    key = "/".join(parts)
    key = key.rpartition(".")[0] or key
    return key.casefold() if fold else key


def _is_label(file: File) -> bool:
    """Return whether a text file holds labels and not a list of something."""
    name = file.name.casefold()
    if file.is_below("labels"):
        return name != "classes.txt"
    return not (
        name in _NOT_LABELS or split_of(file.stem) or name.startswith(("readme", "license"))
    )
