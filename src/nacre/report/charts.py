"""The charts of a scenario as inline SVG: curves over steps, and losses.

Every chart has a title and a description as text alternatives, and every mark has a tooltip with
its value. Colors come from the page's style sheet by class (``s0``, ``s1`` …) so that they suit
light and dark pages; marks and dashes distinguish the series without color.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import stdev
from zlib import crc32

from nacre.report.results import Row, RunResult, ScenarioResults, percent
from nacre.training.events import RunBegan, Trained

GROUPS = {
    "old": "Old classes",
    "new": "New classes of each step",
    "all": "All classes so far",
}
STYLES = 8
"""Series with a color of their own; the style sheet has as many."""
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 2", "1 2", "10 2 2 2 2 2")
SHAPES = (
    '<circle r="3.6"/>',
    '<path d="M-3.4 -3.4H3.4V3.4H-3.4Z"/>',
    '<path d="M0 -4.6L4.4 3.4H-4.4Z"/>',
    '<path d="M0 -5L5 0L0 5L-5 0Z"/>',
    '<path d="M0 4.6L4.4 -3.4H-4.4Z"/>',
    '<path d="M-1.68 -4.6H1.68V-1.68H4.6V1.68H1.68V4.6H-1.68V1.68H-4.6V-1.68H-1.68Z"/>',
)
MAX_MARKS = 50
"""Points of a line with a mark to hover over."""
MAX_LABEL = 9
"""Characters of a name that fit beside the end of its line."""


@dataclass(frozen=True)
class Axis:
    """An axis: its range, its ticks (place and text) and its name."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    name: str = ""


@dataclass(frozen=True)
class PlotArea:
    """The plotting area in view-box units."""

    width: int = 360
    height: int = 230
    left: int = 34
    right: int = 58
    top: int = 12
    bottom: int = 34

    @property
    def end(self) -> int:
        """The right edge of the plotting area."""
        return self.width - self.right

    @property
    def floor(self) -> int:
        """The lower edge of the plotting area."""
        return self.height - self.bottom

    def x(self, value: float, axis: Axis) -> float:
        """Return the horizontal place of a value."""
        share = (value - axis.low) / ((axis.high - axis.low) or 1)
        return round(self.left + share * (self.end - self.left), 2)

    def y(self, value: float, axis: Axis) -> float:
        """Return the vertical place of a value."""
        share = (value - axis.low) / ((axis.high - axis.low) or 1)
        return round(self.floor - share * (self.floor - self.top), 2)


@dataclass(frozen=True)
class Point:
    """A value at a place, with its standard deviation and its tooltip."""

    x: float
    y: float
    tooltip: str
    spread: float | None = None


@dataclass(frozen=True)
class Series:
    """A line.

    Attributes:
        name: Its name.
        style: Number of its color, mark and dash; None for a bound, a gray dashed level line.
        points: The points in order of x.
        every: Every how many points have a mark.
    """

    name: str
    style: int | None
    points: tuple[Point, ...]
    every: int = 1


def styles(results: ScenarioResults) -> dict[str, int | None]:
    """Return the style of each row: a number, or None for the bound."""
    numbers = (i % STYLES for i in range(len(results.rows)))
    return {row.name: None if row.is_joint else next(numbers) for row in results.rows}


def key(style: int | None) -> str:
    """Return a small drawing of a series' line and mark for a legend."""
    return (
        '<svg class="key" viewBox="0 0 26 12" aria-hidden="true">'
        f'<path class="line {_css_class(style)}" d="M1 6H25"{_dash(style)}/>'
        f"{'' if style is None else _mark(13, 6, style)}</svg>"
    )


def step_curves(results: ScenarioResults) -> list[tuple[str, str]]:
    """Return a heading and a chart for old, new and all classes over the steps."""
    if results.final == 0:
        return []
    steps = range(results.final + 1)
    values = [v for row in results.rows for g in GROUPS for s in steps for v in row.values(s, g)]
    up = percent_axis(values)
    return [(name, _curve(results, group, up)) for group, name in GROUPS.items()]


def _curve(results: ScenarioResults, group: str, up: Axis) -> str:
    steps = range(1 if group == "old" else 0, results.final + 1)
    ticks = tuple((float(step), f"{step}") for step in steps)
    # One step alone is in the middle and not on the edge.
    spare = 0.5 if len(steps) == 1 else 0.0
    across = Axis(steps[0] - spare, results.final + spare, ticks, "step")
    found = styles(results)
    series = [
        Series(row.name, found[row.name], tuple(_step_points(row, group, steps)))
        for row in results.rows
    ]
    about = "; ".join(
        f"{one.name}: " + ", ".join(f"step {p.x:g} {percent(p.y)} %" for p in one.points)
        for one in series
    )
    title = f"{results.scenario}: {GROUPS[group].lower()}, mIoU after each step"
    return line_chart(title, about, series, across, up)


