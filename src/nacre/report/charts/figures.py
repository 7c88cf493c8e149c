"""The charts of a scenario, made from its results: curves over steps, forgetting, losses."""

import math
from collections.abc import Sequence
from statistics import stdev

from nacre.report.charts.charts import (
    STYLES,
    Axis,
    DotRow,
    PlotArea,
    Point,
    Series,
    dot_chart,
    line_chart,
    percent_axis,
    value_axis,
)
from nacre.report.numbers import percent
from nacre.report.results.aggregate import Row, ScenarioResults
from nacre.report.results.runs import RunResult
from nacre.training.events import RunBegan, Trained

GROUPS = {
    "old": "Old classes",
    "new": "New classes of each step",
    "all": "All classes so far",
}

MOST_CLASSES = 40
"""Classes that the chart of forgetting has room for."""

MOST_MARKS = 50
"""Points of a line that have a mark to hover over."""


def styles(results: ScenarioResults) -> dict[str, int | None]:
    """Return the style of each row: a number, or None for the bound."""
    numbers = (i % STYLES for i in range(len(results.rows)))
    return {row.name: None if row.merged else next(numbers) for row in results.rows}


def step_curves(results: ScenarioResults) -> list[tuple[str, str]]:
    """Return old, new and all over the steps: a heading and a chart each."""
    if results.final == 0:
        return []
    values = [
        value
        for row in results.rows
        for group in GROUPS
        for step in range(results.final + 1)
        for value in row.values(step, group)
    ]
    up = percent_axis(values)
    return [(name, _curve(results, group, up)) for group, name in GROUPS.items()]


def _curve(results: ScenarioResults, group: str, up: Axis) -> str:
    steps = range(1 if group == "old" else 0, results.final + 1)
    ticks = tuple((float(step), f"{step}") for step in steps)
    # One step alone stands in the middle and not on the edge.
    spare = 0.5 if len(steps) == 1 else 0.0
    across = Axis(steps[0] - spare, results.final + spare, ticks, "step")
    series = [_series(row, style, group, steps) for row, style in _rows_with_style(results)]
    about = "; ".join(
        f"{one.name}: " + ", ".join(f"step {p.x:g} {percent(p.y)} %" for p in one.points)
        for one in series
    )
    title = f"{results.scenario}: {GROUPS[group].lower()}, mIoU after each step"
    return line_chart(title, about, series, across, up)


def _series(row: Row, style: int | None, group: str, steps: Sequence[int]) -> Series:
    points = []
    for step in steps:
        values, mean = row.values(step, group), row.mean(step, group)
        if mean is not None:
            spread = stdev(values) if len(values) > 1 else None
            tooltip = f"{row.name}, step {step}, {group}: {percent(mean)} %"
            tooltip += f" ± {percent(spread)}" if spread is not None else ""
            points.append(Point(step, mean, tooltip, spread))
    return Series(row.name, style, tuple(points))


def forgetting_chart(results: ScenarioResults) -> str:
    """Return how much of each class every incremental method forgot."""
    rows = [row for name in results.classes if (row := _forgotten(results, name)).marks]
    if not rows:
        return ""
    if len(rows) > MOST_CLASSES:
        rows = sorted(rows, key=lambda row: -max(value for _, value, _ in row.marks))
    rows = rows[:MOST_CLASSES]
    axis = value_axis(
        [value for row in rows for _, value, _ in row.marks],
        "points of IoU lost since the best earlier step",
    )
    about = "; ".join(tooltip for row in rows for _, _, tooltip in row.marks)
    return dot_chart(f"{results.scenario}: forgetting by class", about, rows, axis)


def _forgotten(results: ScenarioResults, name: str) -> DotRow:
    marks = []
    for row, style in _rows_with_style(results):
        value = row.forgetting(name)
        if value is not None:
            tooltip = f"{row.name} forgot {percent(value)} points of {name}"
            marks.append((style, 100 * value, tooltip))
    return DotRow(name, tuple(marks))


def forgetting_is_cut(results: ScenarioResults) -> bool:
    """Say whether the chart of forgetting leaves classes out."""
    return len([name for names in results.groups[:-1] for name in names]) > MOST_CLASSES


def loss_chart(row: Row) -> str:
    """Return the named losses of a row's first run over all iterations, step after step."""
    run = row.runs[0]
    starts = _starts(run)
    series = _loss_series(run, starts)
    if not series:
        return ""
    first = min(p.x for one in series for p in one.points)
    last = max(p.x for one in series for p in one.points)
    up = value_axis([p.y for one in series for p in one.points], "loss")
    across = _iterations(first, last)
    fences = [(x, f"step {step}") for step, x in enumerate(starts) if first <= x < last and step]
    about = "; ".join(
        f"{one.name} from {one.points[0].y:.3g} to {one.points[-1].y:.3g}" for one in series
    )
    frame = PlotArea(right=40)
    title = f"{run.scenario}, {row.name}: losses"
    return line_chart(title, about, series, across, up, frame=frame, fences=fences)


def _loss_series(run: RunResult, starts: Sequence[int]) -> list[Series]:
    """Return each named loss over the iterations, those of a step counted on from `starts`."""
    lines: dict[str, list[Point]] = {}
    for event in run.events:
        if not isinstance(event, Trained) or event.step >= len(starts):
            continue
        x = starts[event.step] + event.iteration
        for name, value in event.losses.items():
            tooltip = f"{name} {value:.4g}, step {event.step}, iteration {event.iteration}"
            lines.setdefault(name, []).append(Point(x, value, tooltip))
    return [
        Series(name, i, tuple(points), every=1 + len(points) // MOST_MARKS)
        for i, (name, points) in enumerate(lines.items())
    ]


def _rows_with_style(results: ScenarioResults) -> list[tuple[Row, int | None]]:
    found = styles(results)
    return [(row, found[row.name]) for row in results.rows]


def _starts(run: RunResult) -> list[int]:
    """Return how many iterations lie before each step."""
    counts: list[int] = next(
        (event.iterations for event in run.events if isinstance(event, RunBegan)), []
    )
    return [sum(counts[:step]) for step in range(max(len(counts), 1))]


def _iterations(first: float, last: float) -> Axis:
    """Return an axis from the first to the last iteration with round ticks between them."""
    size = value_axis([last - first]).ticks[1][0]
    ticks = tuple(
        (i * size, f"{i * size:,.0f}")
        for i in range(math.ceil(first / size), math.floor(last / size) + 1)
    )
    return Axis(first, last, ticks, "iteration")
