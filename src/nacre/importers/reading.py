"""The content of an export, filled by the reader of its format.

A reader adds images and, to each image, its shapes or its mask file. A class is identified by its
name alone: the numbers of the tools begin at 0 or at 1, have gaps or are texts, and never become
labels. Shapes stay in memory; they take about as much as their text in the export.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar
from xml.etree.ElementTree import Element

from nacre.errors import NacreError
from nacre.importers.documents import Place, stream_json, stream_xml
from nacre.importers.files import Export, File, Finder, split_of
from nacre.importers.masks import MaskFile
from nacre.importers.problems import DAMAGED, Unusable, brief
from nacre.importers.shapes import Area
from nacre.utils.progress import Progress

Color = tuple[int, int, int]
Order = Literal["list", "area"]
Item = TypeVar("Item")
AreaMakers = Mapping[str, Callable[[Any], Area | None]]
"""Function that makes the area of a shape, by the tool's word for its type."""

BACKGROUND = "background"
"""The class of pixels without a class."""

IGNORED = "__ignore__"
"""The class of pixels that do not count."""

NO_OUTLINE = "boxes without an outline"
FEW_CORNERS = "outlines with fewer than three corners"

_BACKGROUND_NAMES = ("background", "_background_", "__background__")
_IGNORED_NAMES = ("__ignore__", "_ignore_")
_MAX_NAME_LENGTH = 200


@dataclass(eq=False)
class Image:
    """An image of an export.

    Attributes:
        name: Its name in the export.
        file: Its file, or None if it is missing.
        split: Its split.
        size: Width and height of the image that was annotated, if known.
        is_relative: True if shapes are fractions of the size, so that only the aspect must fit.
        mask: Its mask file, if its labels are not shapes.
        is_listed: True if the export lists it. Without shapes, it is then all background.
        is_labeled: True if it has labels, which may be empty.
        shapes: The class and the area of each shape.
        skipped: Reasons why shapes are skipped.
        problem: Why it cannot be imported, if that is already known.
    """

    name: str
    file: File | None = None
    split: str | None = None
    size: tuple[int, int] | None = None
    is_relative: bool = False
    mask: MaskFile | None = None
    is_listed: bool = True
    is_labeled: bool = True
    shapes: list[tuple[str, Area]] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    problem: Unusable | None = None

    def spoil(self, reason: str, detail: str = "") -> None:
        """Record why the image cannot be imported, unless there is a reason already."""
        self.problem = self.problem or Unusable(reason, detail)

    @contextmanager
    def noting(self, reason: str = "") -> Iterator[None]:
        """Record a damaged shape or another problem of the image.

        Args:
            reason: The reason to record for an error that would otherwise end the import.
        """
        try:
            yield
        except Unusable as problem:
            self.problem = self.problem or problem
        except NacreError as error:
            if not reason:
                raise
            self.spoil(reason, str(error))
        except ValueError as error:
            self.spoil(DAMAGED, str(error))

    def find(self, finder: Finder, name: str, near: str = "", split: str | None = None) -> None:
        """Look for the file of the image; record a problem if several files fit."""
        with self.noting():
            self.file = finder.find(name, near, split)


