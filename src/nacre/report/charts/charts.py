"""Charts as inline SVG: text that a page can hold, print and read aloud.

Every chart has a title and a description for those who do not see it, and every mark carries
its value as a native tooltip.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from nacre.report.charts.svg import (
    Axis,
    PlotArea,
    axes,
    css_class,
    dash,
    mark,
    spread_out,
    svg,
    text,
)

LONGEST_LABEL = 9
"""Characters of a name that fit beside the end of its line."""


@dataclass(frozen=True)
class Point:
    """A value at a place; ``spread`` is a standard deviation, ``tooltip`` what hovering says."""

    x: float
    y: float
    tooltip: str
    spread: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one name.

    Attributes:
        name: What it is.
        style: Number of its colour, mark and dash; None for a bound: a grey, dashed level line.
        points: In order of x.
        every: Which points have a mark: every one, or every second …
    """

    name: str
    style: int | None
    points: tuple[Point, ...]
    every: int = 1


@dataclass(frozen=True)
class DotRow:
    """A row of a dot chart: its name and its marks as (style, value, what hovering says)."""

    name: str
    marks: tuple[tuple[int | None, float, str], ...]


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
        about: What it shows, in words, for those who do not see it.
        series: The lines.
        across: The horizontal axis.
        up: The vertical axis.
        frame: Size and margins.
        fences: Places with a text at which a vertical line stands.
    """
    frame = frame or PlotArea()
    parts = [axes(frame, across, up)]
    parts += [_fence(frame, across, place, tooltip) for place, tooltip in fences]
    parts += [_line(frame, across, up, one) for one in series if one.points]
    parts.append(_names(frame, up, [one for one in series if one.points]))
    return svg(title, about, frame.width, frame.height, "".join(parts))


def dot_chart(title: str, about: str, rows: Sequence[DotRow], across: Axis) -> str:
    """Return a row per name, each with marks along one axis."""
    height, top, most = 20, 8, 22
    longest = max(min(len(row.name), most) for row in rows)
    frame = PlotArea(420, top + height * len(rows) + 34, left=14 + longest * 6, right=12, top=top)
    parts = []
    for value, tooltip in across.ticks:
        x = frame.x(value, across)
        strong = " zero" if value == 0 else ""
        parts.append(f'<path class="grid{strong}" d="M{x} {top}V{frame.floor}"/>')
        parts.append(text(x, frame.floor + 14, tooltip, anchor="middle"))
    parts.append(text(frame.end, frame.floor + 29, across.name, "axis", "end"))
    for i, row in enumerate(rows):
        y = top + height * (i + 0.5)
        name = row.name if len(row.name) <= most else row.name[: most - 1] + "…"
        parts.append(f'<path class="row" d="M{frame.left} {y}H{frame.end}"/>')
        parts.append(text(frame.left - 6, y + 3.5, name, anchor="end"))
        parts += [
            mark(frame.x(value, across), y, style, tooltip) for style, value, tooltip in row.marks
        ]
    return svg(title, about, frame.width, frame.height, "".join(parts))


def _fence(frame: PlotArea, across: Axis, place: float, tooltip: str) -> str:
    x = frame.x(place, across)
    line = f'<path class="fence" d="M{x} {frame.top}V{frame.floor}"/>'
    return line + text(x + 3, frame.top + 8, tooltip)


def _line(frame: PlotArea, across: Axis, up: Axis, one: Series) -> str:
    places = [(frame.x(p.x, across), frame.y(p.y, up), p) for p in one.points]
    if one.style is None:
        path = f"M{frame.left} {places[-1][1]}H{frame.end}"
        return (
            f'<g><title>{escape(one.points[-1].tooltip)}</title><path class="line bound" d="{path}"'
            f'{dash(None)}/><path class="hitline" d="{path}"/></g>'
        )
    css = css_class(one.style)
    path = "M" + "L".join(f"{x} {y}" for x, y, _ in places)
    parts = [f'<path class="line {css}" d="{path}"{dash(one.style)}/>']
    for x, _, point in places:
        if point.spread:
            a, b = frame.y(point.y - point.spread, up), frame.y(point.y + point.spread, up)
            parts.append(f'<path class="spread {css}" d="M{x} {a}V{b}"/>')
    parts += [mark(x, y, one.style, point.tooltip) for x, y, point in places[:: one.every]]
    return "".join(parts)


def _names(frame: PlotArea, up: Axis, series: Sequence[Series]) -> str:
    """Return the names at the ends of the lines, moved apart where they would touch."""
    if any(len(one.name) > LONGEST_LABEL for one in series):
        return ""
    ends = sorted((frame.y(one.points[-1].y, up), i) for i, one in enumerate(series))
    places = spread_out([y for y, _ in ends], 12, frame.floor)
    return "".join(
        text(frame.end + 8, y + 3.5, series[i].name, f"label {css_class(series[i].style)}")
        for y, (_, i) in zip(places, ends, strict=True)
    )
