from typing import Any

import pytest
from pydantic import Field

from nacre.errors import NacreError, check, did_you_mean, escape_control, shown
from nacre.utils.config import Config, parse_yaml, read_yaml


class Inner(Config):
    rates: tuple[int, ...] = (1,)
    on: bool = False


class Outer(Config):
    count: int = Field(1, ge=1)
    share: float | None = None
    name: str = ""
    inner: Inner = Inner()
    anything: dict[str, Any] = {}


@pytest.mark.parametrize("value", [True, False])
@pytest.mark.parametrize("key", ["count", "share", "name"])
def test_true_is_no_number(key, value):
    with pytest.raises(NacreError, match=f"{key}: true and false are not allowed here"):
        check(Outer, {key: value})


def test_true_within_a_list_is_no_number_either():
    with pytest.raises(NacreError, match=r"inner\.rates: true and false are not allowed here"):
        check(Outer, {"inner": {"rates": [1, True]}})
    assert check(Outer, {"inner": {"on": True}, "anything": {"on": True}}).inner.on


@pytest.mark.parametrize("value", [float("inf"), float("nan"), ".inf", "nan", 1e30, 10**30, -1e13])
def test_numbers_are_finite(value):
    with pytest.raises(NacreError, match="share: "):
        check(Outer, {"share": value})


def test_numbers_as_texts_are_still_numbers():
    assert check(Outer, {"share": "1e-4", "count": "8"}) == Outer(share=1e-4, count=8)


@pytest.mark.parametrize("value", ["a\x1b[31m", "a\0", "\ud800", "x" * 5000])
def test_texts_are_short_and_harmless(value):
    with pytest.raises(NacreError, match="name: the text ") as caught:
        check(Outer, {"name": value}, "file x")
    message = str(caught.value)
    assert message.startswith("file x: ")
    assert len(message) < 300
    assert escape_control(message) == message


def test_a_message_is_short_whatever_is_wrong():
    with pytest.raises(NacreError) as caught:
        check(Outer, {f"key{i}": i for i in range(1000)} | {"x" * 100_000: 1})
    assert len(str(caught.value)) < 3000
    assert "and 991 more mistakes" in str(caught.value)
    assert did_you_mean("x" * 1_000_000, ["a"]) == ""
    deep: Any = 1
    for _ in range(500):
        deep = [deep] * 9
    assert len(shown(deep)) < 2000
    assert shown(10**5000) == "a number of 16,610 bits"


def test_control_characters_become_visible():
    assert escape_control("a\x1b[2Jb\x9bc\ud800d\u202ee\n") == "a\\x1b[2Jb\\x9bc\\ud800d\\u202ee\n"
    assert escape_control("Größe ×3 …") == "Größe ×3 …"


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1e-4", 1e-4),
        ("1.", 1.0),
        ("-.5e+3", -500.0),
        ("0x1f", 31),
        ("1_000", 1000),
        ("1:30", "1:30"),
        ("2020-13-45", "2020-13-45"),
        ("010", "010"),
        ("0x_", "0x_"),
        ("no", "no"),
        ("true", True),
        ("~", None),
        ("", None),
        ("[1, a, {b: 2.5}]", [1, "a", {"b": 2.5}]),
    ],
)
def test_values_are_those_that_are_written(text, value):
    assert parse_yaml(text, "here") == value


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("a: 1\nb: 2\na: 3", "line 3: 'a' is given twice"),
        ("[" * 10_000, "nested more than"),
        ("- " * 10_000, "nested more than"),
        ("a: " + "{a: " * 500, "nested more than"),
        ("a: &a [x]\nb: [*a, *a]", r"the alias \*a is not allowed"),
        ("9" * 5000, "not valid YAML"),
        ("!!int x", "not valid YAML"),
        ("!!float x", "not valid YAML"),
        ("!!timestamp x", "not valid YAML"),
        ("!!binary aGk=", "not valid YAML"),
        ("!!python/object/apply:os.system [true]", "not valid YAML"),
        ("{[1]: 2}", "not valid YAML"),
        ("a: \x07", "not valid YAML"),
        ("x" * 300_000, "too long"),
    ],
)
def test_what_nobody_would_write_is_one_sentence(text, reason):
    with pytest.raises(NacreError, match=reason) as caught:
        parse_yaml(text, "the value")
    message = str(caught.value)
    assert message.startswith("the value ")
    assert len(message) < 500
    assert "\n" not in message


def test_a_file_must_hold_a_mapping(tmp_path):
    (tmp_path / "a.yaml").write_text("- 1\n")
    with pytest.raises(NacreError, match=r"config file .*a.yaml must hold sections"):
        read_yaml(tmp_path / "a.yaml", "config file", "sections")
