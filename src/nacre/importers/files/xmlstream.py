"""Reading XML piece by piece, in bounded memory, without document types and so without entities."""

from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple
from xml.parsers import expat

from nacre.errors import NacreError
from nacre.importers.problems import brief

LARGEST_TAG = 1 << 28
"""Bytes of the largest single tag (a mask is one attribute); larger ones are refused."""

_CHUNK = 1 << 18
_DEEPEST = 64
_LONGEST_TEXT = 1 << 16


class Element(NamedTuple):
    """The beginning or the end of an element.

    Attributes:
        is_start: Which of the two.
        path: Tags from the root to this one.
        attributes: Only at the start.
        text: The text directly inside, only at the end.
    """

    is_start: bool
    path: tuple[str, ...]
    attributes: dict[str, str]
    text: str


def stream(
    file: BinaryIO, name: str, on_bytes: Callable[[int], None] | None = None
) -> Iterator[Element]:
    """Yield the beginnings and ends of all elements in the order of the file."""
    parser = _Parser(name)
    while True:
        chunk = file.read(_CHUNK)
        if on_bytes is not None:
            on_bytes(len(chunk))
        parser.feed(chunk)
        yield from parser.events
        parser.events.clear()
        if not chunk:
            return


class _Parser:
    def __init__(self, name: str) -> None:
        self.name = name
        self.fed = 0
        self.path: list[str] = []
        self.texts: list[str] = []
        self.events: list[Element] = []
        self.expat = expat.ParserCreate()
        self.expat.buffer_text = True
        self.expat.StartElementHandler = self._start
        self.expat.EndElementHandler = self._end
        self.expat.CharacterDataHandler = self._text
        # Without a document type there are no entities, and so none that grow or reach out.
        self.expat.StartDoctypeDeclHandler = self._doctype

    def feed(self, chunk: bytes) -> None:
        try:
            self.expat.Parse(chunk, not chunk)
        except NacreError:  # which is a ValueError, and says all there is to say
            raise
        except expat.ExpatError as error:
            raise self._error(expat.ErrorString(error.code) or "damaged") from error
        except (LookupError, ValueError) as error:
            raise self._error(brief(str(error))) from error
        self.fed += len(chunk)
        if self.fed - max(self.expat.CurrentByteIndex, 0) > LARGEST_TAG:
            raise self._error(f"a tag has more than {LARGEST_TAG:,} bytes")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.path.append(tag)
        self.texts.append("")
        if len(self.path) > _DEEPEST:
            raise self._error("it is nested too deeply")
        self.events.append(Element(True, tuple(self.path), attributes, ""))

    def _end(self, tag: str) -> None:
        self.events.append(Element(False, tuple(self.path), {}, self.texts.pop()))
        self.path.pop()

    def _text(self, text: str) -> None:
        if self.texts and len(self.texts[-1]) < _LONGEST_TEXT:
            self.texts[-1] += text

    def _doctype(self, *_: object) -> None:
        raise self._error("it declares a document type (DOCTYPE), with which entities come")

    def _error(self, reason: str) -> NacreError:
        line = self.expat.CurrentLineNumber
        return NacreError(
            f"{brief(self.name)} is not XML that can be read: {reason} (line {line:,})"
        )
