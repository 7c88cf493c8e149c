"""What the readers of all formats share: export, catalogue to fill, small conversions."""

from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from nacre.errors import NacreError
from nacre.importers.catalog import Catalog, Color, Picture
from nacre.importers.files import jsonstream, xmlstream
from nacre.importers.files.export import Export, Finder
from nacre.importers.files.tree import File
from nacre.importers.problems import Unusable, brief
from nacre.utils.yaml_file import parse_yaml

Boxes = Literal["fill", "skip"]
Item = TypeVar("Item")

MOST_LAYERS = 1 << 20

NO_AREA = "{} have no area"
SKIPPED_BOX = "boxes are not taken (--boxes skip)"


@dataclass
class Source:
    """What a reader reads, and where it puts what it finds.

    Attributes:
        export: The export.
        catalog: To be filled.
        boxes: Whether rectangles are areas or only frames around an object.
        progress: Told how far the reading has come.
    """

    export: Export
    catalog: Catalog
    boxes: Boxes
    progress: Callable[[str, int, int], None]

    def add_picture(
        self,
        name: str,
        *,
        near: str = "",
        split: str | None = None,
        size: tuple[int, int] | None = None,
        finder: Finder | None = None,
        **more: Any,
    ) -> int:
        """Add a picture that an annotation names, find its file, and return its place.

        Args:
            name: What the annotation calls it.
            near: The folder of the annotation.
            split: The split that it belongs to.
            size: The size that it was annotated at.
            finder: Where to look; among all pictures by default.
            **more: Further fields of the picture.
        """
        picture = Picture(name, split=split, size=size, **more)
        try:
            picture.match = (finder or self.export.finder).find(name, near, split)
        except Unusable as problem:
            picture.problem = problem
        return self.catalog.add(picture)

    def list_class(self, name: Any, file: File, color: Color | None = None, place: str = "") -> int:
        """Return the number of a class that a list in a file names.

        Raises:
            NacreError: That is no name.
        """
        try:
            return self.catalog.class_id(name, color)
        except Unusable as problem:
            raise NacreError(f"{brief(file.path)}: {place}{problem.detail}") from None

    def stream_json(
        self, file: File, wanted: Collection[jsonstream.Place]
    ) -> Iterator[tuple[jsonstream.Place, Any]]:
        """Yield the wanted parts of a JSON file of any size."""
        with self.export.open(file) as opened:
            yield from jsonstream.stream(opened, wanted, file.path, self._bytes_of(file))

    def stream_xml(self, file: File) -> Iterator[xmlstream.Element]:
        """Yield the elements of an XML file of any size."""
        with self.export.open(file) as opened:
            yield from xmlstream.stream(opened, file.path, self._bytes_of(file))

    def load_json(self, file: File) -> Any:
        """Read a small JSON file."""
        return jsonstream.load_whole(self.export.read(file), file.path)

    def load_text(self, file: File) -> str:
        """Read a small text file."""
        return load_text(self.export, file)

    def load_yaml(self, file: File) -> Any:
        """Read a small YAML file."""
        return load_yaml(self.export, file)

    def each(self, items: Iterable[Item]) -> Iterator[Item]:
        """Yield items, telling how far the reading has come."""
        whole = list(items)
        for done, item in enumerate(whole):
            self.progress("reading annotations", done, len(whole))
            yield item

    def _bytes_of(self, file: File) -> Callable[[int], None]:
        done = 0

        def tell(count: int) -> None:
            nonlocal done
            done += count
            self.progress(f"reading {brief(file.name)} (kB)", done >> 10, max(file.size >> 10, 1))

        return tell


def load_text(export: Export, file: File) -> str:
    """Read a small text file: in UTF-8, or in what its byte order mark says."""
    content = export.read(file)
    try:
        return content.decode(jsonstream.encoding_of(content))
    except UnicodeDecodeError as error:
        raise NacreError(f"{brief(file.path)} is not text in UTF-8") from error


def load_yaml(export: Export, file: File) -> Any:
    """Read a small YAML file."""
    return parse_yaml(load_text(export, file), brief(file.path))


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
