"""JSON and XML read piece by piece, and small text, JSON and YAML files read whole.

``stream_json(file, wanted, name)`` walks a document and yields the values at the wanted places, one
after another; all else is passed over. A place is a tuple of keys, ``"*"`` standing for each item
of an array: ``("annotations", "*")`` yields the annotations of a COCO file one by one. It is built
on ijson's plain events: ijson's own ``items`` needs memory that grows with the square of the
nesting, which a file of 100 kB can turn into gigabytes.
"""

import codecs
import json
import re
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO, NamedTuple
from xml.parsers import expat

import ijson

from nacre.errors import NacreError
from nacre.importers.problems import brief

Place = tuple[str, ...]
OnBytes = Callable[[int], None]
Events = Iterator[tuple[str, Any]]

LARGEST_ITEM = 1 << 28
"""Bytes of the largest single item of a JSON file, and of the largest tag of an XML file."""

_CHUNK = 1 << 16
_DEEPEST_JSON = 500
_DEEPEST_XML = 64
_LONGEST_TEXT = 1 << 16
_STARTS = ("start_map", "start_array")
_ENDS = ("end_map", "end_array")
# Python writes these, JSON does not know them; no coordinate can be one.
_NOT_FINITE = re.compile(rb"(?<=[\[:,\s])(?:NaN|-?Infinity)(?=[\],}\s])")
_HELD = 12


def stream_json(
    file: BinaryIO, wanted: Collection[Place], name: str, on_bytes: OnBytes | None = None
) -> Iterator[tuple[Place, Any]]:
    """Yield place and value of what is wanted, in the order of the file.

    Args:
        file: The document, in UTF-8 (or UTF-16 or 32 with a mark).
        wanted: Places; the empty tuple is the document itself.
        name: What the file is called in errors.
        on_bytes: Told how many bytes more were read.
    """
    text = _Text(file, name, on_bytes or (lambda count: None))
    with _one_sentence(name):
        events: Events = ijson.basic_parse(text, use_float=True, buf_size=_CHUNK)
        yield from _walk(events, next(events), (), frozenset(wanted), text)
        for _ in events:
            pass  # an error if something follows


def outline_json(file: BinaryIO, name: str) -> Iterator[tuple[str, Any]]:
    """Yield what a document begins with: the keys of the outer object with a sample of each value.

    The sample of an array is its first item, that of a plain value itself, that of an object is an
    empty dictionary. Of an outer array, the first item is yielded under the key ``*``.
    """
    text = _Text(file, name, lambda count: None)
    with _one_sentence(name):
        events: Events = ijson.basic_parse(text, use_float=True, buf_size=_CHUNK)
        event, _ = next(events)
        if event == "start_array":
            first = next(events)
            if first[0] != "end_array":
                yield "*", _build(events, first)
        elif event == "start_map":
            for _, key in events:
                if key is not None:
                    yield key, _sample(events, text)


def load_json(data: bytes, name: str) -> Any:
    """Parse a small JSON document in one piece."""
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise _bad_json(name, error) from error


def decode_text(data: bytes, name: str) -> str:
    """Return a text in UTF-8, or in what its byte order mark says."""
    try:
        return data.decode(_encoding_of(data))
    except UnicodeDecodeError as error:
        raise NacreError(f"{brief(name)} is not text in UTF-8") from error


def _walk(
    events: Events, first: tuple[str, Any], place: Place, wanted: frozenset[Place], text: "_Text"
) -> Iterator[tuple[Place, Any]]:
    text.item_bytes = 0
    event, _ = first
    if place in wanted:
        yield place, _build(events, first)
    elif event in _STARTS and not any(one[: len(place)] == place for one in wanted):
        _pass_over(events, text)
    elif event == "start_array":
        for item in events:
            if item[0] == "end_array":
                return
            yield from _walk(events, item, (*place, "*"), wanted, text)
    elif event == "start_map":
        seen = set()
        for event, key in events:
            if event == "end_map":
                return
            if key in seen:
                raise _bad_json(text.name, f"the key {brief(key)!r} is there twice")
            seen.add(key)
            yield from _walk(events, next(events), (*place, key), wanted, text)


