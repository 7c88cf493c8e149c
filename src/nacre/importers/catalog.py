"""What a reader found in an export: classes, pictures, and where the labels of each are.

Shapes are not kept in memory: they go to a spool file on disk as they are read, so that an export
of any size needs only a few numbers a shape. Pictures name their labels by a mask file and how its
values are coded, or by shapes in the spool, or say that there are none.
"""

from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from nacre.importers.files.export import Match
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief
from nacre.importers.shapes.shape import Shape, unpack

Color = tuple[int, int, int]
Order = Literal["list", "area"]
CodingKind = Literal["values", "colors", "ids"]

BACKGROUND = 0
"""The class number of what has no class."""

IGNORED = 1
"""The class number of what does not count."""

NUM_SPECIAL = 2
"""How many class numbers are no class."""

_BACKGROUND_NAMES = ("background", "_background_", "__background__")
_IGNORED_NAMES = ("__ignore__", "_ignore_")
_LONGEST_NAME = 200


@dataclass(frozen=True)
class Coding:
    """How the values in a mask file stand for classes.

    Attributes:
        kind: What a value is: a stored label, a colour (r, g, b) as r + 256 g + 65536 b, or the
            number of a segment, which may be stored as such a colour.
        classes: Class number by value.
    """

    kind: CodingKind
    classes: Mapping[int, int]


@dataclass(frozen=True)
class MaskFile:
    """A file with a label for every pixel."""

    file: File
    coding: Coding


@dataclass(eq=False)
class Picture:
    """One picture of an export.

    Attributes:
        name: What the export calls it.
        match: Its file; None if there is none.
        split: The split that it belongs to.
        size: Width and height that the annotation was made at, if it says so.
        mask: Its mask file, if its labels are not shapes.
        is_listed: The export names it, so that without a shape it is all background.
        is_labeled: It has labels, be it none.
        embedded: A file that holds the picture itself, for `embedded_picture`.
        num_shapes: How many shapes it has.
        num_skipped: How many more it has that are not areas.
        problem: Why it cannot be imported, if that is known already.
    """

    name: str
    match: Match | None = None
    split: str | None = None
    size: tuple[int, int] | None = None
    mask: MaskFile | None = None
    is_listed: bool = True
    is_labeled: bool = True
    embedded: File | None = None
    num_shapes: int = 0
    num_skipped: int = 0
    problem: Unusable | None = None


class Spool:
    """Shapes on disk, by picture."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.places: dict[int, array[int]] = defaultdict(lambda: array("Q"))
        self._file = path.open("wb")
        self._end = 0

    def add(self, picture: int, shape: Shape) -> None:
        """Append a shape of a picture."""
        data = shape.pack()
        self._file.write(data)
        self.places[picture].extend((self._end, len(data)))
        self._end += len(data)

    def close(self) -> None:
        """Write everything out."""
        self._file.close()

    def shapes(self, picture: int) -> Iterator[Shape]:
        """Yield the shapes of a picture in the order in which they were added."""
        places = self.places.get(picture)
        if places is None:
            return
        with self.path.open("rb") as file:
            for i in range(0, len(places), 2):
                file.seek(places[i])
                yield unpack(file.read(places[i + 1]))


@dataclass
class Catalog:
    """All that a reader found.

    Attributes:
        spool: Where the shapes go.
        order: Which of two shapes lies on top: the later, or the smaller one.
        has_background: False where every pixel has a class or does not count.
        is_sorted: The export has no list of classes, so that they go by their names.
        names: Class name by number, as the export spells it; the first two are special.
        dropped: Numbers of classes that are none.
        colors: Colour by class number, where the export has colours.
        pictures: What there is.
        shape_counts: How many shapes of each kind were read.
        skipped_shapes: How many were not, by reason.
        notes: Sentences that people should read.
    """

    spool: Spool
    order: Order = "list"
    has_background: bool = True
    is_sorted: bool = False
    names: list[str] = field(default_factory=lambda: ["background", "(ignored)"])
    dropped: set[int] = field(default_factory=set)
    colors: dict[int, Color] = field(default_factory=dict)
    pictures: list[Picture] = field(default_factory=list)
    shape_counts: Counter[str] = field(default_factory=Counter)
    skipped_shapes: Counter[str] = field(default_factory=Counter)
    notes: list[str] = field(default_factory=list)
    _numbers: dict[str, int] = field(default_factory=dict)

    def class_id(self, name: Any, color: Color | None = None) -> int:
        """Return the number of a class, a new one if it was not named before.

        Raises:
            Unusable: That is no name.
        """
        if not isinstance(name, (str, int, float)) or isinstance(name, bool):
            raise Unusable("a class has no name", f"{brief(name)} is not the name of a class")
        spelled = str(name)
        if spelled not in self._numbers:
            self._numbers[spelled] = self._new_number(spelled)
        number = self._numbers[spelled]
        if color is not None:
            self.colors.setdefault(number, color)
        return number

    def add(self, picture: Picture) -> int:
        """Append a picture and return its place."""
        self.pictures.append(picture)
        return len(self.pictures) - 1

    def draw(self, picture: int, shape: Shape, kind: str) -> None:
        """Add a shape to a picture; ``kind`` is what people call such a shape."""
        self.shape_counts[kind] += 1
        self.pictures[picture].num_shapes += 1
        self.spool.add(picture, shape)

    def skip(self, picture: int, reason: str) -> None:
        """Count a shape that is not an area."""
        self.skipped_shapes[reason] += 1
        self.pictures[picture].num_skipped += 1

    def spoil(self, picture: int, problem: Unusable) -> None:
        """Note why a picture cannot be imported; the first reason counts."""
        if self.pictures[picture].problem is None:
            self.pictures[picture].problem = problem

    def _new_number(self, spelled: str) -> int:
        plain = clean_name(spelled)
        if not plain:
            raise Unusable("a class has no name", f"{brief(spelled)!r} is not the name of a class")
        if plain.casefold() in _BACKGROUND_NAMES:
            return BACKGROUND
        if plain.casefold() in _IGNORED_NAMES:
            return IGNORED
        self.names.append(spelled)
        return len(self.names) - 1


def clean_name(name: str) -> str:
    """Return a class name with single blanks between its words and nothing unprintable."""
    words = "".join(char if char.isprintable() else " " for char in name).split()
    return " ".join(words)[:_LONGEST_NAME]


def color_of(value: Any) -> Color | None:
    """Return a colour from ``#ff0000`` or a list of three numbers; None if it is neither."""
    if isinstance(value, str):
        digits = value.strip().removeprefix("#")
        try:
            number = int(digits, 16) if len(digits) == 6 else -1
        except ValueError:
            return None
        return (number >> 16, number >> 8 & 255, number & 255) if number >= 0 else None
    if isinstance(value, list) and len(value) >= 3:
        three = value[:3]
        if all(type(one) is int and 0 <= one <= 255 for one in three):
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
