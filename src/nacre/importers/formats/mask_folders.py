"""Folders of images and masks: Pascal VOC's layout, CamVid's, and what people and tools make.

Masks lie in a folder such as ``SegmentationClass``, ``masks``, ``labels`` or ``trainannot``, or
beside their images as ``a_mask.png``. What they mean is in a table: of colors (``labelmap.txt``,
``class_dict.csv``, ``label_colors.txt``, ``classes.json``, ``obj_class_to_machine_color.json``,
``dataset_meta.json``), of values (``_classes.csv``), or of names in the order of the values
(``class_names.txt``, ``labels.txt``). Colors may also be named by the user. Where nothing says what
values mean, classes are called by them. Black is the background unless a class has it; 255 does not
count. An image that a list in ``ImageSets/Segmentation`` names and that has no mask is empty.
"""

import csv
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal, NamedTuple

from nacre.errors import NacreError
from nacre.importers.files import (
    Export,
    File,
    Finder,
    clean_parts,
    is_inside,
    outermost,
    split_of,
)
from nacre.importers.masks import (
    BACKGROUND,
    IGNORED,
    MaskFile,
    color_value,
    count_values,
    read_values,
    shown_color,
)
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import Color, Image, Reading, as_dict, as_list, color_of

VOC = ("segmentationclasspng", "segmentationclass", "segmentationclassaug")
_MASK_WORDS = (
    *(*VOC, "masksmachine", "masks", "mask", "labels", "label", "annotations", "annotation"),
    *("annot", "labeledapprovedfull", "labeledapproved", "groundtruth", "gt", "segmentation"),
    *("segmentations", "labelimages", "semantic"),
)
"""What folders of masks are called, without blanks and the like; the first that is there counts."""

_NOT_IMAGES = re.compile("^(segmentation(class|object)|masks(human|instances|machine)|vis|overlay)")
_IMAGE_WORDS = ("images", "image", "imgs", "img", "jpegimages", "rgb", "701stillsrawfull")
_SPLIT = "(train(?:ing)?|val(?:id(?:ation)?)?|test(?:ing)?|dev|)"
_SUFFIX = re.compile(r"_(mask|masks|label|labels|gt|seg|l|annotation|segmentation)$")
_NUMBERS = r"(?P<r>\d{1,9})[\s,]+(?P<g>\d{1,9})[\s,]+(?P<b>\d{1,9})"
_FORMS = (
    re.compile(rf"(?P<name>.*\S.*?):\s*{_NUMBERS}\s*(:.*)?"),
    re.compile(rf"{_NUMBERS}[\s,]+(?P<name>\S.*)"),
    re.compile(rf"(?P<name>\S.*?)[\s,]+{_NUMBERS}"),
)
_IGNORED_VALUE = 255
_MOST_LOOKED_AT = 200
_MOST_COLORS = 10


class _Meaning(NamedTuple):
    """What the values of masks mean: class number by value or by color."""

    kind: Literal["values", "colors"]
    classes: Mapping[int, int]


def find_voc(export: Export) -> list[File]:
    """Return the tables of masks in Pascal VOC's layout, or the masks if there is no table."""
    masks = [file for file in export.images if file.tree == 0 and _word(file) in VOC]
    return (_tables(export) or masks) if masks else []


def find(export: Export) -> list[File]:
    """Return the tables of any folder of masks; the masks if they are in color, or as in CamVid."""
    masks = _masks(export)
    if not masks or _word(masks[0]) in VOC or export.named("classes.yaml"):
        return []
    is_camvid = _word(masks[0]) == "annot"
    return _tables(export) or (masks if is_camvid or _in_color(export, masks) else [])


def are_binary(export: Export) -> bool:
    """Return whether masks hold 0 and 255 and nothing else."""
    return set(_count(export, _masks(export)[:_MOST_LOOKED_AT], "values")) == {0, _IGNORED_VALUE}


def read(reading: Reading, files: list[File]) -> None:
    """Read folders of masks, each by its table; there may be one for each of several tasks."""
    tables = files if files[0].name.casefold() in _TABLES else [None]
    for table in tables:
        # The one table of an export may lie anywhere.
        _read_one(reading, table, table.folder if table and len(tables) > 1 else "")


