"""JSON and XML piece by piece: the same values as in one piece; every damage in one sentence."""

import json
import tracemalloc
from collections.abc import Iterator
from typing import Any

import pytest

from nacre.errors import NacreError
from nacre.importers import documents

DOCUMENT: dict[str, Any] = {
    "info": {"a": [1, {"b": None}], "text": 'a "quoted" \\ one'},
    "images": [{"id": i, "name": "ü" * (i % 7), "size": [i * 1.5, -i]} for i in range(200)],
    "empty": [],
    "none": {},
    "deep": {"list": [[[]], [[1]]]},
    "number": 1234567890123456789,
    "annotations": [[i] * (i % 50) for i in range(200)],
}


def cut(data: bytes, size: int = 1 << 16) -> Iterator[bytes]:
    """Yield some bytes at a time; few enough cut every token somewhere."""
    yield from (data[i : i + size] for i in range(0, len(data), size))


sizes = pytest.mark.parametrize("size", [1, 3, 64, 1 << 20])


@sizes
@pytest.mark.parametrize("indent", [None, 2])
def test_wanted_items_come_one_by_one(size: int, indent: int | None) -> None:
    data = json.dumps(DOCUMENT, indent=indent, ensure_ascii=False).encode()
    wanted = [("images", "*"), ("annotations", "*"), ("deep", "list"), ("number",)]
    found = list(documents.stream_json(cut(data, size), wanted, "x.json"))
    assert [value for place, value in found if place[0] == "images"] == DOCUMENT["images"]
    assert [value for place, value in found if place[0] == "annotations"] == DOCUMENT["annotations"]
    assert [value for place, value in found if len(place) == 1] == [DOCUMENT["number"]]
    assert (("deep", "list"), DOCUMENT["deep"]["list"]) in found


@sizes
def test_an_outer_array_and_a_whole_document(size: int) -> None:
    data = json.dumps(DOCUMENT["images"]).encode()
    items = [value for _, value in documents.stream_json(cut(data, size), [("*",)], "x")]
    assert items == DOCUMENT["images"]
    whole = list(documents.stream_json(cut(data, size), [()], "x"))
    assert whole == [((), DOCUMENT["images"])]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(encoding: str) -> None:
    data = json.dumps(DOCUMENT, ensure_ascii=False).encode(encoding)
    found = list(documents.stream_json(cut(data), [("images", "*")], "x"))
    assert [value for _, value in found] == DOCUMENT["images"]


@sizes
def test_any_cut_is_told_in_one_sentence(size: int) -> None:
    data = json.dumps({"images": [{"id": 1, "x": "y"}, 2.5], "annotations": [[], None]}).encode()
    for end in range(len(data)):
        with pytest.raises(NacreError, match=r"x\.json is not valid JSON: .*"):
            list(documents.stream_json(cut(data[:end], size), [("images", "*")], "x.json"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "premature EOF"),
        ('{"a": 1} 2', "trailing garbage"),
        ("{1: 2}", "invalid object key"),
        ('{"a" 1}', "separated by a colon"),
        ("[1 2]", "after array element"),
        ("[" * 100_000, "nested too deeply"),
        ('{"images": ' + "[" * 5000 + "]" * 5000 + "}", "nested too deeply"),
        ('{"a": tru}', "invalid string in json text"),
        ('{"a": ' + "9" * 5000 + "}", "integer overflow"),
    ],
)
def test_damage(text: str, message: str) -> None:
    with pytest.raises(NacreError, match=message):
        list(documents.stream_json(cut(text.encode()), [("*", "*")], "x.json"))


def test_what_is_not_utf_8_is_said() -> None:
    with pytest.raises(NacreError, match="not text in UTF-8"):
        list(documents.stream_json(cut(b'{"a": "\xff\xfe"}'), [("a",)], "x.json"))


@pytest.mark.parametrize("size", [13, 64, 1 << 16])
def test_numbers_that_json_does_not_know_are_null(size: int) -> None:
    data = json.dumps([[float("nan"), 1.5], {"area": float("-inf")}, "NaN", " " * 50, float("nan")])
    items = list(documents.stream_json(cut(data.encode(), size), [("*",)], "x"))
    assert [value for _, value in items] == [[None, 1.5], {"area": None}, "NaN", " " * 50, None]


def test_deep_nesting_costs_no_memory() -> None:
    data = b'{"a": ' + b"[" * 200_000
    tracemalloc.start()
    try:
        with pytest.raises(NacreError, match="nested too deeply"):
            list(documents.stream_json(cut(data), [("a",)], "x"))
        assert tracemalloc.get_traced_memory()[1] < 8 << 20
    finally:
        tracemalloc.stop()


def test_an_item_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents, "MAX_ITEM_BYTES", 1000)
    data = json.dumps([["x" * 10_000]]).encode()
    with pytest.raises(NacreError, match="item of more than 1,000 bytes"):
        list(documents.stream_json(cut(data, 100), [("*",)], "x"))
    with pytest.raises(NacreError, match="item of more than 1,000 bytes"):
        list(documents.stream_xml(cut(b'<a x="' + b"1, " * 10_000, 100), "x.xml"))


def test_xml_elements_inside_the_root_in_order() -> None:
    text = '<a><b x="1">one &amp; two<d/></b><c x="2"/></a>'
    for size in (1, 7, 1000):
        found = list(documents.stream_xml(cut(text.encode(), size), "x.xml"))
        assert [(root, one.tag, one.get("x")) for root, one in found] == [
            ("a", "b", "1"),
            ("a", "c", "2"),
        ]
        assert (found[0][1].text, found[0][1][0].tag) == ("one & two", "d")


BOMB = (
    '<?xml version="1.0"?><!DOCTYPE a [<!ENTITY x "ha">'
    + "".join(f'<!ENTITY x{i} "{"&x;" if i == 0 else f"&x{i - 1};" * 10}">' for i in range(9))
    + "]><a>&x8;</a>"
)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (BOMB, "DOCTYPE"),
        ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><a/>', "DOCTYPE"),
        ("<a>" * 1000, "nested too deeply"),
        ("<a><b></a>", "mismatched tag"),
        ("<a>", "no element found"),
        ("", "no element found"),
        ("<a>&x;</a>", "undefined entity"),
        ('<?xml version="1.0" encoding="nonsense"?><a/>', "unknown encoding"),
        ("<a>\x00</a>", "invalid token"),
    ],
)
def test_xml_that_is_refused(text: str, message: str) -> None:
    # Once: the reason must not be another such sentence.
    once = rf"^x\.xml is not valid XML: (?!.*x\.xml).*{message}"
    with pytest.raises(NacreError, match=once):
        list(documents.stream_xml(cut(text.encode()), "x.xml"))
