"""The methods for people: a table of all, without torch, and a screen about one."""

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nacre.methods.table import MethodRow

if TYPE_CHECKING:
    from nacre.methods import Method


def methods_table(rows: Mapping[str, MethodRow]) -> RenderableType:
    """Return all methods as a table."""
    caption = "`nacre methods NAME` has the equations and the keys of one."
    table = Table(title="methods", title_justify="left", caption=caption, caption_justify="left")
    for column in ("name", "in tables", "what it does", "paper"):
        table.add_column(column)
    for name, row in rows.items():
        table.add_row(name, row.title, row.summary, row.paper)
    return table


def explain(method: "type[Method]", row: MethodRow) -> RenderableType:
    """Return what a method is, with its equations and what can be set."""
    from nacre.methods import MethodConfig

    about = inspect.getdoc(sys.modules[method.__module__]) or row.summary
    title = Text(f"{method.name}: {row.summary}", "bold")
    parts: list[RenderableType] = [title, Text(_paragraphs(about))]
    parts += [Text(f"\nPaper: {row.paper}")]
    options = Table(title=f"\n--set method.…  for {method.name}", title_justify="left")
    for column in ("key", "default", "what it is"):
        options.add_column(column)
    fields, common = method.Config.model_fields, MethodConfig.model_fields
    for key, field in sorted(fields.items(), key=lambda one: one[0] in common):
        if key != "name" and key not in method.Config.refused:
            value = ", ".join(field.default) if key == "freeze" else str(field.default)
            options.add_row(key, value, field.description)
    return Group(*parts, options)


def _paragraphs(text: str) -> str:
    """Join the lines of a paragraph, to be broken where the terminal ends; keep formulas."""
    parts = text.split("\n\n")
    return "\n\n".join(
        part if part.startswith(" ") else " ".join(part.splitlines()) for part in parts
    )
