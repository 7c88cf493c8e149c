from typing import Any

import pytest
from pydantic import Field

from nacre.errors import NacreError, check, did_you_mean, printable, shown
from nacre.utils.config import Config


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
    with pytest.raises(NacreError, match=f"{key}: true and false are no values here, not {value}"):
        check(Outer, {key: value})


def test_true_within_a_list_is_no_number_either():
    with pytest.raises(NacreError, match=r"inner\.rates: true and false are no values here"):
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
    assert printable(message) == message


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
    assert printable("a\x1b[2Jb\x9bc\ud800d\u202ee\n") == "a\\x1b[2Jb\\x9bc\\ud800d\\u202ee\n"
    assert printable("Größe ×3 …") == "Größe ×3 …"