def _step_points(row: Row, group: str, steps: Sequence[int]) -> list[Point]:
    points = []
    for step in steps:
        values, mean = row.values(step, group), row.mean(step, group)
        if mean is not None:
            spread = stdev(values) if len(values) > 1 else None
            tooltip = f"{row.name}, step {step}, {group}: {percent(mean)} %"
            tooltip += f" ± {percent(spread)}" if spread is not None else ""
            points.append(Point(step, mean, tooltip, spread))
    return points


def loss_chart(row: Row) -> str:
    """Return the named losses of a row's first run over all iterations."""
    run = row.runs[0]
    starts = _starts(run)
    series = _loss_series(run, starts)
    points = [point for one in series for point in one.points]
    if not points:
        return ""
    first, last = min(p.x for p in points), max(p.x for p in points)
    up = value_axis([p.y for p in points], "loss")
    size = value_axis([last - first]).ticks[1][0]
    counts = range(math.ceil(first / size), math.floor(last / size) + 1)
    across = Axis(first, last, tuple((i * size, f"{i * size:,.0f}") for i in counts), "iteration")
    fences = [(x, f"step {step}") for step, x in enumerate(starts) if first <= x < last and step]
    about = "; ".join(
        f"{one.name} from {one.points[0].y:.3g} to {one.points[-1].y:.3g}" for one in series
    )
    title = f"{run.scenario}, {row.name}: losses"
    return line_chart(title, about, series, across, up, frame=PlotArea(right=40), fences=fences)


def _starts(run: RunResult) -> list[int]:
    """Return the number of iterations before each step."""
    began = (event.iterations for event in run.events if isinstance(event, RunBegan))
    counts: list[int] = next(began, [])
    return [sum(counts[:step]) for step in range(max(len(counts), 1))]


