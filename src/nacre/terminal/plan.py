"""The plan of a scenario or a run and the table of scenarios, for the terminal."""

from collections.abc import Mapping, Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nacre.data import DATASETS
from nacre.methods import find_method
from nacre.scenarios.plan import StepPlan
from nacre.scenarios.scenario import Scenario, read_scenario, shipped_scenarios
from nacre.training.config import RunConfig


def render_plan(scenario: Scenario, plan: list[StepPlan]) -> RenderableType:
    """Return a plan as a picture for the terminal."""
    table = Table(title=f"{scenario.name}: what each step sees", title_justify="left")
    table.add_column("step", justify="right")
    table.add_column("learns", ratio=3)
    table.add_column("images", justify="right")
    table.add_column("hidden in its background (images)", ratio=4)
    with_pixels = plan[0].background is not None
    if with_pixels:
        table.add_column("its background is in truth", min_width=BAR + 2)
    for one in plan:
        row: list[RenderableType] = [str(one.step), _classes(one), f"{one.images:,}", _hidden(one)]
        if one.background is not None:
            row.append(_bar(one.background))
        table.add_row(*row)
    legend = Text.assemble(
        ("█ old classes  ", "magenta"), ("█ future classes  ", "cyan"), ("░ background", "dim")
    )
    return Group(table, legend) if with_pixels else table


BAR = 24


SHOWN = 8


def _classes(one: StepPlan) -> str:
    shown = ", ".join(one.classes[:SHOWN])
    rest = len(one.classes) - SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown


def _hidden(one: StepPlan) -> Text:
    text = Text()
    for kind, found, style in (
        ("old", one.hidden_old, "magenta"),
        ("future", one.hidden_future, "cyan"),
    ):
        if found:
            most = sorted(found.items(), key=lambda item: -item[1])
            named = ", ".join(f"{name} {count:,}" for name, count in most[:5])
            rest = f" and {len(most) - 5} more" if len(most) > 5 else ""
            text.append(f"{kind}: {named}{rest}\n", style)
    text.rstrip()
    return text if text else Text("nothing", "dim")


def _bar(background: dict[str, float]) -> Text:
    old, future = round(background["old"] * BAR), round(background["future"] * BAR)
    bar = Text.assemble(
        ("█" * old, "magenta"), ("█" * future, "cyan"), ("░" * (BAR - old - future), "dim")
    )
    bar.append(f"\nold {background['old']:.1%}, future {background['future']:.1%}")
    return bar


def recipe_table(
    config: RunConfig, updates: Sequence[int], parameters: Mapping[str, int]
) -> RenderableType:
    """Return the resolved method and network of a run, its updates and its parameters."""
    table = Table(title="how it would learn", title_justify="left", show_header=False)
    for part in ("method", "model"):
        values = getattr(config, part).model_dump(mode="json", exclude_none=True)
        table.add_row(part, Text(", ".join(f"{key}={value}" for key, value in values.items())))
    counts = ", ".join(f"{name} {count:,}" for name, count in parameters.items())
    table.add_row("parameters", f"{sum(parameters.values()):,} ({counts})")
    by_gradient = find_method(config.method.name).learns_by_gradient
    table.add_row(
        "updates by step" if by_gradient else "batches by step",
        ", ".join(f"{count:,}" for count in updates),
    )
    table.add_row("batch size", str(config.train.batch_size))
    return table


def scenarios_table() -> RenderableType:
    """Return the data sets with their tasks, and the scenario files that come with nacre."""
    data = Table(title="data / task / setup", title_justify="left")
    for column in ("data", "what it is", "tasks, for example", "setups"):
        data.add_column(column)
    for name, one in DATASETS.items():
        data.add_row(name, one.about, ", ".join(one.examples), ", ".join(one.setups))
    files = Table(title="scenarios that come with nacre", title_justify="left")
    for column in ("name", "data", "setup", "what it is"):
        files.add_column(column)
    for name in shipped_scenarios():
        written = read_scenario(name)
        files.add_row(name, written.data, written.setup, written.about)
    return Group(data, files) if files.row_count else data
