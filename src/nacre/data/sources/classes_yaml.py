"""Reading ``classes.yaml``: what the label values in the masks of a folder mean.

::

    classes: {1: cat, 2: dog}   # label value: name; or a list, counted from 1
    background: 0               # what has no class; null if every pixel has one
    ignored: 255                # what was not annotated; null if there is no such label
    colors: {cat: [255, 0, 0]}  # optional

Without the keys, the background is 0 and the ignored value 255, unless these are classes.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nacre.errors import NacreError, did_you_mean, has_control_characters, shown
from nacre.labels.space import BACKGROUND, LabelSpace
from nacre.utils.io import read_text
from nacre.utils.yaml_file import MAX_BYTES, parse_yaml

_KEYS = ("classes", "background", "ignored", "colors")
_LARGEST = 65535
_LONGEST = 200


def read_classes(path: Path) -> LabelSpace:
    """Read what the label values in masks mean from a ``classes.yaml``."""
    if not path.exists():
        raise NacreError(
            f"could not read {path}: there is no such file; it says what the labels mean, such as "
            "`classes: {1: cat, 2: dog}`"
        )
    content: Any = parse_yaml(read_text(path, "classes file", MAX_BYTES), f"classes file {path}")
    if not isinstance(content, dict) or "classes" not in content:
        raise NacreError(f"{path} must have a key `classes`, such as `classes: {{1: cat, 2: dog}}`")
    for key in content:
        if key not in _KEYS:
            raise NacreError(
                f"{path}: unknown key {shown(key)}{did_you_mean(str(key), _KEYS)}; "
                f"known: {', '.join(_KEYS)}"
            )
    try:
        return _label_space(content)
    except NacreError as error:
        raise NacreError(f"{path}: {error}") from error


def _label_space(content: Mapping[str, Any]) -> LabelSpace:
    names = _class_names(content["classes"])
    # `0: background` among the classes is another way to say `background: 0`.
    called = [label for label, name in names.items() if name == BACKGROUND]
    if called and "background" not in content:
        names = {label: name for label, name in names.items() if label != called[0]}
        content = {**content, "background": called[0]}
    background = _special(content, "background", 0 if 0 not in names else None)
    ignored = _special(content, "ignored", 255 if 255 not in names and background != 255 else None)
    space = LabelSpace(names, background=background, ignored=ignored)
    colors = content.get("colors") or {}
    if not isinstance(colors, dict):
        raise NacreError("`colors` must be a table of class (name or label): [red, green, blue]")
    named = {_color_label(space, key): _color(key, value) for key, value in colors.items()}
    return LabelSpace(names, background=background, ignored=ignored, colors=named)


def _class_names(classes: Any) -> dict[int, str]:
    if isinstance(classes, list):
        classes = dict(enumerate(classes, start=1))
    if not isinstance(classes, dict) or not classes:
        raise NacreError("`classes` must be a table of label: name, or a list of names")
    names = {}
    for label, name in classes.items():
        if not isinstance(name, str) or not name.strip():
            raise NacreError(
                f"the class of label {shown(label)} has the name {shown(name)}; it must be a text"
            )
        if len(name) > _LONGEST or has_control_characters(name):
            raise NacreError(
                f"the class of label {shown(label)} has the name {shown(name)}; it must be a text "
                f"of at most {_LONGEST} characters, without control characters"
            )
        names[_label(label, f"the label of class {shown(name)}")] = name
    return names


def _special(content: Mapping[str, Any], key: str, default: int | None) -> int | None:
    value = content.get(key, default)
    return None if value is None else _label(value, f"`{key}`")


def _label(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _LARGEST:
        raise NacreError(
            f"{what} is {shown(value)}; it must be a whole number from 0 to {_LARGEST}"
        )
    return value


def _color_label(space: LabelSpace, key: Any) -> int:
    if (
        isinstance(key, str | int)
        and key in ("background", space.background)
        and space.background is not None
    ):
        return space.background
    if isinstance(key, bool) or not isinstance(key, str | int):
        raise NacreError(f"`colors` names {shown(key)}; it must be a class, by name or label")
    return space.label_of(key)


def _color(key: Any, value: Any) -> tuple[int, int, int]:
    good = isinstance(value, list) and len(value) == 3
    if not good or any(type(one) is not int or not 0 <= one <= 255 for one in value):
        raise NacreError(
            f"the colour of {shown(key)} is {shown(value)}; it must be [red, green, blue]"
        )
    return (value[0], value[1], value[2])
