"""Typed configs, the effect of each key, and YAML.

A config is frozen. Errors are unknown keys, ``true`` for a number, numbers that are not finite or
too large, and texts with control characters. A key affects one of

    results   what is learned or measured in every step: the default
    later     what is learned after step 0: runs with different values can share step 0
    nothing   the machine and the place of files: a run can resume with another value

A field declares it with ``Field(…, json_schema_extra=NO_EFFECT)``. Resuming, the step cache, grids
and reports use it.

YAML is read as plain data of limited size and depth, without aliases. Numbers follow YAML 1.2:
``1e-4`` is a number; ``1:30``, ``2020-13-45``, ``yes`` and ``no`` are texts. A key that is given
twice is an error.
"""

import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, cast, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from nacre.errors import NacreError, escape_control, has_control_characters
from nacre.utils.io import read_text

MAX_NUMBER = 1e12
MAX_TEXT_LENGTH = 4096


class Config(BaseModel):
    """A config, or a section of one."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _check_value(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        _check(value, allow_bool=_contains_bool(field.annotation))
        return value


def _check(value: Any, allow_bool: bool) -> None:
    """Refuse values that pydantic would convert, and texts and numbers beyond the limits."""
    if isinstance(value, list | tuple):
        for item in value:
            _check(item, allow_bool)
    elif isinstance(value, bool):
        if not allow_bool:
            raise ValueError("true and false are not allowed here")
    elif isinstance(value, int | float):
        # pydantic refuses NaN, for which this comparison is false.
        if abs(value) > MAX_NUMBER:
            raise ValueError(f"the number is too large, at most {MAX_NUMBER:g}")
    elif isinstance(value, str):
        if len(value) > MAX_TEXT_LENGTH:
            raise ValueError(f"the text is too long, at most {MAX_TEXT_LENGTH:,} characters")
        if has_control_characters(value.replace("\n", "").replace("\t", "")):
            raise ValueError("the text contains control characters")


def _contains_bool(annotation: Any) -> bool:
    """Return True if a type allows booleans, alone or inside a container."""
    if annotation in (bool, Any):
        return True
    if get_origin(annotation) in (Union, types.UnionType, tuple, list, dict):
        return any(map(_contains_bool, get_args(annotation)))
    return False


Effect = Literal["results", "later", "nothing"]

AFTER_STEP_0: dict[str, Any] = {"affects": "later"}
NO_EFFECT: dict[str, Any] = {"affects": "nothing"}


def affects(field: FieldInfo) -> Effect:
    """Return the effect of a config key."""
    extra = field.json_schema_extra
    effect: Any = extra.get("affects", "results") if isinstance(extra, Mapping) else "results"
    return cast(Effect, effect)


def result_values(config: BaseModel, *, step_0: bool = False) -> dict[str, Any]:
    """Return the values of a config that affect results, as plain data.

    Args:
        config: A config, or a section of one.
        step_0: Return only the values that affect step 0.
    """
    ignored = {"nothing", "later"} if step_0 else {"nothing"}
    plain = config.model_dump(mode="json")
    values: dict[str, Any] = {}
    for key, field in type(config).model_fields.items():
        if affects(field) in ignored:
            continue
        value = getattr(config, key)
        is_section = isinstance(value, BaseModel)
        values[key] = result_values(value, step_0=step_0) if is_section else plain[key]
    return values


def keys_without_effect(config: type[BaseModel], prefix: str = "") -> set[str]:
    """Return the dotted names of the keys that affect nothing."""
    names: set[str] = set()
    for key, field in config.model_fields.items():
        if affects(field) == "nothing":
            names.add(f"{prefix}{key}")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            names |= keys_without_effect(field.annotation, f"{prefix}{key}.")
    return names


MAX_YAML_BYTES = 1 << 18
MAX_YAML_DEPTH = 32

_CORE = ("null", "bool", "int", "float", "str", "seq", "map")
# PyYAML's constructors raise many kinds of errors for values that match its patterns.
_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


def read_yaml(path: Path, what: str, must_hold: str) -> dict[str, Any]:
    """Read a YAML file with a mapping; ``what`` and ``must_hold`` describe it in errors."""
    content = parse_yaml(read_text(path, what, MAX_YAML_BYTES), f"{what} {path}")
    if not isinstance(content, dict):
        raise NacreError(f"{what} {path} must hold {must_hold}")
    return content


def parse_yaml(text: str, place: str) -> Any:
    """Parse YAML as plain data; ``place`` describes the text in errors."""
    if len(text) > MAX_YAML_BYTES:
        raise NacreError(
            f"{place} is too long: {len(text):,} characters, at most {MAX_YAML_BYTES:,}"
        )
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        reason = "it is nested too deeply"
    except _ERRORS as error:
        reason = escape_control(" ".join(str(error).split()))[:300]
    raise NacreError(f"{place} is not valid YAML: {reason}")


class _Loader(yaml.SafeLoader):
    """Loads plain data of limited depth."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a value; refuse aliases, which can multiply, and deep nesting."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"the alias *{event.anchor} is not allowed; repeat its value")
        self._depth += 1
        if self._depth > MAX_YAML_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MAX_YAML_DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Construct a mapping; refuse duplicate keys."""
        known = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            value = self.construct_object(key, deep=deep)
            if value in known:
                place = f"line {key.start_mark.line + 1}"
                raise yaml.YAMLError(f"{place}: {value!r} is given twice")
            known.add(value)
        return super().construct_mapping(node, deep=deep)


def _tag(name: str) -> str:
    return f"tag:yaml.org,2002:{name}"


def _limit_to_plain_data() -> None:
    _Loader.yaml_constructors = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag in map(_tag, _CORE)
    }
    _Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag == _tag("null")]
        for first, rules in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }
    digits = list("-+.0123456789")
    patterns = (
        ("bool", r"true|True|TRUE|false|False|FALSE", list("tTfF")),
        ("int", r"[-+]?(0|[1-9][0-9_]*|0x[0-9a-fA-F]+)", digits),
        (
            "float",
            r"[-+]?(\.[0-9]+|(0|[1-9][0-9]*)(\.[0-9]*)?)([eE][-+]?[0-9]+)?"
            r"|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)",
            digits,
        ),
    )
    for name, pattern, first in patterns:
        _Loader.add_implicit_resolver(_tag(name), re.compile(f"^(?:{pattern})$"), first)


_limit_to_plain_data()
