"""The methods for people: a table of all, a screen about one."""

import inspect
import sys

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nacre.methods.base import Method


def methods_table(methods: dict[str, type[Method]]) -> RenderableType:
    """Return all methods as a table."""
    table = Table(title="methods", title_justify="left")
    for column in ("name", "what it does", "paper", "defaults"):
        table.add_column(column)
    for name, method in methods.items():
        table.add_row(name, method.summary, method.paper, ", ".join(_defaults(method)))
    return table


def explain(method: type[Method]) -> RenderableType:
    """Return what a method is, with its equations, and what can be set."""
    about = inspect.getdoc(sys.modules[method.__module__]) or method.summary
    options = Table(title=f"--set method.…  for {method.name}", title_justify="left")
    for column in ("key", "default", "what it is"):
        options.add_column(column)
    for key, field in method.Config.model_fields.items():
        if key != "name":
            options.add_row(key, str(field.default), field.description)
    parts: list[RenderableType] = [Text(method.name, "bold"), Text(about)]
    return Group(*parts, Text(""), options) if options.row_count else Group(*parts)


def _defaults(method: type[Method]) -> list[str]:
    fields = method.Config.model_fields.items()
    return [f"{key}={field.default}" for key, field in fields if key != "name"]
