"""An export being read: what the readers of all formats share, and what they fill.

A reader adds images and, to each, its shapes or the file of its mask; it names the classes as it
meets them. Shapes stay in memory: about as much as their text in the export.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar

from nacre.errors import NacreError
from nacre.importers.documents import (
    Element,
    Place,
    decode_text,
    load_json,
    stream_json,
    stream_xml,
)
from nacre.importers.files import Export, File, Finder
from nacre.importers.masks import BACKGROUND, IGNORED, MaskFile
from nacre.importers.problems import Unusable, brief
from nacre.importers.shapes import Area, Shape
from nacre.utils.config import parse_yaml

Color = tuple[int, int, int]
Boxes = Literal["ask", "fill", "skip"]
Order = Literal["list", "area"]
Progress = Callable[[str, int, int], None]
Item = TypeVar("Item")

NUM_SPECIAL = 2
"""How many class numbers are no class."""

MOST_LAYERS = 1 << 20
NO_AREA = "{} have no area"
SKIPPED_BOX = "boxes are not taken (--boxes skip)"
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
        mask: Its mask file, if its labels are not shapes.
        is_listed: The export names it, so that without a shape it is all background.
        is_labeled: It has labels, be it none.
        embedded: An annotation of LabelMe that has the image inside.
        shapes: What is painted.
        num_skipped: How many more shapes it has that are not areas.
        has_only_boxes: All of these are boxes without an outline.
        problem: Why it cannot be imported, if that is known already.
    """

    name: str
    file: File | None = None
    split: str | None = None
    size: tuple[int, int] | None = None
    mask: MaskFile | None = None
    is_listed: bool = True
    is_labeled: bool = True
    embedded: File | None = None
    shapes: list[Shape] = field(default_factory=list)
    num_skipped: int = 0
    has_only_boxes: bool = True
    problem: Unusable | None = None

    def spoil(self, problem: Unusable) -> None:
        """Note why the image cannot be imported; the first reason counts."""
        if self.problem is None:
            self.problem = problem

    def find(self, finder: Finder, name: str, near: str = "", split: str | None = None) -> None:
        """Look for the file of the image; several that may be meant are a problem."""
        try:
            self.file = finder.find(name, near, split)
        except Unusable as problem:
            self.spoil(problem)


