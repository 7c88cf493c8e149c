"""The charts of a scenario as inline SVG: mean IoU over the steps.

Every chart has a title and a description as text alternatives, and every mark has a tooltip with
its value. Colors come from the page's style sheet by class (``s0``, ``s1`` …) so that they suit
light and dark pages; marks and dashes distinguish the lines without color.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from statistics import stdev
from zlib import crc32

from nacre.report.results import Row, ScenarioResults, percent

GROUPS = {
    "old": "Old classes",
    "new": "New classes of each step",
    "all": "All classes so far",
}
NUM_STYLES = 8
"""Number of lines with a color of their own; the style sheet has as many."""
DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 2", "1 2", "10 2 2 2 2 2")
SHAPES = (
    '<circle r="3.6"/>',
    '<path d="M-3.4 -3.4H3.4V3.4H-3.4Z"/>',
    '<path d="M0 -4.6L4.4 3.4H-4.4Z"/>',
    '<path d="M0 -5L5 0L0 5L-5 0Z"/>',
    '<path d="M0 4.6L4.4 -3.4H-4.4Z"/>',
    '<path d="M-1.68 -4.6H1.68V-1.68H4.6V1.68H1.68V4.6H-1.68V1.68H-4.6V-1.68H-1.68Z"/>',
)

# The drawing and the edges of its plotting area, in view-box units.
WIDTH, HEIGHT = 360, 230
LEFT, RIGHT, TOP, BOTTOM = 34, 346, 12, 196

Style = int | None
"""Number of a line's color, mark and dash; None for a bound, a gray dashed level line."""


def styles(results: ScenarioResults) -> dict[str, Style]:
    """Return the style of each row."""
    numbers = (i % NUM_STYLES for i in range(len(results.rows)))
    return {row.name: None if row.is_joint else next(numbers) for row in results.rows}


def key(style: Style) -> str:
    """Return a small drawing of a line and its mark for a legend."""
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
    ticks = percent_ticks(values)
    return [(name, _chart(results, group, ticks)) for group, name in GROUPS.items()]


def percent_ticks(values: Sequence[float]) -> list[int]:
    """Return ticks from 0 to a round number of percent that is not below any value."""
    top = max([10.0, *(100 * value for value in values)])
    size = next(size for size in (2, 5, 10, 20, 25) if top / size <= 5)
    return list(range(0, size * int(-(-top // size)) + 1, size))


@dataclass(frozen=True)
class Plot:
    """A plotting area with steps to the right and percent upward."""

    steps: range
    ticks: Sequence[int]

    def x(self, step: int) -> float:
        """Return the horizontal place of a step."""
        # A single step is in the middle and not on the edge.
        spare = 0.5 if len(self.steps) == 1 else 0.0
        fraction = (step - self.steps[0] + spare) / (len(self.steps) - 1 + 2 * spare)
        return round(LEFT + fraction * (RIGHT - LEFT), 2)

    def y(self, value: float) -> float:
        """Return the vertical place of a fraction."""
        return round(BOTTOM - 100 * value / self.ticks[-1] * (BOTTOM - TOP), 2)


@dataclass(frozen=True)
class Point:
    """A mean after a step, with its standard deviation over the seeds and its tooltip."""

    step: int
    mean: float
    spread: float | None
    tooltip: str


def _points(row: Row, group: str, steps: range) -> list[Point]:
    points = []
    for step in steps:
        values, mean = row.values(step, group), row.mean(step, group)
        if mean is not None:
            spread = stdev(values) if len(values) > 1 else None
            tooltip = f"{row.name}, step {step}, {group}: {percent(mean)} %"
            tooltip += f" ± {percent(spread)}" if spread is not None else ""
            points.append(Point(step, mean, spread, tooltip))
    return points


def _chart(results: ScenarioResults, group: str, ticks: Sequence[int]) -> str:
    """Return the chart of a group of classes."""
    plot = Plot(range(1 if group == "old" else 0, results.final + 1), ticks)
    lines = {row.name: _points(row, group, plot.steps) for row in results.rows}
    parts = _axes(plot)
    for name, style in styles(results).items():
        if lines[name]:
            parts.append(_line(plot, lines[name], style))
    about = "; ".join(
        f"{name}: " + ", ".join(f"step {point.step} {percent(point.mean)} %" for point in points)
        for name, points in lines.items()
    )
    title = f"{results.scenario}: {GROUPS[group].lower()}, mIoU after each step"
    return _svg(title, about, parts)


def _axes(plot: Plot) -> list[str]:
    parts = []
    for tick in plot.ticks:
        y = plot.y(tick / 100)
        parts.append(f'<path class="grid" d="M{LEFT} {y}H{RIGHT}"/>')
        parts.append(_text(LEFT - 6, y + 3.5, f"{tick}", "end"))
    parts += [_text(plot.x(step), BOTTOM + 15, f"{step}", "middle") for step in plot.steps]
    return [*parts, _text(RIGHT, BOTTOM + 29, "step", "end")]


def _line(plot: Plot, points: Sequence[Point], style: Style) -> str:
    css = _css_class(style)
    if style is None:
        path = f"M{LEFT} {plot.y(points[-1].mean)}H{RIGHT}"
        return (
            f'<g><title>{escape(points[-1].tooltip)}</title><path class="line {css}" d="{path}"'
            f'{_dash(style)}/><path class="hitline" d="{path}"/></g>'
        )
    places = [(plot.x(point.step), plot.y(point.mean), point) for point in points]
    path = "M" + "L".join(f"{x} {y}" for x, y, _ in places)
    parts = [f'<path class="line {css}" d="{path}"{_dash(style)}/>']
    for x, _, point in places:
        if point.spread:
            ends = plot.y(point.mean - point.spread), plot.y(point.mean + point.spread)
            parts.append(f'<path class="spread {css}" d="M{x} {ends[0]}V{ends[1]}"/>')
    parts += [_mark(x, y, style, point.tooltip) for x, y, point in places]
    return "".join(parts)


def _svg(title: str, about: str, parts: Sequence[str]) -> str:
    """Return a drawing with its text alternatives."""
    # The same chart has the same id in every page, so that equal results give equal files.
    name = f"c{crc32(f'{title}|{about}'.encode()):08x}"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" '
        f'aria-labelledby="{name}t {name}d" class="chart"><title id="{name}t">{escape(title)}'
        f'</title><desc id="{name}d">{escape(about)}</desc>{"".join(parts)}</svg>'
    )


def _text(x: float, y: float, content: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}">{escape(content)}</text>'


def _mark(x: float, y: float, style: int, tooltip: str = "") -> str:
    """Return the mark of a style with its tooltip."""
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    # The larger invisible disc makes small marks easy to hit.
    return (
        f'<g class="mark {_css_class(style)}" transform="translate({x} {y})">{title}'
        f'<circle class="hit" r="9"/>{SHAPES[style % len(SHAPES)]}</g>'
    )


def _css_class(style: Style) -> str:
    return "bound" if style is None else f"s{style}"


def _dash(style: Style) -> str:
    dash = "5 4" if style is None else DASHES[style]
    return f' stroke-dasharray="{dash}"' if dash else ""
