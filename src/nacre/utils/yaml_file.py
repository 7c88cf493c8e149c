"""YAML as people write it, read with limits: plain data only, of bounded size, depth and number.

The numbers are those of YAML 1.2: ``1e-4`` is a number, ``1:30`` and ``2020-13-45`` are texts, and
so are ``yes`` and ``no``. A key given twice is an error; usually the last one silently wins.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from nacre.errors import NacreError, printable
from nacre.utils.io import has_surrogate, read_text

MAX_BYTES = 1 << 18
MAX_DEPTH = 32
MAX_NODES = 100_000
"""How many values there are when every alias is written out."""

_CORE = ("null", "bool", "int", "float", "str", "seq", "map", "merge")
# PyYAML's constructors raise errors of many kinds for values that look right to its patterns.
_ERRORS = (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, ArithmeticError)


def read_yaml(path: Path, what: str, must_hold: str) -> dict[str, Any]:
    """Read a YAML file that holds a mapping; ``must_hold`` says of what, for people."""
    content = parse_yaml(read_text(path, what, MAX_BYTES), f"{what} {path}")
    if not isinstance(content, dict):
        raise NacreError(f"{what} {path} must hold {must_hold}")
    return content


def parse_yaml(text: str, place: str) -> Any:
    """Return the plain data that a text holds; ``place`` says where it stands, for people."""
    if len(text) > MAX_BYTES:
        raise NacreError(f"{place} is too long: {len(text):,} characters, at most {MAX_BYTES:,}")
    try:
        return yaml.load(text, Loader=_Loader)
    except RecursionError:
        reason = "it is nested too deeply"
    except _ERRORS as error:
        reason = printable(" ".join(str(error).split()))[:300]
    raise NacreError(f"{place} is not valid YAML: {reason}")


class _Loader(yaml.SafeLoader):
    """Plain data only, and not more of it than a person would write."""

    def __init__(self, stream: str) -> None:
        super().__init__(stream)
        self._depth = 0
        self._sizes: dict[int, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: Any) -> yaml.Node | None:
        """Compose a value, counting its depth and how large it is with all aliases written out."""
        self._depth += 1
        if self._depth > MAX_DEPTH:
            raise yaml.YAMLError(f"it is nested more than {MAX_DEPTH} levels deep")
        is_alias = self.check_event(yaml.AliasEvent)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if node is None:
            return None
        if is_alias and id(node) not in self._sizes:
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: an alias stands within itself")
        self._sizes[id(node)] = size = 1 + sum(self._sizes[id(one)] for one in _children(node))
        if size > MAX_NODES:
            raise yaml.YAMLError(f"it holds more than {MAX_NODES:,} values with its aliases")
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a key that was there before."""
        seen = set()
        for key, _ in node.value:
            if not isinstance(key, yaml.ScalarNode) or key.tag.endswith(":merge"):
                continue
            value = self.construct_object(key, deep=deep)
            if value in seen:
                place = f"line {key.start_mark.line + 1}"
                raise yaml.YAMLError(f"{place}: {value!r} is given twice")
            seen.add(value)
        return super().construct_mapping(node, deep=deep)

    def construct_text(self, node: yaml.ScalarNode) -> str:
        """Refuse half a character, which no file and no terminal could take."""
        text = str(self.construct_scalar(node))
        if has_surrogate(text):
            raise yaml.YAMLError(f"line {node.start_mark.line + 1}: a text with half a character")
        return text

    def construct_whole(self, node: yaml.ScalarNode) -> int:
        """Return a whole number, decimal or hexadecimal."""
        return int(str(self.construct_scalar(node)), 0)


def _children(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [one for pair in node.value for one in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _tag(name: str) -> str:
    return f"tag:yaml.org,2002:{name}"


def _limit_to_plain_data() -> None:
    _Loader.yaml_constructors = {
        tag: make
        for tag, make in yaml.SafeLoader.yaml_constructors.items()
        if tag is None or tag in map(_tag, _CORE)
    }
    _Loader.add_constructor(_tag("str"), _Loader.construct_text)
    _Loader.add_constructor(_tag("int"), _Loader.construct_whole)
    _Loader.yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in rules if tag in (_tag("null"), _tag("merge"))]
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
