"""Configs: frozen and typed, what each key affects, and the YAML that people write them in.

An unknown key is an error. So is ``true`` where a number is meant, a number that is not finite or
larger than anything here can be, and a text with control characters. A key affects

    results   what is learned or measured, in every step: the default
    later     what is learned after step 0: runs that differ in it may share their step 0
    nothing   how the machine works and where files lie: a run goes on with another value

and says so with ``Field(…, json_schema_extra=NO_EFFECT)``. Going on with a run, sharing a step 0,
grids and the rows of a report all read it here.

YAML is read as plain data of bounded size and depth, without aliases. Its numbers are those of YAML
1.2: ``1e-4`` is a number, ``1:30`` and ``2020-13-45`` are texts, and so are ``yes`` and ``no``. A
key given twice is an error; usually the last one silently wins.
"""

import re
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin

import yaml
from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic.fields import FieldInfo

from nacre.errors import NacreError, escape_control, has_control_characters
from nacre.utils.io import read_text

MAX_NUMBER = 1e12
MAX_TEXT_LENGTH = 4096


class Config(BaseModel):
    """A part of a config; what a key may be is said beside it."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _means_what_it_says(cls, value: Any, info: ValidationInfo) -> Any:
        field = cls.model_fields[info.field_name or ""]
        _check(value, allow_bool=_mentions(field.annotation, (bool, Any)))
        return value


def _check(value: Any, allow_bool: bool) -> None:
    """Refuse a value, or a list with one, that pydantic would take for another."""
    if isinstance(value, list | tuple):
        for one in value:
            _check(one, allow_bool)
    elif isinstance(value, bool):
        if not allow_bool:
            raise ValueError("true and false are no values here")
    elif isinstance(value, int | float):
        # Not a number is pydantic's to refuse; a comparison with it is never true.
        if abs(value) > MAX_NUMBER:
            raise ValueError(f"the number is too large, at most {MAX_NUMBER:g}")
    elif isinstance(value, str):
        if len(value) > MAX_TEXT_LENGTH:
            raise ValueError(f"the text is too long, at most {MAX_TEXT_LENGTH:,} characters")
        if has_control_characters(value.replace("\n", "").replace("\t", "")):
            raise ValueError("the text holds control characters")


def _mentions(annotation: Any, kinds: tuple[Any, ...]) -> bool:
    """Return whether a type is one of these kinds, or made of one."""
    if annotation in kinds:
        return True
    if get_origin(annotation) in (Union, types.UnionType, tuple, list, dict):
        return any(_mentions(part, kinds) for part in get_args(annotation))
    return False


Effect = Literal["results", "later", "nothing"]

AFTER_STEP_0: dict[str, Any] = {"affects": "later"}
NO_EFFECT: dict[str, Any] = {"affects": "nothing"}


def affects(field: FieldInfo) -> Effect:
    """Return what a key of a config affects."""
    extra = field.json_schema_extra
    found: Effect = extra.get("affects", "results") if isinstance(extra, Mapping) else "results"  # type: ignore[assignment]
    return found


def result_values(config: BaseModel, *, step_0: bool = False) -> dict[str, Any]:
    """Return the values of a config that decide its results, or what its step 0 is, as plain data.

    Args:
        config: Of a run, or a section of one.
        step_0: Leave out what only later steps depend on.
    """
    ignored = {"nothing", "later"} if step_0 else {"nothing"}
    plain = config.model_dump(mode="json")
    found: dict[str, Any] = {}
    for key, field in type(config).model_fields.items():
        if affects(field) in ignored:
            continue
        value = getattr(config, key)
        found[key] = (
            result_values(value, step_0=step_0) if isinstance(value, BaseModel) else plain[key]
        )
    return found


def keys_without_effect(config: type[BaseModel], prefix: str = "") -> set[str]:
    """Return the dotted names of the keys that affect nothing."""
    found: set[str] = set()
    for key, field in config.model_fields.items():
        if affects(field) == "nothing":
            found.add(f"{prefix}{key}")
        elif isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            found |= keys_without_effect(field.annotation, f"{prefix}{key}.")
    return found


MAX_YAML_BYTES = 1 << 18
MAX_YAML_DEPTH = 32

_CORE = ("null", "bool", "int", "float", "str", "seq", "map")
# PyYAML's constructors raise errors of many kinds for values that look right to its patterns.
_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


def read_yaml(path: Path, what: str, must_hold: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; ``must_hold`` says of what, for people."""
    content = parse_yaml(read_text(path, what, MAX_YAML_BYTES), f"{what} {path}")
    if not isinstance(content, dict):
        raise NacreError(f"{what} {path} must hold {must_hold}")
    return content


def parse_yaml(text: str, place: str) -> Any:
    """Return the plain data that a text holds; ``place`` says where it stands, for people."""
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
    """Plain data only, and not more of it than a person would write."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a value that is no alias and not too deep: a few aliases make up millions."""
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if isinstance(event, yaml.AliasEvent):
            raise yaml.YAMLError(f"the alias *{event.anchor} is not read; write its value out")
        self._depth += 1
        if self._depth > MAX_YAML_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MAX_YAML_DEPTH} levels deep")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that was there before."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode):
                continue
            value = self.construct_object(key, deep=deep)
            if value in seen:
                place = f"line {key.start_mark.line + 1}"
                raise yaml.YAMLError(f"{place}: {value!r} is given twice")
            seen.add(value)
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
