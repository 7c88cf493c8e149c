"""YOLO polygons, as Ultralytics lays them out.

``data.yaml`` names the classes; pictures lie below a folder ``images``, and the labels of each in
the same place below ``labels`` (a text file). Without ``data.yaml`` the
classes are the lines of ``classes.txt`` or ``obj.names``.

A line of a text file is a class and the corners of an outline as shares of the width and height;
five numbers are a box. Where outlines overlap, the smaller one lies on top.
"""

from collections.abc import Mapping
from typing import Any

from nacre.errors import NacreError
from nacre.importers.catalog import Picture
from nacre.importers.files.export import (
    SPLITS,
    Finder,
    Match,
    clean_parts,
    is_inside,
    split_of,
)
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief, counted, some
from nacre.importers.reading import Source, as_dict
from nacre.importers.shapes import shape as shapes
from nacre.importers.shapes.shape import DAMAGED, points_of

NAME_FILES = ("classes.txt", "obj.names", "labels.txt")

_TOLERANCE = 0.01
_NOT_LABELS = ("classes.txt", "labels.txt", "notes.txt", "readme.txt", "requirements.txt")
_SPLIT_KEYS = ("train", "val", "valid", "validation", "test")


def read_polygons(source: Source, files: list[File]) -> None:
    """Read YOLO's text files; there may be several data sets, each with its own description."""
    source.catalog.order = "area"
    for file in files:
        # The one data set of an export may be described anywhere.
        _read_set(source, file, file.folder if len(files) > 1 else "")


def _read_set(source: Source, file: File, root: str) -> None:
    description, classes = _classes(source, file)
    if "kpt_shape" in description:
        raise NacreError(f"{brief(file.path)} describes key points (kpt_shape), not areas")
    texts = [one for one in source.export.with_suffix(".txt") if is_inside(one, root)]
    labels = [one for one in texts if _is_label(one)]
    pictures = [
        one
        for one in source.export.pictures
        if not _is_mask(one) and (one.tree == 1 or is_inside(one, root))
    ]
    pairs = _pair(source, pictures, labels, "labels", description)
    # Where a folder has labels, a picture without any has nothing on it.
    folders = {_key(one, "labels").rpartition("/")[0] for one in labels}
    for index, text in source.each(pairs):
        picture = source.catalog.pictures[index]
        if text is not None:
            _read_lines(source, index, text, classes)
        elif picture.match is not None:
            picture.is_listed = _key(picture.match.file, "images").rpartition("/")[0] in folders


def _pair(
    source: Source,
    pictures: list[File],
    labels: list[File],
    folder: str,
    description: Mapping[str, Any],
) -> list[tuple[int, File | None]]:
    """Add all pictures; return the place of each with the file of its labels, if it has one."""
    splits = _Splits(source, description, pictures)
    by_key = {_key(file, folder): file for file in labels}
    pairs: list[tuple[int, File | None]] = []
    bare = []
    for file in pictures:
        label = by_key.pop(_key(file, "images"), None)
        if label is None:
            bare.append(file)
        else:
            picture = Picture(file.path, Match(file, True), splits.of(file))
            pairs.append((source.catalog.add(picture), label))
    names = {_key(label, folder, fold=False): label for label in by_key.values()}
    return pairs + _pair_elsewhere(source, bare, names, splits)


def _pair_elsewhere(
    source: Source, bare: list[File], labels: Mapping[str, File], splits: "_Splits"
) -> list[tuple[int, File | None]]:
    """Pair labels that lie elsewhere than those of their picture should; add what has none."""
    pairs: list[tuple[int, File | None]] = []
    finder, taken = Finder(bare), set()
    for name, label in labels.items():
        split = splits.of(label)
        index = source.add_picture(name, near=label.folder, split=split, finder=finder)
        match = source.catalog.pictures[index].match
        taken.add(match.file if match else None)
        pairs.append((index, label))
    for file in bare:
        if file not in taken and file.tree == 0:
            picture = Picture(file.path, Match(file, True), splits.of(file), is_labeled=False)
            picture.is_listed = False
            pairs.append((source.catalog.add(picture), None))
    return pairs