def _read_one(reading: Reading, table: File | None, root: str) -> None:
    export = reading.export
    masks = [file for file in _masks(export) if is_inside(file, root)]
    are_masks = set(masks)
    files = [
        file
        for file in export.images
        if file not in are_masks and (file.tree == 1 or not _is_derived(file))
    ]
    meaning = _meaning(reading, table, masks)
    reading.has_background = BACKGROUND in meaning.classes.values()
    taken = _read_lists(reading, root, masks, files, meaning)
    _pair(reading, [mask for mask in masks if mask not in taken], files, meaning)
    used = {image.file for image in reading.images}
    for file in files:
        if file not in used and file.tree == 0 and is_inside(file, root):
            reading.add_unlabeled(file, _split(file))


def _read_lists(
    reading: Reading, root: str, masks: list[File], files: list[File], meaning: _Meaning
) -> set[File]:
    """Add the images that lists name, and return the masks that belong to them."""
    lists = _lists(reading, root)
    exact = {_name_of(mask).casefold(): mask for mask in masks}
    named = {exact[name.casefold()] for name in lists if name.casefold() in exact}
    # A mask may lie in a folder that the list does not name.
    others, finder = Finder(mask for mask in masks if mask not in named), Finder(files)
    taken = set()
    for name, split in lists.items():
        image = reading.add_image(name, near=root, split=split, finder=finder)
        mask = exact.get(name.casefold())
        try:
            mask = mask or others.find(name)
        except Unusable as problem:
            image.spoil(problem)
            continue
        image.is_labeled = mask is not None
        if mask is not None:
            image.mask = MaskFile(mask, meaning.classes, meaning.kind)
            taken.add(mask)
    return taken


def _pair(reading: Reading, masks: list[File], files: list[File], meaning: _Meaning) -> None:
    """Add an image for each mask: the one in the same place, else the one of the same name."""
    by_key = {_key(file): file for file in files}
    finder = Finder(files)
    for mask in masks:
        key = _key(mask)
        plain = _SUFFIX.sub("", key)
        found = by_key.get(key) or by_key.get(plain)
        made = MaskFile(mask, meaning.classes, meaning.kind)
        split = _split(mask)
        if found is not None:
            reading.images.append(Image(found.path, found, split, mask=made))
            continue
        name = key if key in by_key or plain == key else plain
        reading.add_image(name, near=mask.folder, split=split, finder=finder, mask=made)


def _lists(reading: Reading, root: str) -> dict[str, str | None]:
    """Return the split of every name in the lists of ``ImageSets/Segmentation``."""
    found: dict[str, str | None] = {}
    for file in reading.export.with_suffix(".txt"):
        parts = [part.casefold() for part in clean_parts(file.folder)]
        if parts[-2:] == ["imagesets", "segmentation"] and is_inside(file, root):
            for line in reading.load_lines(file):
                found.setdefault("/".join(clean_parts(line)), split_of(file.pure.stem))
    return found


def _masks(export: Export) -> list[File]:
    """Return the masks: those of one kind of folder, else those beside their images."""
    own = [file for file in export.images if file.tree == 0]
    for word in _MASK_WORDS:
        found = [file for file in own if _word(file) == word and file.suffix != ".jpg"]
        if found:
            return found
    plain = {(file.folder, file.pure.stem.casefold()) for file in own}
    return [
        file
        for file in own
        if _SUFFIX.search(stem := file.pure.stem.casefold())
        and (file.folder, _SUFFIX.sub("", stem)) in plain
    ]


def _plain(part: str) -> str:
    return re.sub("[-_ ]", "", part.casefold())


def _split_word(part: str) -> tuple[str, str]:
    """Return what a folder of masks is called, and what else is in its name: ``train_labels``."""
    plain = _plain(part)
    if plain.endswith("annot"):
        return "annot", plain.removesuffix("annot")
    for word in _MASK_WORDS:
        form = re.fullmatch(f"{_SPLIT}{word}{_SPLIT}", plain)
        if form is not None:
            return word, form[1] or form[2]
    return "", part


def _word(file: File) -> str:
    """Return what the innermost folder of masks around a file is called; nothing if none is."""
    for part in reversed(clean_parts(file.folder)):
        word, _ = _split_word(part)
        if word:
            return word
    return ""


def _is_derived(file: File) -> bool:
    """Return whether a file was made of a mask, such as a visualization, and is no image."""
    return any(_NOT_IMAGES.match(_plain(part)) for part in clean_parts(file.folder))


def _key(file: File) -> str:
    """Return what an image and its mask have in common: the path without such folders."""
    folders = []
    for part in clean_parts(file.folder.casefold()):
        rest = "" if _plain(part) in _IMAGE_WORDS else _split_word(part)[1]
        folders += [rest] if rest else []
    return "/".join([*folders, file.pure.stem.casefold()])


def _split(file: File) -> str | None:
    return split_of(_key(file).rpartition("/")[0])


