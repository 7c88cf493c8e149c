"""Reading JSON piece by piece: a file of any size in the memory of its largest item.

``stream(file, wanted)`` walks a document and yields the values at the wanted places, one after
another; all else is passed over. A place is a tuple of keys, ``"*"`` standing for each item of an
array: ``("annotations", "*")`` yields the annotations of a COCO file one by one.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, BinaryIO

from nacre.errors import NacreError
from nacre.importers.problems import brief

Place = tuple[str, ...]
OnBytes = Callable[[int], None]

LARGEST_ITEM = 1 << 28
"""Characters of the largest single item; a file with a larger one is refused."""

_BLANK = re.compile(r"[ \t\r\n]*")
_CHUNK = 1 << 20
_GLANCE = 1 << 15
_PASSED_OVER = 2


def stream(
    file: BinaryIO, wanted: Collection[Place], name: str, on_bytes: OnBytes | None = None
) -> Iterator[tuple[Place, Any]]:
    """Yield place and value of what is wanted, in the order of the file.

    Args:
        file: The document, in UTF-8 (or UTF-16 or 32 with a mark).
        wanted: Places; the empty tuple is the document itself.
        name: What the file is called in errors.
        on_bytes: Told how many bytes more were read.
    """
    reader = _Reader(file, name, on_bytes or (lambda count: None))
    yield from _walk(reader, (), frozenset(wanted))
    if reader.peek():
        raise reader.error("something follows after its end")


def outline(file: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Yield what a document begins with: the keys of the outer object with a sample of each value.

    The sample of an array is its first item, that of a plain value itself, that of an object is an
    empty dictionary. Of an outer array, the first item is yielded under the key ``*``.
    """
    reader = _Reader(file, name, lambda count: None, _GLANCE)
    start = reader.peek()
    if start == "[":
        reader.take("[")
        if reader.peek() != "]":
            yield "*", reader.value()
        return
    reader.take("{")
    for key in _members(reader):
        start = reader.peek()
        if start == "{":
            yield key, {}
            for _ in _walk(reader, (key,), frozenset()):
                pass
        elif start == "[":
            yield from _outline_array(reader, key)
        else:
            yield key, reader.value()


def _outline_array(reader: "_Reader", key: str) -> Iterator[tuple[str, Any]]:
    reader.take("[")
    is_first = True
    for _ in _items(reader):
        item = reader.value()
        if is_first:
            yield key, item
        is_first = False
    if is_first:
        yield key, None


def load_whole(data: bytes, name: str) -> Any:
    """Parse a small document in one piece."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise NacreError(f"{brief(name)} is not JSON that can be read: {_reason(error)}") from error


def _walk(reader: "_Reader", place: Place, wanted: frozenset[Place]) -> Iterator[tuple[Place, Any]]:
    start = reader.peek()
    # What is not wanted is passed over in pieces: items of the outer arrays, no smaller ones.
    leads_on = len(place) < _PASSED_OVER or any(one[: len(place)] == place for one in wanted)
    is_open = start != "" and start in "{[" and leads_on
    if place in wanted or not is_open:
        value = reader.value()
        if place in wanted:
            yield place, value
        return
    reader.take(start)
    if start == "[":
        for _ in _items(reader):
            yield from _walk(reader, (*place, "*"), wanted)
    else:
        for key in _members(reader):
            yield from _walk(reader, (*place, key), wanted)


def _items(reader: "_Reader") -> Iterator[None]:
    """Yield before each item of an array whose bracket was taken; end behind its closing one."""
    if reader.peek() == "]":
        reader.take("]")
        return
    while True:
        yield
        if reader.peek() == "]":
            reader.take("]")
            return
        reader.take(",")


def _members(reader: "_Reader") -> Iterator[str]:
    """Yield each key of an object whose brace was taken, the reader standing before its value."""
    seen = set()
    if reader.peek() == "}":
        reader.take("}")
        return
    while True:
        key = reader.value()
        if not isinstance(key, str):
            raise reader.error(f"{brief(key)} stands where a key should")
        if key in seen:
            raise reader.error(f"the key {brief(key)!r} is there twice")
        seen.add(key)
        reader.take(":")
        yield key
        if reader.peek() == "}":
            reader.take("}")
            return
        reader.take(",")


class _Reader:
    """A window on the text of a document."""

    def __init__(self, file: BinaryIO, name: str, on_bytes: OnBytes, chunk: int = _CHUNK) -> None:
        self.chunk = chunk
        self.file = file
        self.name = name
        self.on_bytes = on_bytes
        self.decoder = json.JSONDecoder()
        self.text = ""
        self.position = 0
        self.passed = 0
        self.ended = False
        start = file.read(4)
        self.decode = codecs.getincrementaldecoder(encoding_of(start))().decode
        self._append(start)

    def peek(self) -> str:
        """Return the next character that is not blank; nothing at the end."""
        while True:
            self.position = _BLANK.match(self.text, self.position).end()  # type: ignore[union-attr]
            if self.position < len(self.text):
                return self.text[self.position]
            if self.ended:
                return ""
            self._fill(self.chunk)

    def take(self, char: str) -> None:
        """Step over a character that must be next."""
        there = self.peek()
        if there != char:
            raise self.error(
                f"{brief(there)!r} stands where {char!r} should" if there else "it ends too early"
            )
        self.position += 1

    def value(self) -> Any:
        """Read the value that is next as a whole."""
        if not self.peek():
            raise self.error("it ends too early")
        while True:
            try:
                value, end = self.decoder.raw_decode(self.text, self.position)
                # A number that touches the end of the window may go on behind it.
                if end < len(self.text) or self.ended:
                    self.position = end
                    return value
            except RecursionError:
                raise self.error("it is nested too deeply") from None
            except ValueError as error:
                if self.ended:
                    raise self.error(_reason(error)) from error
            if len(self.text) - self.position > LARGEST_ITEM:
                raise self.error(
                    f"it has an item of more than {LARGEST_ITEM:,} characters, or is damaged"
                )
            # Doubling keeps the work of trying again in proportion to the item.
            self._fill(max(self.chunk, len(self.text) - self.position))

    def error(self, reason: str) -> NacreError:
        """Return the error for this place of the document."""
        where = self.passed + self.position
        return NacreError(
            f"{brief(self.name)} is not JSON that can be read: {reason} (character {where:,})"
        )

    def _fill(self, count: int) -> None:
        self.passed += self.position
        self.text, self.position = self.text[self.position :], 0
        self._append(self.file.read(count))

    def _append(self, data: bytes) -> None:
        self.on_bytes(len(data))
        self.ended = not data
        try:
            self.text += self.decode(data, self.ended)
        except UnicodeDecodeError as error:
            raise self.error("it is not text in UTF-8") from error


def encoding_of(start: bytes) -> str:
    """Return what a byte order mark says of a text, and UTF-8 where there is none."""
    for mark, encoding in (
        (codecs.BOM_UTF8, "utf-8-sig"),
        (codecs.BOM_UTF32_LE, "utf-32"),
        (codecs.BOM_UTF32_BE, "utf-32"),
        (codecs.BOM_UTF16_LE, "utf-16"),
        (codecs.BOM_UTF16_BE, "utf-16"),
    ):
        if start.startswith(mark):
            return encoding
    return "utf-8"


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it is nested too deeply"
    if isinstance(error, UnicodeDecodeError):
        return "it is not text in UTF-8"
    message = getattr(error, "msg", None) or str(error)
    return brief(message[:1].lower() + message[1:])
