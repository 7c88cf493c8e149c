"""Folders of images and masks: Pascal VOC's layout, CamVid's, and those of people and tools.

Masks are in a folder such as ``SegmentationClass``, ``masks``, ``labels`` or ``trainannot``, or
beside their images as ``a_mask.png``. A table gives them a meaning: a table of colors
(``labelmap.txt``, ``class_dict.csv``, ``label_colors.txt``, ``classes.json``,
``obj_class_to_machine_color.json``, ``dataset_meta.json``), of values (``_classes.csv``), or of
names in the order of the values (``class_names.txt``, ``labels.txt``). The user may also name the
colors. Without a table, a class is called by its value. Black is the background unless it is the
color of a class; 255 does not count. An image without a mask is empty if a list in
``ImageSets/Segmentation`` names it.
"""

import csv
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from nacre.errors import NacreError
from nacre.importers.documents import load_json, load_lines, load_text
from nacre.importers.files import Export, File, Finder, clean_parts, outermost, split_of
from nacre.importers.masks import (
    IN_COLOR,
    Coding,
    MaskFile,
    Values,
    color_value,
    count_values,
    read_values,
    shown_color,
)
from nacre.importers.problems import Unusable, brief
from nacre.importers.reading import BACKGROUND, IGNORED, Color, Reading, as_dict, as_list, color_of

Meaning = tuple[dict[int, str], Coding]
"""Class by value, and whether the values are labels or colors."""

_MASK_WORDS = (
    *("segmentationclasspng", "segmentationclass", "segmentationclassaug", "masksmachine", "masks"),
    *("mask", "labels", "label", "annotations", "annotation"),
    *("annot", "labeledapprovedfull", "labeledapproved", "groundtruth", "gt", "segmentation"),
    *("segmentations", "labelimages", "semantic"),
)
"""Names of mask folders without spaces and the like; the first that exists is used."""

_NOT_IMAGES = re.compile("^(segmentation(class|object)|masks(human|instances|machine)|vis|overlay)")
_IMAGE_WORDS = ("images", "image", "imgs", "img", "image2", "jpegimages", "rgb")
_SPLIT = "(train(?:ing)?|val(?:id(?:ation)?)?|test(?:ing)?|dev|)"
_SUFFIX = re.compile(r"_(mask|masks|label|labels|gt|seg|l|annotation|segmentation)$")
_NUMBERS = r"(?P<r>\d{1,9})[\s,]+(?P<g>\d{1,9})[\s,]+(?P<b>\d{1,9})"
_COLOR_LINES = (
    re.compile(rf"(?P<name>.*\S.*?):\s*{_NUMBERS}\s*(:.*)?"),
    re.compile(rf"{_NUMBERS}[\s,]+(?P<name>\S.*)"),
    re.compile(rf"(?P<name>\S.*?)[\s,]+{_NUMBERS}"),
)
_JPEG = (".jpg", ".jpeg", ".jfif")
_WHITE = 255
_MAX_SAMPLES = 200
_MAX_COLORS = 10
_MAX_LINE_LENGTH = 500


def find(export: Export) -> list[File]:
    """Return the tables of a folder of masks, or the masks if there is no table.

    nacre's own folders need no import, unless their masks are in color.
    """
    masks, tables = all_masks(export), _tables(export)
    is_own = bool(export.named("classes.yaml")) or (is_nacres(export) and not tables)
    if not masks or (is_own and not _are_in_color(masks)):
        return []
    return tables or masks


def is_nacres(export: Export) -> bool:
    """Return True if an export has the folders of a nacre data folder, and its names."""
    places = [f"/{file.path}".partition("/masks/") for file in export.images]
    roots = {root[1:] for root, found, _ in places if found}
    return len(roots) == 1 and are_named_alike(export, roots.pop())


def are_named_alike(export: Export, root: str) -> bool:
    """Return True if most files in ``masks/`` are PNG files with the path of one in ``images/``."""
    start = f"{root}/" if root else ""
    images, masks = (
        [
            file.path.removeprefix(folder).rpartition(".")
            for file in export.images
            if file.path.startswith(folder)
        ]
        for folder in (f"{start}images/", f"{start}masks/")
    )
    names = {name for name, _, _ in images}
    fitting = [name for name, _, suffix in masks if suffix.lower() == "png" and name in names]
    return 2 * len(fitting) > len(masks)


