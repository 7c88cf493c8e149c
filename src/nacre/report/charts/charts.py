"""Charts as inline SVG: text that a page can hold, print and read aloud.

Every chart has a title and a description for those who do not see it, and every mark carries
its value as a native tooltip. Colors come from the page's style sheet by class (``s0``, ``s1`` …)
so that they follow light and dark; shapes of marks and dashes tell series apart without color.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from zlib import crc32

STYLES = 8
"""How many series have a colour of their own; the style sheet has as many."""

DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 2", "1 2", "10 2 2 2 2 2")


@dataclass(frozen=True)
class Axis:
    """An axis: its range, its ticks (place and text) and its name."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    name: str = ""


@dataclass(frozen=True)
class PlotArea:
    """Where the plotting area of a chart is, in units of its view box."""

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


def svg(title: str, about: str, width: int, height: int, body: str) -> str:
    """Return a drawing with its text alternatives."""
    # The same chart has the same id in every page, so that equal results give equal files.
    name = f"c{crc32(f'{title}|{about}'.encode()):08x}"
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}t {name}d" '
        f'class="chart"><title id="{name}t">{escape(title)}</title>'
        f'<desc id="{name}d">{escape(about)}</desc>{body}</svg>'
    )


def text(x: float, y: float, content: str, css: str = "tick", anchor: str = "start") -> str:
    """Return a piece of text at a place."""
    return f'<text class="{css}" x="{x}" y="{y}" text-anchor="{anchor}">{escape(content)}</text>'


def mark(x: float, y: float, style: int | None, tooltip: str = "", size: float = 4.0) -> str:
    """Return the mark of a style, with what hovering over it says."""
    shape = SHAPES[0 if style is None else style % len(SHAPES)](size)
    title = f"<title>{escape(tooltip)}</title>" if tooltip else ""
    # The larger invisible disc makes small marks easy to hit.
    return (
        f'<g class="mark {css_class(style)}" transform="translate({x} {y})">{title}'
        f'<circle class="hit" r="9"/>{shape}</g>'
    )


def key(style: int | None) -> str:
    """Return a small drawing of a series' line and mark for a legend."""
    return (
        '<svg class="key" viewBox="0 0 26 12" aria-hidden="true">'
        f'<path class="line {css_class(style)}" d="M1 6H25"{dash(style)}/>'
        f"{'' if style is None else mark(13, 6, style)}</svg>"
    )


def css_class(style: int | None) -> str:
    """Return the class of the style sheet that has a style's colour."""
    return "bound" if style is None else f"s{style % STYLES}"


def dash(style: int | None) -> str:
    """Return the attribute for a style's dashes."""
    found = "5 4" if style is None else DASHES[style % len(DASHES)]
    return f' stroke-dasharray="{found}"' if found else ""


def percent_axis(values: Sequence[float]) -> Axis:
    """Return an axis from 0 to the next round number of per cent above all values."""
    top = max([10.0, *(100 * value for value in values)])
    step = next(size for size in (2, 5, 10, 20, 25) if top / size <= 5)
    high = step * -(-top // step)
    return Axis(0, high / 100, tuple((x / 100, f"{x:g}") for x in _range(0, high, step)))


def value_axis(values: Sequence[float], name: str = "") -> Axis:
    """Return an axis that holds 0 and all values, with about five round ticks."""
    low, high = min([0.0, *values]), max([0.0, *values])
    if low == high:
        high = 1.0
    span = high - low
    size = next(
        base * 10.0**power
        for power in range(-9, 12)
        for base in (1, 2, 5)
        if span / (base * 10.0**power) <= 5
    )
    low, high = size * (low // size), size * -(-high // size)
    ticks = tuple((x, f"{x:g}".replace("-", "−")) for x in _range(low, high, size))
    return Axis(low, high, ticks, name)


def axes(frame: PlotArea, across: Axis, up: Axis) -> str:
    """Return grid lines and ticks of both axes."""
    parts = []
    for value, tooltip in up.ticks:
        y = frame.y(value, up)
        parts.append(f'<path class="grid" d="M{frame.left} {y}H{frame.end}"/>')
        parts.append(text(frame.left - 6, y + 3.5, tooltip, anchor="end"))
    for value, tooltip in across.ticks:
        parts.append(text(frame.x(value, across), frame.floor + 15, tooltip, anchor="middle"))
    parts.append(text(frame.end, frame.floor + 29, across.name, "axis", "end"))
    return "".join(parts)


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


def _range(low: float, high: float, size: float) -> list[float]:
    return [round(low + i * size, 9) for i in range(round((high - low) / size) + 1)]


def _disc(size: float) -> str:
    return f'<circle r="{size * 0.9:g}"/>'


def _square(size: float) -> str:
    a = size * 0.85
    return f'<path d="M{-a:g} {-a:g}H{a:g}V{a:g}H{-a:g}Z"/>'


def _triangle(size: float) -> str:
    return f'<path d="M0 {-size * 1.15:g}L{size * 1.1:g} {size * 0.85:g}H{-size * 1.1:g}Z"/>'


def _diamond(size: float) -> str:
    a = size * 1.25
    return f'<path d="M0 {-a:g}L{a:g} 0L0 {a:g}L{-a:g} 0Z"/>'


def _wedge(size: float) -> str:
    return f'<path d="M0 {size * 1.15:g}L{size * 1.1:g} {-size * 0.85:g}H{-size * 1.1:g}Z"/>'


def _plus(size: float) -> str:
    a, b = size * 1.15, size * 0.42
    return (
        f'<path d="M{-b:g} {-a:g}H{b:g}V{-b:g}H{a:g}V{b:g}H{b:g}V{a:g}H{-b:g}V{b:g}'
        f'H{-a:g}V{-b:g}H{-b:g}Z"/>'
    )


SHAPES: tuple[Callable[[float], str], ...] = (_disc, _square, _triangle, _diamond, _wedge, _plus)


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