@dataclass
class Reading:
    """An export and its content, as far as it has been read.

    Attributes:
        export: The export.
        named_colors: Class by color of mask files, as the user names them.
        progress: Called with the amount read and the total, in kB or files.
        order: Which of two overlapping shapes is on top: the later or the smaller one.
        has_background: False if every pixel has a class or does not count.
        is_sorted: True if the export has no list of classes, so they are sorted by name.
        classes: Color by class in the export's spelling, or None for a class without a color.
        images: The images.
        skipped_shapes: Number of skipped shapes by reason.
        notes: Sentences for the report.
    """

    export: Export
    named_colors: Mapping[Color, str] = field(default_factory=dict)
    progress: Progress = lambda done, total: None
    order: Order = "list"
    has_background: bool = True
    is_sorted: bool = False
    classes: dict[str, Color | None] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)
    skipped_shapes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def class_of(self, name: Any, color: Color | None = None) -> str:
        """Return the class with a name in the export; add it if it is new."""
        is_name = isinstance(name, (str, int, float)) and not isinstance(name, bool)
        spelled = str(name) if is_name else ""
        if spelled not in self.classes:
            plain = clean_name(spelled).casefold()
            if not plain:
                shown = brief(name) if not is_name else repr(brief(spelled))
                raise Unusable("a class has no name", f"{shown} is not the name of a class")
            if plain in _BACKGROUND_NAMES:
                return BACKGROUND
            if plain in _IGNORED_NAMES:
                return IGNORED
        self.classes[spelled] = self.classes.get(spelled) or color
        return spelled

    def list_class(self, name: Any, file: File, color: Color | None = None, place: str = "") -> str:
        """Return the class with a name in a list of classes."""
        try:
            return self.class_of(name, color)
        except Unusable as problem:
            raise NacreError(f"{brief(file.path)}: {place}{problem.detail}") from None

    def add_image(
        self,
        name: str,
        *,
        near: str = "",
        split: str | None = None,
        finder: Finder | None = None,
        **attributes: Any,
    ) -> Image:
        """Add an image that an annotation in the folder ``near`` names, and look for its file."""
        image = Image(name or "(no name)", split=split, **attributes)
        if name:
            image.find(finder or self.export.finder, name, near, split)
        else:
            image.spoil("the export gives it no file name")
        self.images.append(image)
        return image

    def add_file(self, file: File, split: str | None = None, **attributes: Any) -> Image:
        """Add an image by its file; by default it is neither labeled nor listed."""
        attributes = {"is_labeled": False, "is_listed": False} | attributes
        self.images.append(Image(file.path, file, split, **attributes))
        return self.images[-1]

    def add_unlabeled(self, files: Iterable[File]) -> None:
        """Add the image files of the export that no annotation names."""
        used = {image.file for image in self.images}
        for file in files:
            if file not in used and not file.is_extra:
                self.add_file(file, split_of(file.folder))

    def draw(self, image: Image, name: Any, area: Area | None) -> None:
        """Add a shape to an image."""
        known = self.class_of(name)
        if area is None:
            self.skip(image, FEW_CORNERS)
        else:
            image.shapes.append((known, area))

    def draw_as(self, image: Image, makers: AreaMakers, word: str, item: Any, name: Any) -> None:
        """Add a shape by the tool's word for its type, or count it if it has no area."""
        if word in makers:
            self.draw(image, name, makers[word](item))
        else:
            self.skip(image, f"shapes of type {brief(word)!r} have no area")

    def skip(self, image: Image, reason: str) -> None:
        """Count a shape that is not an area."""
        self.skipped_shapes[reason] += 1
        image.skipped.add(reason)

    def stream_json(self, file: File, wanted: Collection[Place]) -> Iterator[tuple[Place, Any]]:
        """Yield the wanted items of a JSON file of any size."""
        return stream_json(self._chunks(file), wanted, file.path)

    def stream_xml(self, file: File) -> Iterator[tuple[str, Element]]:
        """Yield the elements inside the root of an XML file of any size."""
        return stream_xml(self._chunks(file), file.path)

    def each(self, items: Collection[Item]) -> Iterator[Item]:
        """Yield items and show the progress."""
        for done, item in enumerate(items):
            self.progress(done, len(items))
            yield item

    def _chunks(self, file: File) -> Iterator[bytes]:
        done = 0
        for chunk in file.chunks():
            done += len(chunk)
            self.progress(done >> 10, max(file.size >> 10, 1))
            yield chunk


def clean_name(name: str) -> str:
    """Return a class name with single spaces and without unprintable characters."""
    words = "".join(char if char.isprintable() else " " for char in name).split()
    return " ".join(words)[:_MAX_NAME_LENGTH]


def color_of(value: Any) -> Color | None:
    """Return a color from ``#ff0000`` or a list of three numbers, or None."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("#")
        try:
            value = list(bytes.fromhex(digits)) if len(digits) == 6 else []
        except ValueError:
            return None
    bands = as_list(value)[:3]
    if len(bands) == 3 and all(type(band) is int and 0 <= band <= 255 for band in bands):
        return (bands[0], bands[1], bands[2])
    return None


def size_of(width: Any, height: Any) -> tuple[int, int] | None:
    """Return a size from numbers or texts, or None."""
    try:
        wide, high = float(width), float(height)
    except (TypeError, ValueError, OverflowError):
        return None
    if not (0 < wide < 2**31 and 0 < high < 2**31 and wide.is_integer() and high.is_integer()):
        return None
    return int(wide), int(high)


def as_dict(value: Any) -> dict[str, Any]:
    """Return a dictionary, or an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list, or an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_text(value: Any, default: str) -> str:
    """Return a text, the default for nothing, or a short form of anything else."""
    return brief(value) if value else default


def as_key(value: Any) -> str:
    """Return an identifier as a text, whether the export stores a number or a text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)
