"""The data sets of Ultralytics: YOLO polygons, and masks for its semantic task.

``data.yaml`` names the classes; pictures lie below a folder ``images``, and the labels of each in
the same place below ``labels`` (a text file) or ``masks`` (a mask). Without ``data.yaml`` the
classes are the lines of ``classes.txt`` or ``obj.names``.

A line of a text file is a class and the corners of an outline as shares of the width and height;
five numbers are a box. Where outlines overlap, the smaller one lies on top. A mask holds numbers of
classes, and 255 where nothing counts.
"""

from collections.abc import Iterable, Mapping
from typing import Any

from nacre.data.importers.catalog import IGNORED, Coding, MaskFile, Picture
from nacre.data.importers.files.export import Finder, Match, clean_parts, split_of
from nacre.data.importers.files.tree import File
from nacre.data.importers.problems import Unusable, counted, shown, some
from nacre.data.importers.reading import Source, as_dict
from nacre.data.importers.shapes import shape as shapes
from nacre.data.importers.shapes.shape import DAMAGED, points_of
from nacre.errors import NacreError

NAME_FILES = ("classes.txt", "obj.names", "labels.txt")

_IGNORED_VALUE = 255
_TOLERANCE = 0.01
_NOT_LABELS = ("classes.txt", "labels.txt", "notes.txt", "readme.txt", "requirements.txt")
_SPLIT_KEYS = ("train", "val", "valid", "validation", "test")


def read_polygons(source: Source, files: list[File]) -> None:
    """Read YOLO's text files."""
    source.catalog.order = "area"
    description, classes = _classes(source, files[0])
    if "kpt_shape" in description:
        raise NacreError(f"{shown(files[0].path)} describes key points (kpt_shape), not areas")
    labels = {
        _key(file, "labels"): file for file in source.export.with_suffix(".txt") if _is_label(file)
    }
    folders = {key.rpartition("/")[0] for key in labels}
    lists = _split_folders(description)
    pictures = [file for file in source.export.pictures if not _is_mask(file)]
    for file in source.each(pictures):
        key = _key(file, "images")
        text = labels.pop(key, None)
        if text is None and file.tree == 1:
            continue
        is_listed = key.rpartition("/")[0] in folders
        picture = Picture(
            file.path, Match(file, True), _split(file, lists), is_labeled=text is not None
        )
        picture.is_listed = is_listed
        index = source.catalog.add(picture)
        if text is not None:
            _read_lines(source, index, text, classes)
    for text in labels.values():
        _find_picture(source, text, classes, lists)


def read_masks(source: Source, files: list[File]) -> None:
    """Read the masks of the semantic task."""
    description, classes = _classes(source, files[0])
    coding = Coding("values", _values(description, classes, files[0]))
    source.catalog.has_background = 0 in coding.classes.values()
    folder = masks_folder(description)
    masks = {_key(file, folder): file for file in source.export.pictures if _is_below(file, folder)}
    lists = _split_folders(description)
    for file in source.export.pictures:
        if _is_below(file, folder):
            continue
        mask = masks.pop(_key(file, "images"), None)
        if mask is None and file.tree == 1:
            continue
        picture = Picture(
            file.path, Match(file, True), _split(file, lists), is_labeled=mask is not None
        )
        picture.is_listed = False
        picture.mask = MaskFile(mask, coding) if mask else None
        source.catalog.add(picture)
    finder = Finder(file for file in source.export.pictures if not _is_below(file, folder))
    for mask in masks.values():
        name, split = _key(mask, folder, fold=False), _split(mask, lists)
        source.add_picture(name, split=split, finder=finder, mask=MaskFile(mask, coding))


def masks_folder(description: Mapping[str, Any]) -> str:
    """Return the last part of the folder that holds the masks."""
    parts = clean_parts(str(description.get("masks_dir") or "masks"))
    return parts[-1].casefold() if parts else "masks"


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
        raise NacreError(f"{shown(file.path)} has no class names under `names`")
    try:
        numbered = {int(key): name for key, name in names.items()}
    except (TypeError, ValueError) as error:
        raise NacreError(
            f"{shown(file.path)}: the keys of `names` are not numbers: {shown(names)}"
        ) from error
    return description, _number(source, dict(sorted(numbered.items())), file)