def jpeg_masks(export: Export) -> list[File]:
    """Return the JPEG files in folders of masks that have the names of images elsewhere."""
    words = {file: _mask_word(file) for file in export.images}
    names = {_key(file) for file, word in words.items() if not word}
    return [
        file
        for file, word in words.items()
        if word and file.suffix in _JPEG and _SUFFIX.sub("", _key(file)) in names
    ]


def are_black_and_white(export: Export) -> bool:
    """Return True if the masks have the values 0 and 255 and no other."""
    return set(count_values(_each(all_masks(export)[:_MAX_SAMPLES], "values"))) == {0, _WHITE}


def read(reading: Reading, files: list[File]) -> None:
    """Read folders of masks, each with its table; several tasks may have one each."""
    tables = files if files[0].name.casefold() in _TABLES else [None]
    for table in tables:
        # A single table may be anywhere.
        _read_one(reading, table, table.folder if table and len(tables) > 1 else "")


def _read_one(reading: Reading, table: File | None, root: str) -> None:
    export = reading.export
    masks = {file: None for file in all_masks(export) if file.is_inside(root)}
    files = [
        file
        for file in export.images
        if file not in masks and (file.is_extra or not _is_derived(file))
    ]
    meaning = _meaning(reading, table, list(masks))
    reading.has_background = BACKGROUND in meaning[0].values()
    used = _read_lists(reading, root, list(masks), files, meaning)
    _pair(reading, [mask for mask in masks if mask not in used], files, meaning)
    reading.add_unlabeled(file for file in files if file.is_inside(root))


def _read_lists(
    reading: Reading, root: str, masks: list[File], files: list[File], meaning: Meaning
) -> set[File]:
    """Add the images that ``ImageSets/Segmentation`` names; return their masks."""
    lists: dict[str, str | None] = {}
    for file in reading.export.with_suffix(".txt"):
        parts = [part.casefold() for part in clean_parts(file.folder)]
        if parts[-2:] == ["imagesets", "segmentation"] and file.is_inside(root):
            for line in load_lines(file):
                lists.setdefault("/".join(clean_parts(line)), split_of(file.stem))
    exact = {_name_of(mask).casefold(): mask for mask in masks}
    named = {exact[name.casefold()] for name in lists if name.casefold() in exact}
    # A mask may be in a folder that the list does not name.
    others, finder = Finder(mask for mask in masks if mask not in named), Finder(files)
    used = set()
    for name, split in lists.items():
        image = reading.add_image(name, near=root, split=split, finder=finder, is_labeled=False)
        with image.noting():
            mask = exact.get(name.casefold()) or others.find(name)
            if mask is not None:
                image.mask, image.is_labeled = MaskFile(mask, *meaning), True
                used.add(mask)
    return used


def _pair(reading: Reading, masks: list[File], files: list[File], meaning: Meaning) -> None:
    """Add an image for each mask: the one in the same place, else the one with its name."""
    by_key = {_key(file): file for file in files}
    finder = Finder(files)
    for file in masks:
        key = _key(file)
        plain = _SUFFIX.sub("", key)
        image = by_key.get(key) or by_key.get(plain)
        mask, split = MaskFile(file, *meaning), split_of(key.rpartition("/")[0])
        if image is not None:
            reading.add_file(image, split, mask=mask, is_labeled=True)
        else:
            reading.add_image(plain, near=file.folder, split=split, finder=finder, mask=mask)


def all_masks(export: Export) -> list[File]:
    """Return the masks: those of one type of folder, else those beside their images."""
    own = [file for file in export.images if not file.is_extra]
    words = {file: _mask_word(file) for file in own if file.suffix not in _JPEG}
    for word in _MASK_WORDS:
        if word in words.values():
            return [file for file in words if words[file] == word]
    images = {(file.folder, file.stem.casefold()) for file in own}
    return [
        file
        for file in own
        if _SUFFIX.search(stem := file.stem.casefold())
        and (file.folder, _SUFFIX.sub("", stem)) in images
    ]


def _plain(part: str) -> str:
    return re.sub("[-_ ]", "", part.casefold())


def _split_word(part: str) -> tuple[str, str]:
    """Return the word for masks in the name of a folder, and the rest: ``train_labels``."""
    plain = _plain(part)
    if plain.endswith("annot"):
        return "annot", plain.removesuffix("annot")
    for word in _MASK_WORDS:
        form = re.fullmatch(f"{_SPLIT}{word}{_SPLIT}", plain)
        if form is not None:
            return word, form[1] or form[2]
    return "", part


