import pytest

from nacre.errors import NacreError
from nacre.utils.yaml_file import parse_yaml, read_yaml

BOMB = "a: &a [x, x]\n" + "\n".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join([f'*{chr(97 + i)}'] * 9)}]" for i in range(9)
)


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
        ("base: &a {x: 1}\nmore: {<<: *a, y: 2}", {"base": {"x": 1}, "more": {"x": 1, "y": 2}}),
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
        (BOMB, "more than 100,000 values with its aliases"),
        ("a: &a [*a]", "stands within itself"),
        ("9" * 5000, "not valid YAML"),
        ("!!int x", "not valid YAML"),
        ("!!float x", "not valid YAML"),
        ("!!timestamp x", "not valid YAML"),
        ("!!binary aGk=", "not valid YAML"),
        ("!!python/object/apply:os.system [true]", "not valid YAML"),
        ('"\\ud800"', "half a character"),
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