def _name_of(mask: File) -> str:
    """Return a mask's path below its folder without the extension."""
    parts = clean_parts(mask.path)
    places = [place for place, part in enumerate(parts[:-1]) if _split_word(part)[0]]
    return "/".join(parts[max(places, default=-1) + 1 :]).rpartition(".")[0]


def _tables(export: Export) -> list[File]:
    """Return the tables that say what masks mean, of the first kind that is there."""
    for name in _TABLES:
        found = outermost(export.named(name))
        if found:
            return found
    return []


def _meaning(reading: Reading, table: File | None, masks: list[File]) -> _Meaning:
    if reading.named_colors:
        colors = {color_value(one): name for one, name in reading.named_colors.items()}
        classes = {one: _class_of_user(reading, name, one) for one, name in colors.items()}
        return _Meaning("colors", {0: BACKGROUND} | classes)
    if table is not None:
        return _TABLES[table.name.casefold()](reading, table, masks)
    if _in_color(reading.export, masks):
        raise _ask_for_colors(reading.export, masks)
    values = _count(reading.export, reading.each(masks), "values")
    reading.notes.append("nothing names the classes: they are called by their values; --rename")
    numbers = {value: f"label {value}" for value in sorted(values)}
    return _Meaning("values", _by_value(reading, numbers, set(values)))


def _class_of_user(reading: Reading, name: str, color: int) -> int:
    red, green, blue = (color >> shift & 255 for shift in (0, 8, 16))
    try:
        return reading.class_id(name, (red, green, blue))
    except Unusable as problem:
        raise NacreError(f"--colors: {problem.detail}") from None


def _by_value(reading: Reading, names: Mapping[int, str], values: set[int]) -> dict[int, int]:
    """Return class number by value: 0 is background and 255 does not count, unless they must be."""
    # Of masks with black and white only, white is the thing and not what does not count.
    is_binary = values == {0, _IGNORED_VALUE}
    classes = {0: BACKGROUND} | ({} if is_binary else {_IGNORED_VALUE: IGNORED})
    for value in names:
        if value not in classes:
            classes[value] = reading.class_id(names[value])
    if is_binary and len(classes) == 2 and _IGNORED_VALUE not in classes:
        classes[_IGNORED_VALUE] = classes[max(classes)]
    return classes


def _in_color(export: Export, masks: list[File]) -> bool:
    """Return whether the first mask that can be read is in color."""
    for mask in masks[:_MOST_LOOKED_AT]:
        try:
            with export.open(mask) as file:
                read_values(file, "values")
        except Unusable as problem:
            if "colors" in problem.reason:
                return True
            continue
        except NacreError:
            continue
        return False
    return False


def _count(export: Export, masks: Iterable[File], kind: str) -> Counter[int]:
    """Return the pixels by value; those of a mask that cannot be read are found out later."""
    total: Counter[int] = Counter()
    for mask in masks:
        try:
            with export.open(mask) as file:
                total.update(count_values(read_values(file, kind)))
        except (Unusable, NacreError):
            continue
    return total


def _ask_for_colors(export: Export, masks: list[File]) -> NacreError:
    found = _count(export, masks[:_MOST_LOOKED_AT], "colors")
    shares = [
        f"{shown_color(color)} ({count / found.total():.1%})"
        for color, count in found.most_common(_MOST_COLORS)
    ]
    more = f" and {len(found) - _MOST_COLORS:,} more" if len(found) > _MOST_COLORS else ""
    first = next((color for color, _ in found.most_common() if color), 0)
    return NacreError(
        "the masks are in color, and nothing says what the colors mean: "
        f"{', '.join(shares)}{more}; "
        f'name them, such as --colors "{shown_color(first)}=crack"'
    )


def _colors(reading: Reading, file: File, rows: Iterable[tuple[Any, Color]]) -> _Meaning:
    """Return class number by color; black is background unless a class has it."""
    classes: dict[int, int] = {}
    for name, color in rows:
        number = reading.list_class(name, file, color)
        if classes.setdefault(color_value(color), number) != number:
            shown = ",".join(map(str, color))
            raise NacreError(f"{brief(file.path)}: two classes have the color {shown}")
    if not classes:
        raise NacreError(f"{brief(file.path)} names no class")
    classes.setdefault(0, BACKGROUND)
    return _Meaning("colors", classes)