def _build(events: Events, first: tuple[str, Any]) -> Any:
    """Return the value that begins with an event, without recursion."""
    event, value = first
    if event not in _STARTS:
        return value
    root: Any = {} if event == "start_map" else []
    current, key = root, ""
    outer: list[Any] = []
    for event, value in events:
        if event == "map_key":
            key = value
            continue
        if event in _ENDS:
            if not outer:
                return root
            current = outer.pop()
            continue
        is_open = event in _STARTS
        if is_open:
            value = {} if event == "start_map" else []
        if type(current) is list:
            current.append(value)
        else:
            current[key] = value
        if is_open:
            outer.append(current)
            current = value
            if len(outer) > _DEEPEST_JSON:
                raise RecursionError


def _pass_over(events: Events, text: "_Text") -> None:
    """Step behind the end of an array or object that has begun."""
    depth = 1
    for event, _ in events:
        if event in _STARTS:
            depth += 1
            if depth > _DEEPEST_JSON:
                raise RecursionError
        elif event in _ENDS:
            depth -= 1
            if depth == 1:
                text.item_bytes = 0
            if depth == 0:
                return


def _sample(events: Events, text: "_Text") -> Any:
    event, value = next(events)
    if event == "start_map":
        _pass_over(events, text)
        return {}
    if event != "start_array":
        return value
    first = next(events)
    if first[0] == "end_array":
        return None
    found = _build(events, first)
    _pass_over(events, text)
    return found


class _Text:
    """A JSON document as ijson reads it: UTF-8 without a mark, null for what is not finite."""

    def __init__(self, file: BinaryIO, name: str, on_bytes: OnBytes) -> None:
        self.file = file
        self.name = name
        self.on_bytes = on_bytes
        self.item_bytes = 0
        self.held = b""
        self.start = file.read(4)
        self.decode = codecs.getincrementaldecoder(_encoding_of(self.start))().decode
        self.is_plain = _encoding_of(self.start) == "utf-8"

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes; none only at the end."""
        if size == 0:
            return b""
        while True:
            raw, self.start = self.start + self.file.read(size), b""
            self.on_bytes(len(raw))
            self.item_bytes += len(raw)
            if self.item_bytes > LARGEST_ITEM:
                reason = f"it has an item of more than {LARGEST_ITEM:,} bytes, or is damaged"
                raise _bad_json(self.name, reason)
            data = self.held + (raw if self.is_plain else self.decode(raw, not raw).encode())
            if b"NaN" in data or b"Infinity" in data:
                data = _NOT_FINITE.sub(b"null", data)
            # Such a word may be cut in two.
            self.held = data[-_HELD:] if raw else b""
            data = data[:-_HELD] if raw else data
            if data or not raw:
                return data


@contextmanager
def _one_sentence(name: str) -> Iterator[None]:
    try:
        yield
    except (ijson.JSONError, UnicodeDecodeError, RecursionError) as error:
        raise _bad_json(name, error) from error


def _bad_json(name: str, error: Exception | str) -> NacreError:
    reason = str(getattr(error, "msg", None) or error)
    if isinstance(error, RecursionError):
        reason = "it is nested too deeply"
    elif isinstance(error, UnicodeDecodeError) or "UTF8" in reason:
        reason = "it is not text in UTF-8"
    elif isinstance(error, ijson.JSONError):
        reason = reason.splitlines()[0].partition("error: ")[2].rstrip(".") or reason
    return NacreError(
        f"{brief(name)} is not JSON that can be read: {brief(reason[:1].lower() + reason[1:])}"
    )


def _encoding_of(start: bytes) -> str:
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


class Element(NamedTuple):
    """The beginning or the end of an XML element.

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


def stream_xml(file: BinaryIO, name: str, on_bytes: OnBytes | None = None) -> Iterator[Element]:
    """Yield the beginnings and ends of all elements in the order of the file."""
    parser = _XmlParser(name)
    while True:
        chunk = file.read(_CHUNK)
        if on_bytes is not None:
            on_bytes(len(chunk))
        parser.feed(chunk)
        yield from parser.events
        parser.events.clear()
        if not chunk:
            return


class _XmlParser:
    """Expat without document types, and so without entities that grow or reach out."""

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
        if self.fed - max(self.expat.CurrentByteIndex, 0) > LARGEST_ITEM:
            raise self._error(f"a tag has more than {LARGEST_ITEM:,} bytes")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self.path.append(tag)
        self.texts.append("")
        if len(self.path) > _DEEPEST_XML:
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