class _Splits:
    """Which split a file belongs to: by lists or folders that are named, else by its folders."""

    def __init__(
        self, source: Source, description: Mapping[str, Any], pictures: list[File]
    ) -> None:
        self.folders: dict[str, str] = {}
        self.listed: dict[File, str] = {}
        finder = Finder(pictures)
        for key in _SPLIT_KEYS:
            value = description.get(key)
            for path in value if isinstance(value, list) else [value]:
                parts = clean_parts(path) if isinstance(path, str) else ()
                split = SPLITS[key]
                if parts and parts[-1].endswith(".txt"):
                    self._read_list(source, finder, parts[-1], split)
                elif parts:
                    self.folders["/".join(parts).casefold()] = split

    def of(self, file: File) -> str | None:
        """Return the split of a picture or of its labels."""
        if file in self.listed:
            return self.listed[file]
        folder = f"/{_key(file, 'labels').rpartition('/')[0]}/"
        fitting = [
            (len(path), split) for path, split in self.folders.items() if f"/{path}/" in folder
        ]
        return max(fitting)[1] if fitting else split_of(file.folder)

    def _read_list(self, source: Source, finder: Finder, name: str, split: str) -> None:
        for file in source.export.named(name)[:1]:
            for line in source.load_text(file).splitlines():
                try:
                    found = finder.find(line.strip()) if line.strip() else None
                except Unusable:
                    continue
                if found is not None:
                    self.listed[found.file] = split


def _classes(source: Source, file: File) -> tuple[dict[str, Any], dict[int, int]]:
    """Return the description and the class number by the number in the labels."""
    if file.suffix not in (".yaml", ".yml"):
        lines = [line.strip() for line in source.load_text(file).splitlines()]
        return {}, _number(source, dict(enumerate(line for line in lines if line)), file)
    description = as_dict(source.load_yaml(file))
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
    return description, _number(source, dict(sorted(numbered.items())), file)


def _number(source: Source, names: Mapping[int, Any], file: File) -> dict[int, int]:
    numbers = {key: source.list_class(name, file) for key, name in names.items()}
    if not numbers:
        raise NacreError(f"{brief(file.path)} names no class")
    twice = [brief(names[key]) for key in names if list(names.values()).count(names[key]) > 1]
    if twice:
        source.catalog.notes.append(
            f"{counted(len(twice), 'class', 'classes')} of {brief(file.path)} share a name: "
            f"{some(twice)}"
        )
    return numbers


def _read_lines(source: Source, index: int, file: File, classes: Mapping[int, int]) -> None:
    try:
        lines = source.load_text(file).splitlines()
        for number, line in enumerate(lines, start=1):
            if line.strip():
                _read_line(source, index, line.split(), classes, number)
    except NacreError as error:
        source.catalog.spoil(index, Unusable("its labels cannot be read", str(error)))
    except Unusable as problem:
        source.catalog.spoil(index, problem)


def _read_line(
    source: Source, index: int, words: list[str], classes: Mapping[int, int], number: int
) -> None:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise Unusable(DAMAGED, f"line {number} holds something else than numbers") from None
    if numbers[0] not in classes:
        raise Unusable(
            "a label has a class that is not listed", f"line {number}: class {brief(words[0])}"
        )
    if len(numbers) == 5:
        source.catalog.skip(index, "boxes without an outline")
        return
    points = points_of(numbers[1:])
    if len(points) < 3:
        source.catalog.skip(index, "outlines with fewer than three corners")
        return
    if points.min() < -_TOLERANCE or points.max() > 1 + _TOLERANCE:
        raise Unusable(
            "its corners are not shares of the width and height, from 0 to 1", f"line {number}"
        )
    shape = shapes.rings(classes[int(numbers[0])], [(points, ())], is_relative=True)
    source.catalog.draw(index, shape, "polygons")


def _key(file: File, folder: str, fold: bool = True) -> str:
    """Return what a picture and its labels have in common: the path with one folder replaced."""
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


def _is_mask(file: File) -> bool:
    return _is_below(file, "masks") or _is_below(file, "labels")


def _is_label(file: File) -> bool:
    """Whether a text file holds labels and not a list of something."""
    name = file.name.casefold()
    if _is_below(file, "labels"):
        return name not in ("classes.txt",)
    return not (
        name in _NOT_LABELS or split_of(file.pure.stem) or name.startswith(("readme", "license"))
    )


def describes(content: Any) -> bool:
    """Whether a YAML file describes such a data set."""
    known = as_dict(content)
    return "names" in known and any(key in known for key in (*_SPLIT_KEYS, "nc", "path"))
