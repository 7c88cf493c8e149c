"""Readers of JSON, XML, YAML and text files: large ones item by item, small ones whole.

JSON is read through ijson's basic events. ijson's own ``items`` needs memory that grows with the
square of the nesting, so a file of 100 kB could take gigabytes.
"""

import codecs
import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any
from xml.etree.ElementTree import Element, ParseError, XMLPullParser

import ijson
from ijson.common import ObjectBuilder

from nacre.errors import NacreError
from nacre.importers.files import File
from nacre.importers.problems import brief
from nacre.utils.config import parse_yaml

Place = tuple[str, ...]
"""Keys that lead to a value, ``"*"`` for each item of an array: ``("annotations", "*")``."""

Events = Iterator[tuple[str, Any]]

MAX_ITEM_BYTES = 1 << 26
"""Size of the largest item of a JSON or XML file, or of the largest small file.

One item is in memory at a time. A list, an object or an element counts as some extra bytes.
"""

_CONTAINER_BYTES = 32
_MAX_JSON_DEPTH = 500
_MAX_XML_DEPTH = 64
_STARTS = ("start_map", "start_array")
_ENDS = ("end_map", "end_array")
# Python writes these, but they are not JSON. No coordinate can be one.
_NOT_FINITE = re.compile(rb"(?<=[\[:,\s])(?:NaN|-?Infinity)(?=[\],}\s])")
_MAX_WORD_BYTES = 12
_DOCTYPE = b"<!DOCTYPE"
_BYTE_ORDER_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def stream_json(
    chunks: Iterable[bytes], wanted: Collection[Place], name: str
) -> Iterator[tuple[Place, Any]]:
    """Yield place and value of the wanted items of a document, in its order.

    Args:
        chunks: The document.
        wanted: The places of the items.
        name: The name of the file, for errors.
    """
    max_depth = max(map(len, wanted), default=0)
    place: list[str] = []
    with _naming(name, "JSON"):
        events = _json_events(chunks)
        for event, value in events:
            if event == "map_key":
                place[-1] = value
            elif event in _ENDS:
                place.pop()
            elif len(place) <= max_depth and tuple(place) in wanted:
                yield tuple(place), _build(events, event, value)
            elif event in _STARTS:
                place.append("*")
                _check_depth(len(place), _MAX_JSON_DEPTH)


def _build(events: Events, event: str, value: Any) -> Any:
    """Return the value that begins with an event."""
    builder = ObjectBuilder()
    for item in chain([(event, value)], events):
        builder.event(*item)
        _check_depth(len(builder.containers), _MAX_JSON_DEPTH)
        if not builder.containers:
            break
    return builder.value


def _check_depth(depth: int, limit: int) -> None:
    if depth > limit:
        raise ValueError("it is nested too deeply")


def _memory(data: bytes, *opening: bytes) -> int:
    """Return about how many bytes the content of a text takes in memory."""
    return len(data) + _CONTAINER_BYTES * sum(map(data.count, opening))


def _check_memory(num_bytes: int) -> None:
    if num_bytes > MAX_ITEM_BYTES:
        raise ValueError(f"it has an item of more than {MAX_ITEM_BYTES:,} bytes, or is damaged")


def _json_events(chunks: Iterable[bytes]) -> Events:
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, use_float=True)
    depth = item_bytes = 0
    for chunk in chain(_as_utf8(chunks), [b""]):
        item_bytes += _memory(chunk, b"[", b"{")
        _check_memory(item_bytes)
        with suppress(StopIteration):  # at the end of the document
            parser.send(chunk)
        for event in events:
            yield event
            depth += (event[0] in _STARTS) - (event[0] in _ENDS)
            if depth <= 2:
                item_bytes = 0
        events.clear()


def _as_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a document as UTF-8 without a byte order mark, with null for NaN and Infinity."""
    kept, decode = b"", None
    for chunk in chunks:
        if decode is None:
            decode = codecs.getincrementaldecoder(_encoding_of(chunk))().decode
        data = kept + decode(chunk).encode()
        if b"NaN" in data or b"Infinity" in data:
            data = _NOT_FINITE.sub(b"null", data)
        # The next of these words may be cut in two.
        data, kept = data[:-_MAX_WORD_BYTES], data[-_MAX_WORD_BYTES:]
        if data:
            yield data
    if kept:
        yield kept


@contextmanager
def _naming(name: str, language: str) -> Iterator[None]:
    """Turn a parser's errors into one sentence that names the file."""
    try:
        yield
    except NacreError:
        raise
    except (ijson.JSONError, ParseError, LookupError, RecursionError, ValueError) as error:
        reason = str(error)
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        elif isinstance(error, UnicodeDecodeError) or "UTF8" in reason:
            reason = "it is not text in UTF-8"
        elif isinstance(error, ijson.JSONError):
            reason = reason.splitlines()[0].partition("error: ")[2].rstrip(".") or reason
        reason = brief(reason[:1].lower() + reason[1:])
        raise NacreError(f"{brief(name)} is not valid {language}: {reason}") from error


def stream_xml(chunks: Iterable[bytes], name: str) -> Iterator[tuple[str, Element]]:
    """Yield the elements inside the root one by one, each with the tag of the root."""
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    parents, tail, num_bytes = list[Element](), b"", 0
    with _naming(name, "XML"):
        for chunk in chunks:
            # A document type may declare entities, which expand or read files. UTF-16 has zeros.
            if _DOCTYPE in (tail + chunk).replace(b"\0", b""):
                raise ValueError("it declares a document type (DOCTYPE), which is not allowed")
            tail = (tail + chunk)[-2 * len(_DOCTYPE) :]
            num_bytes += _memory(chunk, b"<")
            parser.feed(chunk)
            events: Iterator[Any] = parser.read_events()
            for event, element in events:
                if event == "start":
                    parents.append(element)
                    _check_depth(len(parents), _MAX_XML_DEPTH)
                    continue
                parents.pop()
                if len(parents) == 1:
                    num_bytes = 0
                    yield parents[0].tag, element
                    parents[0].clear()
            _check_memory(num_bytes)
        parser.close()


def load_json(file: File) -> Any:
    """Return the content of a small JSON file."""
    with _naming(file.path, "JSON"):
        data = file.read(MAX_ITEM_BYTES)
        _check_memory(_memory(data, b"[", b"{"))
        return json.loads(data)


def load_text(file: File) -> str:
    """Return a text in UTF-8, or in the encoding of its byte order mark."""
    data = file.read(MAX_ITEM_BYTES)
    try:
        return data.decode(_encoding_of(data))
    except UnicodeDecodeError as error:
        raise NacreError(f"{brief(file.path)} is not text in UTF-8") from error


def load_lines(file: File) -> list[str]:
    """Return the lines of a text that are not blank, stripped."""
    return [line.strip() for line in load_text(file).splitlines() if line.strip()]


def load_yaml(file: File) -> Any:
    """Return the content of a small YAML file."""
    return parse_yaml(load_text(file), brief(file.path))


def _encoding_of(start: bytes) -> str:
    marks = (name for mark, name in _BYTE_ORDER_MARKS if start.startswith(mark))
    return next(marks, "utf-8")
