"""An export being read: what the readers of all formats share, and what they fill.

A reader adds images and, to each, its shapes or the file of its mask. A class is known by its name
alone: the numbers that tools give their classes begin at 0 or at 1, have gaps or are texts, and
never become labels. Shapes stay in memory: about as much as their text in the export.
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
from nacre.importers.shapes import Area, Shape

Color = tuple[int, int, int]
Order = Literal["list", "area"]
Progress = Callable[[str, int, int], None]
Item = TypeVar("Item")
Kinds = Mapping[str, tuple[str, Callable[[Any], Area | None]]]
"""What people call shapes, and what makes the area of one, by a tool's word for them."""


BACKGROUND = "background"
"""The class of what has no class."""

IGNORED = "__ignore__"
"""The class of what does not count."""

NO_OUTLINE = "boxes without an outline"
FEW_CORNERS = "outlines with fewer than three corners"

_BACKGROUND_NAMES = ("background", "_background_", "__background__")
_IGNORED_NAMES = ("__ignore__", "_ignore_")
_LONGEST_NAME = 200


@dataclass(eq=False)
class Image:
    """One image of an export.

    Attributes:
        name: What the export calls it.
        file: Its file; None if there is none.
        split: The split that it belongs to.
        size: Width and height that the annotation was made at, if it says so.
        is_relative: Its shapes are shares of the size, so that only the proportions must fit.
        mask: Its mask file, if its labels are not shapes.
        is_listed: The export names it, so that without a shape it is all background.
        is_labeled: It has labels, be it none.
        shapes: What is painted.
        skipped: Why it has shapes that are not taken.
        problem: Why it cannot be imported, if that is known already.
    """

    name: str
    file: File | None = None
    split: str | None = None
    size: tuple[int, int] | None = None
    is_relative: bool = False
    mask: MaskFile | None = None
    is_listed: bool = True
    is_labeled: bool = True
    shapes: list[Shape] = field(default_factory=list)
    skipped: set[str] = field(default_factory=set)
    problem: Unusable | None = None

    def spoil(self, reason: str, detail: str = "") -> None:
        """Note why the image cannot be imported; the first reason counts."""
        self.problem = self.problem or Unusable(reason, detail)

    @contextmanager
    def noting(self, reason: str = "") -> Iterator[None]:
        """Note what makes the image unusable: a damaged shape, or another problem.

        With a reason, an error that would end the import is no more than that, either.
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
        """Look for the file of the image; several that may be meant are a problem."""
        with self.noting():
            self.file = finder.find(name, near, split)


@dataclass
class Reading:
    """An export and what was found in it so far.

    Attributes:
        export: The export.
        named_colors: What the user says that colors in masks mean.
        progress: Told how far the reading has come.
        order: Which of two shapes lies on top: the later, or the smaller one.
        has_background: False where every pixel has a class or does not count.
        is_sorted: The export has no list of classes, so that they go by their names.
        classes: Color by class, as the export spells it; None where it has no color.
        images: What there is.
        shape_counts: How many shapes of each kind were read.
        skipped_shapes: How many were not, by reason.
        notes: Sentences that people should read.
    """

    export: Export
    named_colors: Mapping[Color, str] = field(default_factory=dict)
    progress: Progress = lambda what, done, total: None
    order: Order = "list"
    has_background: bool = True
    is_sorted: bool = False
    classes: dict[str, Color | None] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)
    shape_counts: Counter[str] = field(default_factory=Counter)
    skipped_shapes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)

    def class_of(self, name: Any, color: Color | None = None) -> str:
        """Return the class that a name in the export means, a new one if it is the first time.

        Raises:
            Unusable: That is no name.
        """
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
        """Return the class that a list in a file names.

        Raises:
            NacreError: That is no name.
        """
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
        **more: Any,
    ) -> Image:
        """Add an image that an annotation in the folder ``near`` names, and find its file."""
        image = Image(name or "(no name)", split=split, **more)
        if name:
            image.find(finder or self.export.finder, name, near, split)
        else:
            image.spoil("the export gives it no file name")
        self.images.append(image)
        return image

    def add_file(self, file: File, split: str | None = None, **more: Any) -> Image:
        """Add an image by its file, without labels unless they are given."""
        more = {"is_labeled": False, "is_listed": False} | more
        self.images.append(Image(file.path, file, split, **more))
        return self.images[-1]

    def add_unlabeled(self, files: Iterable[File]) -> None:
        """Add the images that nothing speaks of; not those of a folder that holds more of them."""
        taken = {image.file for image in self.images}
        for file in files:
            if file not in taken and not file.is_extra:
                self.add_file(file, split_of(file.folder))

    def draw(self, image: Image, name: Any, area: Area | None, title: str) -> None:
        """Add a shape to an image; ``title`` is what people call such shapes."""
        known = self.class_of(name)
        if area is None:
            self.skip(image, FEW_CORNERS)
        else:
            self.shape_counts[title] += 1
            image.shapes.append(Shape(known, area))

    def draw_kind(self, image: Image, kinds: Kinds, kind: str, item: Any, name: Any) -> None:
        """Add a shape of a kind, by the tool's word for it; count it if that has no area."""
        title, make = kinds.get(kind, ("", None))
        if make is None:
            self.skip(image, f"shapes of the kind {brief(kind)!r} have no area")
        else:
            self.draw(image, name, make(item), title)

    def skip(self, image: Image, reason: str) -> None:
        """Count a shape that is not an area."""
        self.skipped_shapes[reason] += 1
        image.skipped.add(reason)

    def stream_json(self, file: File, wanted: Collection[Place]) -> Iterator[tuple[Place, Any]]:
        """Yield the wanted parts of a JSON file of any size."""
        return stream_json(self._chunks(file), wanted, file.path)

    def stream_xml(self, file: File) -> Iterator[tuple[str, Element]]:
        """Yield the elements inside the root of an XML file of any size."""
        return stream_xml(self._chunks(file), file.path)

    def each(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, telling how far the reading has come."""
        whole = list(items)
        for done, item in enumerate(whole):
            self.progress("reading annotations", done, len(whole))
            yield item

    def _chunks(self, file: File) -> Iterator[bytes]:
        done = 0
        for chunk in file.chunks():
            done += len(chunk)
            self.progress(f"reading {brief(file.name)} (kB)", done >> 10, max(file.size >> 10, 1))
            yield chunk


def clean_name(name: str) -> str:
    """Return a class name with single blanks between its words and nothing unprintable."""
    words = "".join(char if char.isprintable() else " " for char in name).split()
    return " ".join(words)[:_LONGEST_NAME]


def color_of(value: Any) -> Color | None:
    """Return a color from ``#ff0000`` or a list of three numbers; None if it is neither."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("#")
        try:
            value = list(bytes.fromhex(digits)) if len(digits) == 6 else []
        except ValueError:
            return None
    three = as_list(value)[:3]
    if len(three) == 3 and all(type(one) is int and 0 <= one <= 255 for one in three):
        return (three[0], three[1], three[2])
    return None


def size_of(width: Any, height: Any) -> tuple[int, int] | None:
    """Return a size from numbers or their texts; None if one is missing or not a size."""
    try:
        wide, high = float(width), float(height)
    except (TypeError, ValueError, OverflowError):
        return None
    if not (0 < wide < 2**31 and 0 < high < 2**31 and wide.is_integer() and high.is_integer()):
        return None
    return int(wide), int(high)


def as_dict(value: Any) -> dict[str, Any]:
    """Return a dictionary, an empty one for anything else."""
    return value if isinstance(value, dict) else {}


def as_list(value: Any) -> list[Any]:
    """Return a list, an empty one for anything else."""
    return value if isinstance(value, list) else []


def as_text(value: Any, default: str) -> str:
    """Return a text, the default for nothing, and a short form of anything else."""
    return brief(value) if value else default


def as_key(value: Any) -> str:
    """Return an identifier as a text, whether the export writes a number or a text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    return str(value)