def _mask_word(file: File) -> str:
    """Return the word for masks in the innermost folder that has one, or nothing."""
    words = (_split_word(part)[0] for part in reversed(clean_parts(file.folder)))
    return next(filter(None, words), "")


def _is_derived(file: File) -> bool:
    """Return True if a file was made from a mask, such as a visualization."""
    return any(_NOT_IMAGES.match(_plain(part)) for part in clean_parts(file.folder))


def _key(file: File) -> str:
    """Return the path that an image and its mask share: without their folders."""
    folders = []
    for part in clean_parts(file.folder.casefold()):
        rest = "" if _plain(part) in _IMAGE_WORDS else _split_word(part)[1]
        folders += [rest] if rest else []
    return "/".join([*folders, file.stem.casefold()])


def _name_of(mask: File) -> str:
    """Return a mask's path below its folder, without the extension."""
    parts = clean_parts(mask.path)
    places = [place for place, part in enumerate(parts[:-1]) if _split_word(part)[0]]
    return "/".join(parts[max(places, default=-1) + 1 :]).rpartition(".")[0]


def _tables(export: Export) -> list[File]:
    """Return the tables of the first type that exists."""
    tables = (outermost(export.named(name)) for name in _TABLES)
    return next(filter(None, tables), [])


def _each(masks: Iterable[File], coding: Coding) -> Iterator[Values]:
    """Yield the values of masks; unreadable ones are reported when they are painted."""
    for mask in masks:
        try:
            yield read_values(mask, coding)
        except (Unusable, NacreError):
            continue


def _are_in_color(masks: list[File]) -> bool:
    """Return True if the first readable mask is in color."""
    for mask in masks[:_MAX_SAMPLES]:
        try:
            read_values(mask, "values")
            return False
        except Unusable as problem:
            if problem.reason == IN_COLOR:
                return True
        except NacreError:
            continue
    return False


def _meaning(reading: Reading, table: File | None, masks: list[File]) -> Meaning:
    """Return the meaning of masks, as the user, a table or the masks themselves give it."""
    if reading.named_colors:
        try:
            rows = [
                (reading.class_of(name, color), color)
                for color, name in reading.named_colors.items()
            ]
        except Unusable as problem:
            raise NacreError(f"--colors: {problem.detail}") from None
        return {0: BACKGROUND} | {color_value(color): name for name, color in rows}, "colors"
    if table is not None:
        return _TABLES[table.name.casefold()](reading, table, masks)
    if _are_in_color(masks):
        raise _ask_for_colors(masks)
    values = count_values(_each(reading.each(masks), "values"))
    reading.notes.append("the classes have no names: they are called by value; use --rename")
    classes = {0: BACKGROUND}
    if set(values) != {0, _WHITE}:
        # In masks of only black and white, white is a class.
        classes[_WHITE] = IGNORED
    for value in sorted(values):
        if value not in classes:
            classes[value] = reading.class_of(f"label {value}")
    return classes, "values"


def _ask_for_colors(masks: list[File]) -> NacreError:
    counts = count_values(_each(masks[:_MAX_SAMPLES], "colors"))
    fractions = [
        f"{shown_color(color)} ({count / counts.total():.1%})"
        for color, count in counts.most_common(_MAX_COLORS)
    ]
    more = f" and {len(counts) - _MAX_COLORS:,} more" if len(counts) > _MAX_COLORS else ""
    first = next((color for color, _ in counts.most_common() if color), 0)
    return NacreError(
        f"the masks are in color, but no file names the colors: {', '.join(fractions)}{more}; "
        f'name them with an option such as --colors "{shown_color(first)}=crack"'
    )


def _by_color(reading: Reading, file: File, rows: Iterable[tuple[Any, Color]]) -> Meaning:
    """Return the class by color; black is the background unless it is the color of a class."""
    classes: dict[int, str] = {}
    for spelled, color in rows:
        name = reading.list_class(spelled, file, color)
        if classes.setdefault(color_value(color), name) != name:
            shown = ",".join(map(str, color))
            raise NacreError(f"{brief(file.path)}: two classes have the color {shown}")
    if not classes:
        raise NacreError(f"{brief(file.path)} names no class")
    return {0: BACKGROUND} | classes, "colors"


