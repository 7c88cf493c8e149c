"""JSON and XML read piece by piece, and small text, JSON and YAML files read whole.

``stream_json(chunks, wanted, name)`` yields the values at the wanted places, one after another; all
else is passed over. A place is a tuple of keys, ``"*"`` standing for each item of an array:
``("annotations", "*")`` yields the annotations of a COCO file one by one. It is built on ijson's
plain events: ijson's own ``items`` needs memory that grows with the square of the nesting, which a
file of 100 kB can turn into gigabytes.
"""

import codecs
import json
import re
from collections.abc import Collection, Iterable, Iterator
from contextlib import contextmanager, suppress
from itertools import chain
from typing import Any
from xml.etree.ElementTree import Element, ParseError, TreeBuilder, XMLParser

import ijson

from nacre.errors import NacreError
from nacre.importers.files import File
from nacre.importers.problems import brief
from nacre.utils.config import parse_yaml

Place = tuple[str, ...]
Events = Iterator[tuple[str, Any]]

LARGEST_ITEM = 1 << 26
"""Bytes of the largest item of a JSON or XML file: what is held in memory at a time."""

_DEEPEST_JSON = 500
_DEEPEST_XML = 64
_STARTS = ("start_map", "start_array")
_ENDS = ("end_map", "end_array")
# Python writes these, JSON does not know them; no coordinate can be one.
_NOT_FINITE = re.compile(rb"(?<=[\[:,\s])(?:NaN|-?Infinity)(?=[\],}\s])")
_LONGEST_WORD = 12
_MARKS = (
    (codecs.BOM_UTF8, "utf-8-sig"),
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)


def stream_json(
    chunks: Iterable[bytes], wanted: Collection[Place], name: str
) -> Iterator[tuple[Place, Any]]:
    """Yield place and value of what is wanted, in the order of the document.

    Args:
        chunks: The document, in UTF-8 (or UTF-16 or 32 with a mark).
        wanted: Places; the empty tuple is the document itself.
        name: What the file is called in errors.
    """
    deepest = max(map(len, wanted), default=0)
    # Where a value stands: the key, or a star, in each object or array around it.
    place: list[str] = []
    with _one_sentence(name):
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
                _check_depth(len(place))


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
                return root
        else:
            is_open = event in _STARTS
            if is_open:
                value = {} if event == "start_map" else []
            current = outer[-1]
            if type(current) is list:
                current.append(value)
            else:
                current[key] = value
            if is_open:
                outer.append(value)
                _check_depth(len(outer))
    return root


def _check_depth(depth: int) -> None:
    if depth > _DEEPEST_JSON:
        raise RecursionError


def _json_events(chunks: Iterable[bytes]) -> Events:
    """Yield ijson's plain events."""
    events = ijson.sendable_list()
    parser = ijson.basic_parse_coro(events, use_float=True)
    depth = item_bytes = 0
    for chunk in chain(_as_utf8(chunks), [b""]):
        item_bytes += len(chunk)
        if item_bytes > LARGEST_ITEM:
            raise ValueError(f"it has an item of more than {LARGEST_ITEM:,} bytes, or is damaged")
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
def _one_sentence(name: str) -> Iterator[None]:
    """Turn what a parser raises into one sentence that names the file."""
    try:
        yield
    except NacreError:
        raise
    except (ijson.JSONError, RecursionError, ValueError) as error:
        reason = str(error)
        if isinstance(error, RecursionError):
            reason = "it is nested too deeply"
        elif isinstance(error, UnicodeDecodeError) or "UTF8" in reason:
            reason = "it is not text in UTF-8"
        elif isinstance(error, ijson.JSONError):
            reason = reason.splitlines()[0].partition("error: ")[2].rstrip(".") or reason
        reason = brief(reason[:1].lower() + reason[1:])
        raise NacreError(f"{brief(name)} is not JSON that can be read: {reason}") from error


def load_json(file: File) -> Any:
    """Return a small JSON document, read in one piece."""
    data = file.read()
    with _one_sentence(file.path):
        return json.loads(data)


def load_text(file: File) -> str:
    """Return a text in UTF-8, or in what its byte order mark says."""
    data = file.read()
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


def stream_xml(chunks: Iterable[bytes], name: str) -> Iterator[tuple[str, Element]]:
    """Yield the elements inside the root one by one, each with the tag of the root."""
    builder, num_bytes = _Builder(), 0
    parser = XMLParser(target=builder)
    try:
        for chunk in chunks:
            parser.feed(chunk)
            num_bytes = 0 if builder.items else num_bytes + len(chunk)
            if num_bytes > LARGEST_ITEM:
                raise ValueError(f"an element has more than {LARGEST_ITEM:,} bytes")
            yield from builder.take()
        parser.close()
    except NacreError:
        raise
    except (ParseError, LookupError, ValueError) as error:
        raise NacreError(
            f"{brief(name)} is not XML that can be read: {brief(str(error))}"
        ) from error


class _Builder(TreeBuilder):
    """Builds elements, and forgets those that were taken.

    There are no document types, and so no entities that grow or reach out.
    """

    def __init__(self) -> None:
        super().__init__()
        self.open: list[Element] = []
        self.items: list[Element] = []
        self.root: Element | None = None

    def start(self, tag: str, attributes: dict[str, str]) -> Element:
        """Begin an element."""
        self.open.append(super().start(tag, attributes))
        self.root = self.root if self.root is not None else self.open[0]
        if len(self.open) > _DEEPEST_XML:
            raise ValueError("it is nested too deeply")
        return self.open[-1]

    def end(self, tag: str) -> Element:
        """End an element."""
        element = super().end(tag)
        self.open.pop()
        if len(self.open) == 1:
            self.items.append(element)
        return element

    def doctype(self, *_: object) -> None:
        """Refuse a document type."""
        raise ValueError("it declares a document type (DOCTYPE), with which entities come")

    def take(self) -> Iterator[tuple[str, Element]]:
        """Yield the whole elements inside the root since the last time."""
        if self.root is not None:
            items, self.items = self.items, []
            yield from ((self.root.tag, element) for element in items)
            self.root.clear()
