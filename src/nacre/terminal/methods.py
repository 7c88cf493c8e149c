"""The methods for people: a table of all, without torch, and a screen about one.

The cost beside fine-tuning is an estimate. Time: an update is a forward pass and a backward pass
that takes as long as two; a teacher adds a forward pass, a third of that. A frozen backbone has no
backward pass, and its teacher no forward pass of its own, as both have the same features; what
comes after it is not counted there, so the true figure is higher. What methods do to the parameters
alone does not depend on the pictures and is not counted: 5 to 10 per cent with ResNet-18 and 8
pictures of 160 pixels on a CPU (`benchmarks/methods.py`), less with more.
Memory: fine-tuning keeps three times the parameters on the device (they, their gradients, the
momentum) and the activations; a teacher adds the parameters once (its activations are not kept),
and methods that hold parameters say what they add themselves.
"""

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

TEACHER_TIME = 4 / 3
FROZEN_TIME = 1 / 3


def methods_table(rows: Mapping[str, MethodRow]) -> RenderableType:
    """Return all methods as a table."""
    caption = "`nacre methods NAME` has the equations, the cost and the keys of one."
    table = Table(title="methods", title_justify="left", caption=caption, caption_justify="left")
    for column in ("name", "in tables", "what it does", "paper"):
        table.add_column(column)
    for name, row in rows.items():
        table.add_row(name, row.title, row.summary, row.paper)
    return table


def time_factor(method: "type[Method]") -> str:
    """Return how long an update after step 0 takes beside fine-tuning's."""
    if method.Config(name=method.name).parts.freeze != "nothing":
        return f"x {FROZEN_TIME:.2f}"
    return f"x {TEACHER_TIME if method.uses_teacher else 1:.2f}"


def extra_memory(method: "type[Method]") -> str:
    """Return what a method keeps on the device, in sizes of the parameters."""
    return f"+ {method.extra_param_copies + method.uses_teacher}"


def explain(method: "type[Method]", row: MethodRow) -> RenderableType:
    """Return what a method is, with its equations, what it costs and what can be set."""
    from nacre.methods.parts import PartsConfig

    about = inspect.getdoc(sys.modules[method.__module__]) or row.summary
    cost = f"{time_factor(method)} the time of fine-tuning, {extra_memory(method)} x parameters"
    if not method.learns_by_gradient:
        cost = "one pass over the step's images, without an update"
    title = Text(f"{method.name}: {row.summary}", "bold")
    parts: list[RenderableType] = [title, Text(_paragraphs(about))]
    parts += [Text(f"\nPaper: {row.paper}\nCost: {cost} (an estimate)")]
    options = Table(title=f"\n--set method.…  for {method.name}", title_justify="left")
    for column in ("key", "default", "what it is"):
        options.add_column(column)
    for key, field in method.Config.model_fields.items():
        if key not in ("name", "parts"):
            options.add_row(key, str(field.default), field.description)
    own, refused = method.Config(name=method.name).parts, method.Config.refused_parts()
    for key, field in PartsConfig.model_fields.items():
        if key not in refused:
            options.add_row(f"parts.{key}", str(getattr(own, key)), field.description)
    return Group(*parts, options)


def _paragraphs(text: str) -> str:
    """Join the lines of a paragraph, to be broken where the terminal ends; keep formulas."""
    parts = text.split("\n\n")
    return "\n\n".join(
        part if part.startswith(" ") else " ".join(part.splitlines()) for part in parts
    )