@dataclass
class Reading:
    """An export and what was found in it so far.

    Attributes:
        export: The export.
        boxes: Whether rectangles are areas or only frames around an object.
        named_colors: What the user says that colors in masks mean.
        progress: Told how far the reading has come.
        order: Which of two shapes lies on top: the later, or the smaller one.
        has_background: False where every pixel has a class or does not count.
        is_sorted: The export has no list of classes, so that they go by their names.
        names: Class name by number, as the export spells it; the first two are special.
        dropped: Numbers of classes that are none.
        colors: Color by class number, where the export has colors.
        images: What there is.
        shape_counts: How many shapes of each kind were read.
        skipped_shapes: How many were not, by reason.
        notes: Sentences that people should read.
    """

    export: Export
    boxes: Boxes = "ask"
    named_colors: Mapping[Color, str] = field(default_factory=dict)
    progress: Progress = lambda what, done, total: None
    order: Order = "list"
    has_background: bool = True
    is_sorted: bool = False
    names: list[str] = field(default_factory=lambda: ["background", "(ignored)"])
    dropped: set[int] = field(default_factory=set)
    colors: dict[int, Color] = field(default_factory=dict)
    images: list[Image] = field(default_factory=list)
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

    def list_class(self, name: Any, file: File, color: Color | None = None, place: str = "") -> int:
        """Return the number of a class that a list in a file names.

        Raises:
            NacreError: That is no name.
        """
        try:
            return self.class_id(name, color)
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
        """Add an image that an annotation names, and find its file.

        Args:
            name: What the annotation calls it.
            near: The folder of the annotation.
            split: The split that it belongs to.
            finder: Where to look; among all images by default.
            **more: Further fields of the image.
        """
        image = Image(name, split=split, **more)
        image.find(finder or self.export.finder, name, near, split)
        self.images.append(image)
        return image

    def add_unlabeled(self, file: File, split: str | None = None) -> None:
        """Add an image that the export has and does not speak of."""
        self.images.append(Image(file.path, file, split, is_labeled=False, is_listed=False))

    def draw(
        self, image: Image, class_id: int, area: Area | None, kind: str, layer: int = 0
    ) -> None:
        """Add a shape to an image; ``kind`` is what people call such a shape."""
        if area is None:
            self.skip(image, FEW_CORNERS)
            return
        self.shape_counts[kind] += 1
        image.shapes.append(Shape(class_id, area, layer))

    def skip(self, image: Image, reason: str) -> None:
        """Count a shape that is not an area."""
        self.skipped_shapes[reason] += 1
        image.num_skipped += 1
        image.has_only_boxes &= reason == NO_OUTLINE

    def takes(self, image: Image, kind: str, kinds: Mapping[str, str], no_area: Any) -> bool:
        """Return whether shapes of a kind are areas; count those that are not.

        Args:
            image: The image that has the shape.
            kind: The tool's word for the shape.
            kinds: What people call the shapes that are areas, by the tool's word.
            no_area: The same for those that are none.
        """
        if kind in no_area:
            self.skip(image, NO_AREA.format(no_area[kind]))
        elif kind not in kinds:
            self.skip(image, f"shapes of the kind {brief(kind)!r} are not known")
        elif kinds[kind].endswith("boxes") and self.boxes == "skip":
            self.skip(image, SKIPPED_BOX)
        else:
            return True
        return False

    def stream_json(self, file: File, wanted: Collection[Place]) -> Iterator[tuple[Place, Any]]:
        """Yield the wanted parts of a JSON file of any size."""
        with self.export.open(file) as opened:
            yield from stream_json(opened, wanted, file.path, self._bytes_of(file))

    def stream_xml(self, file: File) -> Iterator[Element]:
        """Yield the elements of an XML file of any size."""
        with self.export.open(file) as opened:
            yield from stream_xml(opened, file.path, self._bytes_of(file))

    def load_json(self, file: File) -> Any:
        """Read a small JSON file."""
        return load_json(self.export.read(file), file.path)

    def load_text(self, file: File) -> str:
        """Read a small text file."""
        return decode_text(self.export.read(file), file.path)

    def load_lines(self, file: File) -> list[str]:
        """Read the lines of a small text file that are not blank, without blanks around them."""
        return [line.strip() for line in self.load_text(file).splitlines() if line.strip()]

    def each(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, telling how far the reading has come."""
        whole = list(items)
        for done, item in enumerate(whole):
            self.progress("reading annotations", done, len(whole))
            yield item

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

    def _bytes_of(self, file: File) -> Callable[[int], None]:
        done = 0

        def tell(count: int) -> None:
            nonlocal done
            done += count
            self.progress(f"reading {brief(file.name)} (kB)", done >> 10, max(file.size >> 10, 1))

        return tell


def load_yaml(export: Export, file: File) -> Any:
    """Read a small YAML file."""
    return parse_yaml(decode_text(export.read(file), file.path), brief(file.path))


def clean_name(name: str) -> str:
    """Return a class name with single blanks between its words and nothing unprintable."""
    words = "".join(char if char.isprintable() else " " for char in name).split()
    return " ".join(words)[:_LONGEST_NAME]


def color_of(value: Any) -> Color | None:
    """Return a color from ``#ff0000`` or a list of three numbers; None if it is neither."""
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


def as_layer(value: Any) -> int:
    """Return the height of a shape in the stack; 0 for anything that is no number."""
    try:
        return max(-MOST_LAYERS, min(MOST_LAYERS, int(float(value))))
    except (TypeError, ValueError, OverflowError):
        return 0