def _loss_series(run: RunResult, starts: Sequence[int]) -> list[Series]:
    lines: dict[str, list[Point]] = {}
    for event in run.events:
        if not isinstance(event, Trained) or event.step >= len(starts):
            continue
        x = starts[event.step] + event.iteration
        for name, value in event.losses.items():
            tooltip = f"{name} {value:.4g}, step {event.step}, iteration {event.iteration}"
            lines.setdefault(name, []).append(Point(x, value, tooltip))
    return [
        Series(name, i, tuple(points), every=1 + len(points) // MAX_MARKS)
        for i, (name, points) in enumerate(lines.items())
    ]


def line_chart(
    title: str,
    about: str,
    series: Sequence[Series],
    across: Axis,
    up: Axis,
    *,
    frame: PlotArea | None = None,
    fences: Sequence[tuple[float, str]] = (),
) -> str:
    """Return lines over an axis.

    Args:
        title: The chart's name.
        about: A description in words.
        series: The lines.
        across: The horizontal axis.
        up: The vertical axis.
        frame: Size and margins.
        fences: Places of vertical lines, with their texts.
    """
    frame = frame or PlotArea()
    parts = []
    for value, label in up.ticks:
        y = frame.y(value, up)
        parts.append(f'<path class="grid" d="M{frame.left} {y}H{frame.end}"/>')
        parts.append(_text(frame.left - 6, y + 3.5, label, anchor="end"))
    for value, label in across.ticks:
        parts.append(_text(frame.x(value, across), frame.floor + 15, label, anchor="middle"))
    parts.append(_text(frame.end, frame.floor + 29, across.name, "axis", "end"))
    for place, label in fences:
        x = frame.x(place, across)
        parts.append(f'<path class="fence" d="M{x} {frame.top}V{frame.floor}"/>')
        parts.append(_text(x + 3, frame.top + 8, label))
    drawn = [one for one in series if one.points]
    parts += [_line(frame, across, up, one) for one in drawn]
    if all(len(one.name) <= MAX_LABEL for one in drawn):
        parts += _end_labels(frame, up, drawn)
    return _svg(title, about, frame, parts)


def _line(frame: PlotArea, across: Axis, up: Axis, one: Series) -> str:
    places = [(frame.x(p.x, across), frame.y(p.y, up), p) for p in one.points]
    if one.style is None:
        path = f"M{frame.left} {places[-1][1]}H{frame.end}"
        return (
            f'<g><title>{escape(one.points[-1].tooltip)}</title><path class="line bound" d="{path}"'
            f'{_dash(None)}/><path class="hitline" d="{path}"/></g>'
        )
    css = _css_class(one.style)
    path = "M" + "L".join(f"{x} {y}" for x, y, _ in places)
    parts = [f'<path class="line {css}" d="{path}"{_dash(one.style)}/>']
    for x, _, point in places:
        if point.spread:
            a, b = frame.y(point.y - point.spread, up), frame.y(point.y + point.spread, up)
            parts.append(f'<path class="spread {css}" d="M{x} {a}V{b}"/>')
    parts += [_mark(x, y, one.style, point.tooltip) for x, y, point in places[:: one.every]]
    return "".join(parts)


def _end_labels(frame: PlotArea, up: Axis, series: Sequence[Series]) -> list[str]:
    """Return the names at the ends of the lines, moved apart if they touch."""
    ends = sorted((frame.y(one.points[-1].y, up), i) for i, one in enumerate(series))
    places = spread_out([y for y, _ in ends], 12, frame.floor)
    return [
        _text(frame.end + 8, y + 3.5, series[i].name, f"label {_css_class(series[i].style)}")
        for y, (_, i) in zip(places, ends, strict=True)
    ]


def percent_axis(values: Sequence[float]) -> Axis:
    """Return an axis from 0 to the next round number of percent above all values."""
    top = max([10.0, *(100 * value for value in values)])
    step = next(size for size in (2, 5, 10, 20, 25) if top / size <= 5)
    high = step * -(-top // step)
    return Axis(0, high / 100, tuple((x / 100, f"{x:g}") for x in _range(0, high, step)))


def value_axis(values: Sequence[float], name: str = "") -> Axis:
    """Return an axis with 0 and all values, with about five round ticks."""
    low, high = min([0.0, *values]), max([0.0, *values])
    if low == high:
        high = 1.0
    sizes = (base * 10.0**power for power in range(-9, 12) for base in (1, 2, 5))
    size = next(size for size in sizes if (high - low) / size <= 5)
    low, high = size * (low // size), size * -(-high // size)
    ticks = tuple((x, f"{x:g}".replace("-", "−")) for x in _range(low, high, size))
    return Axis(low, high, ticks, name)


def _range(low: float, high: float, size: float) -> list[float]:
    return [round(low + i * size, 9) for i in range(round((high - low) / size) + 1)]


def spread_out(places: Sequence[float], gap: float, bottom: float) -> list[float]:
    """Move sorted places down, then up from the bottom, until they are a gap apart."""
    moved = list(places)
    for i in range(1, len(moved)):
        moved[i] = max(moved[i], moved[i - 1] + gap)
    if moved and moved[-1] > bottom:
        moved[-1] = bottom
        for i in range(len(moved) - 2, -1, -1):
            moved[i] = min(moved[i], moved[i + 1] - gap)
    return moved


def _svg(title: str, about: str, frame: PlotArea, parts: Sequence[str]) -> str:
    """Return a drawing with its text alternatives."""
    # The same chart has the same id in every page, so that equal results give equal files.
    name = f"c{crc32(f'{title}|{about}'.encode()):08x}"
    return (
        f'<svg viewBox="0 0 {frame.width} {frame.height}" role="img" '
        f'aria-labelledby="{name}t {name}d" class="chart"><title id="{name}t">{escape(title)}'
        f'</title><desc id="{name}d">{escape(about)}</desc>{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, content: str, css: str = "tick", anchor: str = "start") -> str:
    return f'<text class="{css}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(content)}</text>'


def _mark(x: float, y: float, style: int | None, tooltip: str = "") -> str:
    """Return the mark of a style with its tooltip."""
    shape = SHAPES[0 if style is None else style % len(SHAPES)]
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    # The larger invisible disc makes small marks easy to hit.
    return (
        f'<g class="mark {_css_class(style)}" transform="translate({x} {y})">{title}'
        f'<circle class="hit" r="9"/>{shape}</g>'
    )


def _css_class(style: int | None) -> str:
    return "bound" if style is None else f"s{style % STYLES}"


def _dash(style: int | None) -> str:
    found = "5 4" if style is None else DASHES[style % len(DASHES)]
    return f' stroke-dasharray="{found}"' if found else ""
