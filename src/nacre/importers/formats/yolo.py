"""YOLO polygons, as Ultralytics lays them out.

``data.yaml`` names the classes; images lie below a folder ``images``, and the labels of each in a
text file in the same place below ``labels``. Without ``data.yaml`` the classes are the lines of
``classes.txt`` or ``obj.names``. A line of a text file is a class and the corners of an outline as
shares of the width and height; five numbers are a box. Where outlines overlap, the smaller one
lies on top.
"""

from collections.abc import Mapping
from typing import Any

from nacre.errors import NacreError
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
from nacre.importers.problems import DAMAGED, Unusable, brief, counted, some
from nacre.importers.reading import NO_OUTLINE, Image, Reading, as_dict, load_yaml
from nacre.importers.shapes import points_of, ring_of

_NAME_FILES = ("classes.txt", "obj.names", "labels.txt")
_NOT_LABELS = ("classes.txt", "labels.txt", "notes.txt", "readme.txt", "requirements.txt")
_SPLIT_KEYS = ("train", "val", "valid", "validation", "test")
_TOLERANCE = 0.01


def find(export: Export) -> list[File]:
    """Return the file that names the classes, if there are labels in text files."""
    texts = export.with_suffix(".txt")
    described = [file for file in export.with_suffix(".yaml", ".yml") if _describes(export, file)]
    if described and texts:
        return outermost(described)
    has_labels = any(_is_below(file, "labels") for file in texts)
    return export.named(*_NAME_FILES)[:1] if has_labels else []


def read(reading: Reading, files: list[File]) -> None:
    """Read YOLO's text files; there may be several data sets, each with its own description."""
    reading.order = "area"
    for file in files:
        # The one data set of an export may be described anywhere.
        _read_set(reading, file, file.folder if len(files) > 1 else "")


def _describes(export: Export, file: File) -> bool:
    """Return whether a YAML file describes such a data set."""
    try:
        known = as_dict(load_yaml(export, file))
    except NacreError as error:
        export.damage[file] = error
        return False
    return "names" in known and any(key in known for key in (*_SPLIT_KEYS, "nc", "path"))


def _read_set(reading: Reading, file: File, root: str) -> None:
    description, classes = _classes(reading, file)
    if "kpt_shape" in description:
        raise NacreError(f"{brief(file.path)} describes key points (kpt_shape), not areas")
    texts = [one for one in reading.export.with_suffix(".txt") if is_inside(one, root)]
    labels = [one for one in texts if _is_label(one)]
    images = [
        one
        for one in reading.export.images
        if not (_is_below(one, "masks") or _is_below(one, "labels"))
        and (one.tree == 1 or is_inside(one, root))
    ]
    # Where a folder has labels, an image without any has nothing on it.
    folders = {_key(one, "labels").rpartition("/")[0] for one in labels}
    for image, text in reading.each(_pair(reading, images, labels, description)):
        if text is not None:
            _read_lines(reading, image, text, classes)
        elif image.file is not None:
            image.is_listed = _key(image.file, "images").rpartition("/")[0] in folders


def _classes(reading: Reading, file: File) -> tuple[dict[str, Any], dict[int, int]]:
    """Return the description and the class number by the number in the labels."""
    if file.suffix not in (".yaml", ".yml"):
        return {}, _number(reading, dict(enumerate(reading.load_lines(file))), file)
    description = as_dict(load_yaml(reading.export, file))
    names = description.get("names")
    if isinstance(names, list):
        names = dict(enumerate(names))
    if not isinstance(names, dict) or not names:
        raise NacreError(f"{brief(file.path)} has no class names under `names`")
    try:
        numbered = {int(key): name for key, name in names.items()}
    except (TypeError, ValueError) as error:
        raise NacreError(
            f"{brief(file.path)}: the keys of `names` are not numbers: {brief(names)}"
        ) from error
    return description, _number(reading, dict(sorted(numbered.items())), file)


