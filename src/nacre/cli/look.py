"""Commands that explain: the methods, and the config that a command would use."""

import inspect
import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nacre.cli import app
from nacre.cli.app import argument
from nacre.errors import NacreError

if TYPE_CHECKING:
    from nacre.methods import Method
    from nacre.methods.catalog import MethodEntry

CONFIGURED = ("learn", "run", "tune", "grid", "demo")
"""The commands that have a config."""


@app.command("methods", "nacre methods", "nacre methods mib")
def methods(
    name: Annotated[str | None, argument("NAME", "Method to explain. Default: list all.")] = None,
) -> None:
    """List the methods, or explain one with its equations and options."""
    from nacre.methods import all_entries, find_entry, find_method

    shown = explain(find_method(name), find_entry(name)) if name else methods_table(all_entries())
    app.make_console().print(shown)


@app.command(
    "config",
    "nacre config learn pets --set train.iterations=100",
    "nacre config run scenes/4-2-2/overlapped --method mib --preset small",
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    },
)
def config(
    context: typer.Context,
    name: Annotated[str, argument("COMMAND", "learn, run, tune, grid or demo.")],
) -> None:
    """Print the config (YAML) that a command would use, and run nothing.

    Arguments and options are the command's own, and so are the errors.
    """
    if name not in CONFIGURED:
        raise NacreError(f"nacre {name} has no config; commands with one: {', '.join(CONFIGURED)}")
    assert context.parent is not None
    wanted = context.parent.command.get_command(context.parent, name)  # type: ignore[attr-defined]
    with app.only_config():
        wanted.invoke(wanted.make_context(name, context.args, parent=context.parent))


def methods_table(entries: "Mapping[str, MethodEntry]") -> RenderableType:
    """Return all methods as a table."""
    caption = (
        "`nacre methods NAME` shows the equations and the config keys of one. The default is duo "
        "on pretrained weights, and mib without them and under the presets of the paper."
    )
    table = Table(title="methods", title_justify="left", caption=caption, caption_justify="left")
    for column in ("name", "in tables", "what it does", "paper"):
        table.add_column(column)
    for name, entry in entries.items():
        table.add_row(name, entry.title, entry.summary, entry.paper)
    return table


def explain(method: "type[Method]", entry: "MethodEntry") -> RenderableType:
    """Return a method's description, its equations and its config keys."""
    from nacre.methods import MethodConfig

    about = inspect.getdoc(sys.modules[method.__module__]) or entry.summary
    title = Text(f"{method.name}: {entry.summary}", "bold")
    options = Table(title=f"\n--set method.…  for {method.name}", title_justify="left")
    for column in ("key", "default", "what it is"):
        options.add_column(column)
    fields, common = method.Config.model_fields, MethodConfig.model_fields
    for key, field in sorted(fields.items(), key=lambda one: one[0] in common):
        if key != "name" and key not in method.Config.refused:
            value = ", ".join(field.default) if key == "freeze" else str(field.default)
            options.add_row(key, value, field.description)
    return Group(title, Text(_join_lines(about)), Text(f"\nPaper: {entry.paper}"), options)


def _join_lines(text: str) -> str:
    """Join the lines of each paragraph so that the terminal wraps them; keep formulas."""
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.splitlines())
        for paragraph in text.split("\n\n")
    )
