"""Tables of the site that are made from the code: every command with its options, every config key.

A page asks for one with ``<!-- table: commands -->``, ``<!-- table: config -->`` or
``<!-- table: methods -->``.
"""

import json
import re
from collections.abc import Iterator
from typing import Any

import typer
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from nacre.cli.app import PANELS, program
from nacre.data import DATASETS
from nacre.methods import ENTRIES, METHODS
from nacre.models.build import KINDS
from nacre.training.config import LearnConfig, Recipe, RunConfig
from nacre.utils.config import affects

EFFECTS = {"results": "", "later": "after step 0", "nothing": "no result"}


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put the tables in; called by mkdocs for every page."""
    made = {"commands": commands, "config": config, "methods": methods}
    return re.sub(r"<!-- table: (\w+) -->", lambda found: "\n".join(made[found[1]]()), markdown)


def commands() -> Iterator[str]:
    """Yield a part per command, with its options as a table, in the order of the help."""
    known: dict[str, Any] = typer.main.get_command(program).commands  # type: ignore[attr-defined]
    for name, command in ((name, known[name]) for names in PANELS.values() for name in names):
        arguments = [one for one in command.params if one.param_type_name == "argument"]
        usage = " ".join(map(_usage, arguments))
        yield f"\n## nacre {name}\n\n{command.help}\n\n```\nnacre {name} {usage}\n```\n"
        yield from table(
            ("", "", "default"), [_parameter(one) for one in command.params if one.name != "help"]
        )
        if command.epilog:
            yield f"\n{_as_code(command.epilog)}\n"


def _usage(argument: Any) -> str:
    name = argument.name.upper() + ("…" if argument.nargs == -1 else "")
    return name if argument.required else f"[{name}]"


def _parameter(one: Any) -> tuple[str, str, str]:
    name = one.name.upper() if one.param_type_name == "argument" else ", ".join(one.opts)
    default = "" if one.default in (None, False) or callable(one.default) else f"`{one.default}`"
    return f"`{name}`", one.help or "", default


def _as_code(epilog: str) -> str:
    """Set the commands of an epilog's examples as code."""
    head, *examples = epilog.split("\n\n")
    lines = [text.partition("  ") for text in examples]
    return f"{head} " + "; ".join(f"`{code}` {remark}".strip() for code, _, remark in lines)


def config() -> Iterator[str]:
    """Yield a table per section of the config."""
    top = {k: v for k, v in RunConfig.model_fields.items() if not _is_section(v)}
    yield "\n## A run\n"
    yield from keys("", top)
    step = {k: v for k, v in LearnConfig.model_fields.items() if k not in Recipe.model_fields}
    yield "\n## A step of nacre learn\n"
    yield from keys("", step)
    for name, field in RunConfig.model_fields.items():
        if name in ("method", "data", "model") or not _is_section(field):
            continue
        yield from section(name, field.annotation)
    for kind, network in KINDS.items():
        yield from section("model", network.config, f" of kind {kind}")
    for data, row in DATASETS.items():
        yield from section("data", row.config, f" of {data}")
    for name, method in METHODS.items():
        yield from section("method", method.Config, f" of {name}")


def methods() -> Iterator[str]:
    """Yield the table of methods."""
    rows = [(f"`{name}`", one.title, one.summary, one.paper) for name, one in ENTRIES.items()]
    yield from table(("name", "in tables", "", "paper"), rows)


def section(name: str, model: Any, whose: str = "") -> Iterator[str]:
    """Yield the table of one config class; those without keys of their own are left out."""
    titled = "kind" if name == "model" else "name"  # it stands in the title
    named = {key: field for key, field in model.model_fields.items() if key != titled}
    fields = {key: field for key, field in named.items() if not _is_section(field)}
    if fields:
        yield f"\n## {name}{whose}\n"
        yield from keys(f"{name}.", fields)


def keys(prefix: str, fields: dict[str, FieldInfo]) -> Iterator[str]:
    """Yield the keys of a section."""
    rows = [
        (f"`{prefix}{key}`", field.description or "", _default(field), EFFECTS[affects(field)])
        for key, field in fields.items()
    ]
    yield from table(("key", "", "default", "changes"), rows)


def _default(field: FieldInfo) -> str:
    value = None if field.is_required() else field.get_default(call_default_factory=True)
    if value in (None, (), {}):
        return ""
    return f"`{json.dumps(value) if isinstance(value, bool) else value}`"


def _is_section(field: FieldInfo) -> bool:
    return isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)


def table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> Iterator[str]:
    """Yield the lines of a table."""
    yield f"\n| {' | '.join(head)} |\n|{'---|' * len(head)}"
    for row in rows:
        yield f"| {' | '.join(' '.join(cell.split()).replace('|', '&#124;') for cell in row)} |"