def _number(reading: Reading, names: Mapping[int, Any], file: File) -> dict[int, int]:
    numbers = {key: reading.list_class(name, file) for key, name in names.items()}
    if not numbers:
        raise NacreError(f"{brief(file.path)} names no class")
    twice = [brief(name) for name in names.values() if list(names.values()).count(name) > 1]
    if twice:
        count = counted(len(twice), "class", "classes")
        reading.notes.append(f"{count} of {brief(file.path)} share a name: {some(twice)}")
    return numbers


def _pair(
    reading: Reading, files: list[File], labels: list[File], description: Mapping[str, Any]
) -> list[tuple[Image, File | None]]:
    """Add all images; return each with the file of its labels, if it has one."""
    splits = _Splits(reading, description, files)
    by_key = {_key(file, "labels"): file for file in labels}
    pairs: list[tuple[Image, File | None]] = []
    bare = []
    for file in files:
        label = by_key.pop(_key(file, "images"), None)
        if label is None:
            bare.append(file)
        else:
            pairs.append((Image(file.path, file, splits.of(file)), label))
    reading.images += [image for image, _ in pairs]
    # Labels may lie elsewhere than those of their image should.
    finder = Finder(bare)
    for label in by_key.values():
        name, split = _key(label, "labels", fold=False), splits.of(label)
        image = reading.add_image(name, near=label.folder, split=split, finder=finder)
        pairs.append((image, label))
    taken = {image.file for image, _ in pairs}
    for file in bare:
        if file not in taken and file.tree == 0:
            reading.add_unlabeled(file, splits.of(file))
            pairs.append((reading.images[-1], None))
    return pairs


class _Splits:
    """Which split a file belongs to: by lists or folders that are named, else by its folders."""

    def __init__(self, reading: Reading, description: Mapping[str, Any], files: list[File]) -> None:
        self.folders: dict[str, str] = {}
        self.listed: dict[File, str] = {}
        finder = Finder(files)
        for key in _SPLIT_KEYS:
            value = description.get(key)
            for path in value if isinstance(value, list) else [value]:
                parts = clean_parts(path) if isinstance(path, str) else ()
                if parts and parts[-1].endswith(".txt"):
                    self._read_list(reading, finder, parts[-1], SPLITS[key])
                elif parts:
                    self.folders["/".join(parts).casefold()] = SPLITS[key]

    def of(self, file: File) -> str | None:
        """Return the split of an image or of its labels."""
        if file in self.listed:
            return self.listed[file]
        folder = f"/{_key(file, 'labels').rpartition('/')[0]}/"
        fitting = [
            (len(path), split) for path, split in self.folders.items() if f"/{path}/" in folder
        ]
        return max(fitting)[1] if fitting else split_of(file.folder)

    def _read_list(self, reading: Reading, finder: Finder, name: str, split: str) -> None:
        for file in reading.export.named(name)[:1]:
            for line in reading.load_lines(file):
                try:
                    found = finder.find(line)
                except Unusable:
                    continue
                if found is not None:
                    self.listed[found] = split


def _read_lines(reading: Reading, image: Image, file: File, classes: Mapping[int, int]) -> None:
    try:
        for number, line in enumerate(reading.load_text(file).splitlines(), start=1):
            if line.strip():
                _read_line(reading, image, line.split(), classes, f"line {number}")
    except NacreError as error:
        image.spoil(Unusable("its labels cannot be read", str(error)))
    except Unusable as problem:
        image.spoil(problem)


def _read_line(
    reading: Reading, image: Image, words: list[str], classes: Mapping[int, int], where: str
) -> None:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise Unusable(DAMAGED, f"{where} holds something else than numbers") from None
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


def _is_below(file: File, folder: str) -> bool:
    return any(part.casefold() == folder for part in clean_parts(file.folder))


def _is_label(file: File) -> bool:
    """Return whether a text file holds labels and not a list of something."""
    name = file.name.casefold()
    if _is_below(file, "labels"):
        return name != "classes.txt"
    return not (
        name in _NOT_LABELS or split_of(file.pure.stem) or name.startswith(("readme", "license"))
    )
