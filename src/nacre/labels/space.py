"""Label spaces: the meaning of the values in masks, and the index of the values in each mask.

A folder's label space is its ``classes.yaml``::

    classes: {1: cat, 2: dog}   # label value: name; or a list, counted from 1
    background: 0               # pixels without a class; null if every pixel has one
    ignored: 255                # pixels that were not annotated; null if there are none
    colors: {cat: [255, 0, 0]}  # optional

By default, the background is 0 and the ignored value 255, unless these are classes.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from nacre.errors import NacreError, did_you_mean, has_control_characters, shown
from nacre.utils.config import MAX_YAML_BYTES, parse_yaml
from nacre.utils.io import read_text

BACKGROUND = "background"
"""The name of channel 0: pixels without a label, or of classes that are not learned yet."""


@dataclass(frozen=True)
class LabelSpace:
    """The meaning of the values in the masks of one data set.

    Attributes:
        names: Name of each class by label, without the background and the ignored label.
        background: The label of pixels without a class, or None if every pixel has one.
        ignored: The label of pixels that were not annotated (VOC's border), or None.
        ignore_background_in_tests: True if the background means a missing annotation (ADE20K's 0):
            tests ignore it.
        colors: RGB color of a class by label, if the data set has a palette.
    """

    names: Mapping[int, str]
    background: int | None = 0
    ignored: int | None = 255
    ignore_background_in_tests: bool = False
    colors: Mapping[int, tuple[int, int, int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse names and labels that are used twice."""
        label_of: dict[str, int] = {}
        for label, name in self.names.items():
            if name == BACKGROUND:
                raise NacreError(
                    f"label {label} cannot be a class named {BACKGROUND!r}, the name of channel 0; "
                    f"write `background: {label}`"
                )
            if name in label_of:
                raise NacreError(
                    f"class {name!r} is named twice: for the labels {label_of[name]} and {label}"
                )
            label_of[name] = label
        if self.background is not None and self.background == self.ignored:
            raise NacreError(
                f"label {self.background} is both the background and the ignored value"
            )
        for special in (self.background, self.ignored):
            if special is not None and special in self.names:
                raise NacreError(
                    f"label {special} is both the class {self.names[special]!r} "
                    "and the background or the ignored value"
                )

    @cached_property
    def labels(self) -> tuple[int, ...]:
        """The labels of the classes in the order of the data set."""
        return tuple(self.names)

    @cached_property
    def allowed(self) -> frozenset[int]:
        """All values that a mask may contain."""
        special = {value for value in (self.background, self.ignored) if value is not None}
        return frozenset(self.names) | special

    def label_of(self, key: str | int) -> int:
        """Return the label of a class given by name or by label."""
        if isinstance(key, int):
            if key in self.names and not isinstance(key, bool):
                return key
            raise NacreError(
                f"label {shown(key)} is not a class of this data; labels: {ranges(self.names)}"
            )
        for label, name in self.names.items():
            if name == key:
                return label
        hint = did_you_mean(key, self.names.values())
        raise NacreError(
            f"no class is named {shown(key)}{hint}; classes: {', '.join(self.names.values())}"
        )


def white_label(space: LabelSpace, labels: Iterable[int]) -> int | None:
    """Return the ignored label if it is probably the only class: the masks are black and white.

    Args:
        space: The meaning of the labels.
        labels: All labels in the masks.
    """
    is_alone = set(labels) == {space.background, space.ignored}
    return space.ignored if is_alone and len(space.names) == 1 else None


def explain_white_label(space: LabelSpace) -> str:
    """Return what to write in classes.yaml if the ignored label of the masks is the only class."""
    (name,), white = space.names.values(), space.ignored
    return (
        f"the masks contain {space.background} and {white} only, and {white} is ignored: no pixel "
        f"is {name}; if {white} is {name}, write `classes: {{{white}: {name}}}` in classes.yaml"
    )


def ranges(values: Iterable[int]) -> str:
    """Format 1, 2, 3, 7 as ``1..3, 7``."""
    runs: list[list[int]] = []
    for value in sorted(values):
        if runs and value == runs[-1][1] + 1:
            runs[-1][1] = value
        else:
            runs.append([value, value])
    return ", ".join(f"{a}..{b}" if b > a else f"{a}" for a, b in runs)


@dataclass(frozen=True)
class LabelIndex:
    """The labels in the masks of a data set.

    Attributes:
        names: Sorted names of the images; all lists of images have this order.
        pixel_counts: Number of pixels by label value, for each image.
    """

    names: tuple[str, ...]
    pixel_counts: tuple[dict[int, int], ...]

    def __len__(self) -> int:
        return len(self.names)

    @cached_property
    def labels(self) -> tuple[frozenset[int], ...]:
        """The label values in the mask of each image."""
        # The same few sets of labels occur many times: store each once.
        known: dict[frozenset[int], frozenset[int]] = {}
        return tuple(
            known.setdefault(labels, labels) for labels in map(frozenset, self.pixel_counts)
        )


_KEYS = ("classes", "background", "ignored", "colors")
_MAX_LABEL = 65535
_MAX_NAME_LENGTH = 200


def read_classes(path: Path) -> LabelSpace:
    """Read a label space from a ``classes.yaml``."""
    if not path.exists():
        raise NacreError(
            f"could not read {path}: there is no such file; it lists the classes, such as "
            "`classes: {1: cat, 2: dog}`"
        )
    content: Any = parse_yaml(
        read_text(path, "classes file", MAX_YAML_BYTES), f"classes file {path}"
    )
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
    # Among the classes, `0: background` means `background: 0`.
    backgrounds = [label for label, name in names.items() if name == BACKGROUND]
    if backgrounds and "background" not in content:
        del names[backgrounds[0]]
        content = {**content, "background": backgrounds[0]}
    background = _special(content, "background", 0 if 0 not in names else None)
    ignored = _special(content, "ignored", 255 if 255 not in names and background != 255 else None)
    space = LabelSpace(names, background=background, ignored=ignored)
    colors = _colors(space, content.get("colors") or {})
    return LabelSpace(names, background=background, ignored=ignored, colors=colors)


def _class_names(classes: Any) -> dict[int, str]:
    if isinstance(classes, list):
        classes = dict(enumerate(classes, start=1))
    if not isinstance(classes, dict) or not classes:
        raise NacreError("`classes` must be a mapping of label: name, or a list of names")
    names = {}
    for label, name in classes.items():
        if not isinstance(name, str) or not name.strip():
            is_turned = isinstance(label, str) and type(name) is int
            remedy = f"write label: name, as in {{{shown(name)}: {shown(label)[1:-1]}}}"
            raise NacreError(
                f"the class of label {shown(label)} has the name {shown(name)}; "
                + (remedy if is_turned else "it must be text")
            )
        if len(name) > _MAX_NAME_LENGTH or has_control_characters(name):
            raise NacreError(
                f"the class of label {shown(label)} has the name {shown(name)}; it must be text "
                f"of at most {_MAX_NAME_LENGTH} characters, without control characters"
            )
        names[_label(label, f"the label of class {shown(name)}")] = name
    return names


def _special(content: Mapping[str, Any], key: str, default: int | None) -> int | None:
    value = content.get(key, default)
    return None if value is None else _label(value, f"`{key}`")


def _label(value: Any, what: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value <= _MAX_LABEL:
        raise NacreError(
            f"{what} is {shown(value)}; it must be a whole number from 0 to {_MAX_LABEL}"
        )
    return value


def _colors(space: LabelSpace, colors: Any) -> dict[int, tuple[int, int, int]]:
    if not isinstance(colors, dict):
        raise NacreError("`colors` must be a mapping of class (name or label): [red, green, blue]")
    by_label = {}
    for key, value in colors.items():
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise NacreError(f"`colors` names {shown(key)}; it must be a class, by name or label")
        is_color = isinstance(value, list) and len(value) == 3
        if not is_color or any(type(x) is not int or not 0 <= x <= 255 for x in value):
            raise NacreError(
                f"the color of {shown(key)} is {shown(value)}; it must be [red, green, blue]"
            )
        if space.background is not None and key in ("background", space.background):
            label = space.background
        else:
            label = space.label_of(key)
        by_label[label] = (value[0], value[1], value[2])
    return by_label
