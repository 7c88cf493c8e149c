"""JSON and XML read piece by piece, and small text, JSON and YAML files read whole.

JSON is read by ijson's plain events: its own ``items`` needs memory that grows with the square of
the nesting, which a file of 100 kB can turn into gigabytes.
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

from nacre.errors import NacreError
from nacre.importers.files import File
from nacre.importers.problems import brief
from nacre.utils.config import parse_yaml

Place = tuple[str, ...]
"""Keys that lead to a value, ``"*"`` for each item of an array: ``("annotations", "*")``."""

Events = Iterator[tuple[str, Any]]

LARGEST_ITEM = 1 << 26
"""Bytes of the largest item of a JSON or XML file, or of a small file: what is in memory at a time.

A list, a mapping or an element counts as some bytes more, because it takes them.
"""

_BYTES_OF_A_PART = 32
_DEEPEST_JSON = 500
_DEEPEST_XML = 64
_STARTS = ("start_map", "start_array")
_ENDS = ("end_map", "end_array")
# Python writes these, JSON does not know them; no coordinate can be one.
_NOT_FINITE = re.compile(rb"(?<=[\[:,\s])(?:NaN|-?Infinity)(?=[\],}\s])")
_LONGEST_WORD = 12
_DOCTYPE = b"<!DOCTYPE"
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def stream_json(
    chunks: Iterable[bytes], wanted: Collection[Place], name: str
) -> Iterator[tuple[Place, Any]]:
    """Yield place and value of what is wanted in a document, in its order; name it in errors."""
    deepest = max(map(len, wanted), default=0)
    place: list[str] = []
    with _one_sentence(name, "JSON"):
        events = _json_events(chunks)
        for event, value in events:
            if event == "map_key":
                place[-1] = value
            elif event in _ENDS:
                place.pop()
            elif len(place) <= deepest and tuple(place) in wanted:
                yield tuple(place), _build(events, event, value)
            elif event in _STARTS:
                place.append("*")
                _check_depth(len(place), _DEEPEST_JSON)


def _build(events: Events, event: str, value: Any) -> Any:
    """Return the value that begins with an event, without recursion."""
    if event not in _STARTS:
        return value
    root: Any = {} if event == "start_map" else []
    outer, key = [root], ""
    for event, value in events:
        if event == "map_key":
            key = value
        elif event in _ENDS:
            outer.pop()
            if not outer:
                break
        else:
            is_open = event in _STARTS
            if is_open:
                value = {} if event == "start_map" else []
            if isinstance(outer[-1], list):
                outer[-1].append(value)
            else:
                outer[-1][key] = value
            if is_open:
                outer.append(value)
                _check_depth(len(outer), _DEEPEST_JSON)
    return root


def _check_depth(depth: int, most: int) -> None:
    if depth > most:
        raise ValueError("it is nested too deeply")


def _weigh(data: bytes, *opening: bytes) -> int:
    """Return about how much memory takes what some bytes describe."""
    return len(data) + _BYTES_OF_A_PART * sum(map(data.count, opening))


def _check_weight(num_bytes: int) -> None:
    if num_bytes > LARGEST_ITEM:
        raise ValueError(f"it has an item of more than {LARGEST_ITEM:,} bytes, or is damaged")


def _json_events(chunks: Iterable[bytes]) -> Events:
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, use_float=True)
    depth = item_bytes = 0
    for chunk in chain(_as_utf8(chunks), [b""]):
        item_bytes += _weigh(chunk, b"[", b"{")
        _check_weight(item_bytes)
        with suppress(StopIteration):  # at the end of the document
            parser.send(chunk)
        for event in events:
            yield event
            depth += (event[0] in _STARTS) - (event[0] in _ENDS)
            if depth <= 2:
                item_bytes = 0
        events.clear()


def _as_utf8(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Yield a document as UTF-8 without a mark, with null for numbers that are not finite."""
    held, decode = b"", None
    for chunk in chunks:
        if decode is None:
            decode = codecs.getincrementaldecoder(_encoding_of(chunk))().decode
        data = held + decode(chunk).encode()
        if b"NaN" in data or b"Infinity" in data:
            data = _NOT_FINITE.sub(b"null", data)
        # Such a word may be cut in two.
        data, held = data[:-_LONGEST_WORD], data[-_LONGEST_WORD:]
        if data:
            yield data
    if held:
        yield held


@contextmanager
def _one_sentence(name: str, kind: str) -> Iterator[None]:
    """Turn what a parser raises into one sentence that names the file."""
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
        raise NacreError(f"{brief(name)} is not {kind} that can be read: {reason}") from error


def stream_xml(chunks: Iterable[bytes], name: str) -> Iterator[tuple[str, Element]]:
    """Yield the elements inside the root one by one, each with the tag of the root."""
    parser: XMLPullParser[Element] = XMLPullParser(("start", "end"))
    around, held, num_bytes = list[Element](), b"", 0
    with _one_sentence(name, "XML"):
        for chunk in chunks:
            # Entities, which grow or reach out, come with a document type; UTF-16 has zeros.
            if _DOCTYPE in (held + chunk).replace(b"\0", b""):
                raise ValueError("it declares a document type (DOCTYPE), with which entities come")
            held = (held + chunk)[-2 * len(_DOCTYPE) :]
            num_bytes += _weigh(chunk, b"<")
            parser.feed(chunk)
            events: Iterator[Any] = parser.read_events()
            for event, element in events:
                if event == "start":
                    around.append(element)
                    _check_depth(len(around), _DEEPEST_XML)
                    continue
                around.pop()
                if len(around) == 1:
                    num_bytes = 0
                    yield around[0].tag, element
                    around[0].clear()
            _check_weight(num_bytes)
        parser.close()


def load_json(file: File) -> Any:
    """Return a small JSON document, read in one piece."""
    with _one_sentence(file.path, "JSON"):
        data = file.read(LARGEST_ITEM)
        _check_weight(_weigh(data, b"[", b"{"))
        return json.loads(data)


def load_text(file: File) -> str:
    """Return a text in UTF-8, or in what its byte order mark says."""
    data = file.read(LARGEST_ITEM)
    try:
        return data.decode(_encoding_of(data))
    except UnicodeDecodeError as error:
        raise NacreError(f"{brief(file.path)} is not text in UTF-8") from error


def load_lines(file: File) -> list[str]:
    """Return the lines of a text that are not blank, without blanks around them."""
    return [line.strip() for line in load_text(file).splitlines() if line.strip()]


def load_yaml(file: File) -> Any:
    """Return a small YAML document."""
    return parse_yaml(load_text(file), brief(file.path))


def _encoding_of(start: bytes) -> str:
    return next((name for mark, name in _MARKS if start.startswith(mark)), "utf-8")