def _number(source: Source, names: Mapping[int, Any], file: File) -> dict[int, int]:
    numbers = {key: source.list_class(name, file) for key, name in names.items()}
    if not numbers:
        raise NacreError(f"{shown(file.path)} names no class")
    twice = [shown(names[key]) for key in names if list(names.values()).count(names[key]) > 1]
    if twice:
        source.catalog.notes.append(
            f"{counted(len(twice), 'class', 'classes')} of {shown(file.path)} share a name: "
            f"{some(twice)}"
        )
    return numbers


def _values(
    description: Mapping[str, Any], classes: Mapping[int, int], file: File
) -> dict[int, int]:
    """Return class number by value in the masks."""
    mapping = description.get("label_mapping")
    if not isinstance(mapping, dict) or not mapping:
        return {_IGNORED_VALUE: IGNORED} | dict(classes)
    values = {_IGNORED_VALUE: IGNORED}
    for raw, wanted in mapping.items():
        is_class = type(wanted) is int and wanted in classes
        if type(raw) is not int or (
            type(wanted) is int and not is_class and wanted not in (-1, _IGNORED_VALUE)
        ):
            raise NacreError(
                f"{shown(file.path)}: label_mapping has {shown(raw)}: {shown(wanted)}, "
                "which is no class"
            )
        values[raw] = classes[wanted] if is_class else IGNORED
    return values


def _read_lines(source: Source, index: int, file: File, classes: Mapping[int, int]) -> None:
    try:
        lines = source.load_text(file).splitlines()
        for at, line in enumerate(lines, start=1):
            if line.strip():
                _read_line(source, index, line.split(), classes, at)
    except NacreError as error:
        source.catalog.spoil(index, Unusable("its labels cannot be read", str(error)))
    except Unusable as problem:
        source.catalog.spoil(index, problem)


def _read_line(
    source: Source, index: int, words: list[str], classes: Mapping[int, int], at: int
) -> None:
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        raise Unusable(DAMAGED, f"line {at} holds something else than numbers") from None
    if numbers[0] not in classes:
        raise Unusable(
            "a label has a class that is not listed", f"line {at}: class {shown(words[0])}"
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
            "its corners are not shares of the width and height, from 0 to 1", f"line {at}"
        )
    shape = shapes.rings(classes[int(numbers[0])], [(points, ())], is_relative=True)
    source.catalog.draw(index, shape, "polygons")


def _find_picture(
    source: Source, text: File, classes: Mapping[int, int], lists: Mapping[str, str]
) -> None:
    """Add the picture of labels that lie elsewhere than theirs should."""
    split = _split(text, lists)
    index = source.add_picture(_key(text, "labels", fold=False), near=text.folder, split=split)
    _read_lines(source, index, text, classes)


def _key(file: File, folder: str, fold: bool = True) -> str:
    """Return what a picture and its labels have in common: the path with one folder replaced."""
    parts = list(clean_parts(file.path))
    for at in range(len(parts) - 2, -1, -1):
        if parts[at].casefold() == folder:
            parts[at] = "images"
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


def _split_folders(description: Mapping[str, Any]) -> dict[str, str]:
    """Return the split by the end of a folder's path, as the description says."""
    found: dict[str, str] = {}
    for key in _SPLIT_KEYS:
        value = description.get(key)
        for path in value if isinstance(value, list) else [value]:
            parts = clean_parts(path) if isinstance(path, str) else ()
            if parts and not parts[-1].endswith(".txt"):
                found["/".join(parts).casefold()] = split_of(key) or key
    return found


def _split(file: File, lists: Mapping[str, str]) -> str | None:
    """Return the split of a file by the description, else by the names of its folders."""
    folder = "/" + "/".join(clean_parts(_key(file, "labels").rpartition("/")[0])) + "/"
    fitting = [(len(path), split) for path, split in lists.items() if f"/{path}/" in folder]
    return max(fitting)[1] if fitting else split_of(file.folder)


def describes(content: Any) -> bool:
    """Whether a YAML file describes such a data set."""
    known = as_dict(content)
    return "names" in known and any(
        key in known for key in (*_SPLIT_KEYS, "nc", "path", "masks_dir")
    )


def has_masks(source_files: Iterable[File], description: Mapping[str, Any]) -> bool:
    """Whether there is a folder of masks beside the pictures."""
    folder = masks_folder(description)
    return any(file.is_image and _is_below(file, folder) for file in source_files)