def _color_lines(reading: Reading, file: File, masks: list[File]) -> _Meaning:
    """Read lines of a name and a color, in any of the usual orders."""
    rows: list[tuple[str, Color]] = []
    for number, line in enumerate(reading.load_text(file).splitlines(), start=1):
        plain = line.strip()
        if not plain or plain.startswith("#") or (number == 1 and not re.search(r"\d", plain)):
            continue
        form = next((found for one in _FORMS if (found := one.fullmatch(plain))), None)
        color = [int(form[band]) for band in "rgb"] if form else [256]
        if form is None or max(color) > 255:
            raise NacreError(
                f"{brief(file.path)}, line {number}: {brief(line)!r} is not a name and a color, "
                "such as `crack:255,0,0` or `255 0 0 crack`"
            )
        rows.append((form["name"].strip().strip('"'), (color[0], color[1], color[2])))
    return _colors(reading, file, rows)


def _color_json(reading: Reading, file: File, masks: list[File]) -> _Meaning:
    """Read a table of name: color, or a list of classes with both."""
    content = reading.load_json(file)
    content = as_dict(content).get("classes", content)
    pairs = [
        (as_dict(one).get("name") or as_dict(one).get("title"), as_dict(one).get("color"))
        for one in as_list(content)
    ] or list(as_dict(content).items())
    rows = []
    for name, value in pairs:
        color = color_of(value)
        if color is None:
            raise NacreError(f"{brief(file.path)}: the color of {brief(name)} is {brief(value)}")
        rows.append((name, color))
    return _colors(reading, file, rows)


def _dataset_meta(reading: Reading, file: File, masks: list[File]) -> _Meaning:
    """Read a label map, with the colors of the labels if the masks are in color."""
    content = as_dict(reading.load_json(file))
    names = as_dict(content.get("label_map"))
    if not names or not all(re.fullmatch(r"\d{1,5}", key) for key in names):
        raise NacreError(f"{brief(file.path)} has no `label_map` of numbers and names")
    numbered = {int(key): name for key, name in names.items()}
    colors = [color_of(one) for one in as_list(content.get("segmentation_colors"))]
    if not _in_color(reading.export, masks):
        return _Meaning("values", _named_values(reading, file, numbered))
    rows = [(name, colors[i]) for i, name in numbered.items() if i < len(colors)]
    return _colors(reading, file, [(name, color) for name, color in rows if color is not None])


def _value_lines(reading: Reading, file: File, masks: list[File]) -> _Meaning:
    """Read lines of a value and a name (Roboflow)."""
    rows = csv.reader(reading.load_text(file).splitlines(), skipinitialspace=True)
    try:
        lines = [row for row in rows if row]
    except csv.Error as error:
        raise NacreError(f"{brief(file.path)} is not CSV that can be read: {error}") from error
    names = {}
    for number, row in enumerate(lines[1:], start=2):
        try:
            names[int(row[0])] = ",".join(row[1:]).strip()
        except ValueError:
            raise NacreError(
                f"{brief(file.path)}, line {number}: {brief(row)} is not a value and a class"
            ) from None
    return _Meaning("values", {0: BACKGROUND} | _named_values(reading, file, names))


def _named_values(reading: Reading, file: File, names: Mapping[int, str]) -> dict[int, int]:
    if not names:
        raise NacreError(f"{brief(file.path)} names no class")
    return {value: reading.list_class(name, file) for value, name in names.items()}


def _name_lines(reading: Reading, file: File, masks: list[File]) -> _Meaning:
    """Read names in the order of the values; without a line for the background 1 is the first."""
    numbers = [reading.list_class(line, file) for line in reading.load_lines(file)]
    if not numbers:
        raise NacreError(f"{brief(file.path)} names no class")
    if numbers[0] == IGNORED:
        numbers = numbers[1:]
    if numbers and numbers[0] != BACKGROUND:
        numbers = [BACKGROUND, *numbers]
    classes = dict(enumerate(numbers))
    if set(_count(reading.export, masks, "values")) == {0, _IGNORED_VALUE} and len(numbers) == 2:
        # Masks in black and white: white is the one class, not what does not count.
        classes[_IGNORED_VALUE] = numbers[1]
    return _Meaning("values", {_IGNORED_VALUE: IGNORED} | classes)


_TABLES: dict[str, Callable[[Reading, File, list[File]], _Meaning]] = {
    "labelmap.txt": _color_lines,
    "class_dict.csv": _color_lines,
    "label_colors.txt": _color_lines,
    "obj_class_to_machine_color.json": _color_json,
    "dataset_meta.json": _dataset_meta,
    "classes.json": _color_json,
    "_classes.csv": _value_lines,
    "class_names.txt": _name_lines,
    "labels.txt": _name_lines,
}
"""How the tables are read, the most telling first."""