def _by_value(reading: Reading, file: File, names: Mapping[int, Any]) -> dict[int, str]:
    """Return the class by value."""
    if not names:
        raise NacreError(f"{brief(file.path)} names no class")
    return {value: reading.list_class(name, file) for value, name in names.items()}


def _color_lines(reading: Reading, file: File, masks: list[File]) -> Meaning:
    """Read lines of a name and a color, in any of the usual orders."""
    rows: list[tuple[str, Color]] = []
    for number, line in enumerate(load_text(file).splitlines(), start=1):
        plain = line.strip()
        if not plain or plain.startswith("#") or (number == 1 and not re.search(r"\d", plain)):
            continue
        # The patterns take long for extreme lines.
        forms = _COLOR_LINES if len(plain) < _MAX_LINE_LENGTH else ()
        form = next((match for pattern in forms if (match := pattern.fullmatch(plain))), None)
        color = color_of([int(form[band]) for band in "rgb"]) if form else None
        if form is None or color is None:
            raise NacreError(
                f"{brief(file.path)}, line {number}: {brief(line)!r} is not a name and a color, "
                "such as `crack:255,0,0` or `255 0 0 crack`"
            )
        rows.append((form["name"].strip().strip('"'), color))
    return _by_color(reading, file, rows)


def _color_json(reading: Reading, file: File, masks: list[File]) -> Meaning:
    """Read a table of names and colors, or a list of classes with both."""
    content = load_json(file)
    content = as_dict(content).get("classes", content)
    items = map(as_dict, as_list(content))
    pairs = [(item.get("name") or item.get("title"), item.get("color")) for item in items]
    rows = []
    for name, value in pairs or as_dict(content).items():
        color = color_of(value)
        if color is None:
            raise NacreError(f"{brief(file.path)}: the color of {brief(name)} is {brief(value)}")
        rows.append((name, color))
    return _by_color(reading, file, rows)


def _dataset_meta(reading: Reading, file: File, masks: list[File]) -> Meaning:
    """Read a label map, with the colors of the labels if the masks are in color."""
    content = as_dict(load_json(file))
    names = as_dict(content.get("label_map"))
    if not names or not all(re.fullmatch(r"\d{1,5}", key) for key in names):
        raise NacreError(f"{brief(file.path)} has no `label_map` of numbers and names")
    if not _are_in_color(masks):
        return _by_value(reading, file, {int(key): name for key, name in names.items()}), "values"
    colors = dict(enumerate(map(color_of, as_list(content.get("segmentation_colors")))))
    rows = [(name, color) for key, name in names.items() if (color := colors.get(int(key)))]
    return _by_color(reading, file, rows)


def _value_lines(reading: Reading, file: File, masks: list[File]) -> Meaning:
    """Read lines of a value and a name (Roboflow)."""
    names = {}
    try:
        rows = csv.reader(load_text(file).splitlines(), skipinitialspace=True)
        for number, row in enumerate([row for row in rows if row][1:], start=2):
            if not re.fullmatch(r"\s*\d{1,20}\s*", row[0]):
                where = f"{brief(file.path)}, line {number}"
                raise NacreError(f"{where}: {brief(row)} is not a value and a class")
            names[int(row[0])] = ",".join(row[1:]).strip()
    except csv.Error as error:
        raise NacreError(f"{brief(file.path)} is not valid CSV: {error}") from error
    return {0: BACKGROUND} | _by_value(reading, file, names), "values"


def _name_lines(reading: Reading, file: File, masks: list[File]) -> Meaning:
    """Read names in the order of the values; without a background line, they begin at 1."""
    names = list(_by_value(reading, file, dict(enumerate(load_lines(file)))).values())
    names = names[1:] if names[0] == IGNORED else names
    names = names if names[:1] == [BACKGROUND] else [BACKGROUND, *names]
    classes = dict(enumerate(names))
    if len(names) == 2 and set(count_values(_each(masks, "values"))) == {0, _WHITE}:
        # In masks of only black and white, white is the class.
        classes[_WHITE] = names[1]
    return {_WHITE: IGNORED} | classes, "values"


_TABLES: dict[str, Callable[[Reading, File, list[File]], Meaning]] = {
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
"""Readers of the tables, the most specific first."""
