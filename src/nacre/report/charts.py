"""Charts as inline SVG: text that a page can hold, print and read aloud.

Every chart has a title and a description for those who do not see it, and every mark carries
its value as a native tooltip. Colours come from the page's style sheet by class (``s0``, ``s1`` …)
so that they follow light and dark; shapes of marks and dashes tell series apart without colour.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from zlib import crc32

DASHES = ("", "6 3", "2 3", "8 3 2 3", "12 4", "4 2", "1 2", "10 2 2 2 2 2")
STYLES = 8
"""How many series have a colour of their own; the style sheet has as many."""


@dataclass(frozen=True)
class Point:
    """A value at a place; ``spread`` is a standard deviation, ``told`` what hovering says."""

    x: float
    y: float
    told: str
    spread: float | None = None


@dataclass(frozen=True)
class Series:
    """Points of one name.

    Attributes:
        name: What it is.
        style: Number of its colour, mark and dash; None for a bound: grey and dashed.
        points: In order of x; a single one is drawn as a level line.
        marks: Whether every point has a mark.
    """

    name: str
    style: int | None
    points: tuple[Point, ...]
    marks: bool = True


@dataclass(frozen=True)
class Axis:
    """An axis: its range, its ticks (place and text) and its name."""

    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]
    name: str = ""


@dataclass(frozen=True)
class Frame:
    """Where the plotting area of a chart is, in units of its view box."""

    width: int = 360
    height: int = 230
    left: int = 34
    right: int = 58
    top: int = 12
    bottom: int = 34

    def x(self, value: float, axis: Axis) -> float:
        """Return the horizontal place of a value."""
        share = (value - axis.low) / ((axis.high - axis.low) or 1)
        return round(self.left + share * (self.width - self.left - self.right), 2)

    def y(self, value: float, axis: Axis) -> float:
        """Return the vertical place of a value."""
        share = (value - axis.low) / ((axis.high - axis.low) or 1)
        return round(self.height - self.bottom - share * (self.height - self.top - self.bottom), 2)


def line_chart(
    title: str,
    about: str,
    series: Sequence[Series],
    across: Axis,
    up: Axis,
    *,
    frame: Frame | None = None,
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
    frame = frame or Frame()
    parts = [_axes(frame, across, up)]
    parts += [_fence(frame, across, place, text) for place, text in fences]
    parts += [_line(frame, across, up, one) for one in series]
    parts.append(_labels(frame, up, series))
    return svg(title, about, frame.width, frame.height, "".join(parts))


def dot_chart(
    title: str,
    about: str,
    rows: Sequence[tuple[str, Sequence[tuple[int | None, float, str]]]],
    across: Axis,
) -> str:
    """Return a row a name, each with marks ``(style, value, told)`` along one axis."""
    step, top = 20, 8
    longest = max((len(name) for name, _ in rows), default=0)
    height = top + step * len(rows) + 34
    frame = Frame(480, height, left=14 + min(longest, 22) * 6, right=12, top=top)
    bottom = frame.height - frame.bottom
    parts = []
    for value, text in across.ticks:
        x = frame.x(value, across)
        strong = " zero" if value == 0 else ""
        parts.append(f'<path class="grid{strong}" d="M{x} {top}V{bottom}"/>')
        parts.append(
            f'<text class="tick" x="{x}" y="{bottom + 14}" text-anchor="middle">{text}</text>'
        )
    parts.append(
        f'<text class="axis" x="{frame.width - frame.right}" y="{bottom + 29}" '
        f'text-anchor="end">{escape(across.name)}</text>'
    )
    for at, (name, marks) in enumerate(rows):
        y = top + step * (at + 0.5)
        shown = name if len(name) <= 22 else name[:21] + "…"
        parts.append(f'<path class="row" d="M{frame.left} {y}H{frame.width - frame.right}"/>')
        parts.append(
            f'<text class="tick" x="{frame.left - 6}" y="{y + 3.5}" text-anchor="end">'
            f"{escape(shown)}</text>"
        )
        parts += [mark(frame.x(value, across), y, style, told) for style, value, told in marks]
    return svg(title, about, frame.width, frame.height, "".join(parts))


def svg(title: str, about: str, width: int, height: int, body: str) -> str:
    """Return a drawing with its text alternatives."""
    # The same chart has the same id in every page, so that equal results give equal files.
    name = f"c{crc32(f'{title}|{about}'.encode()):08x}"
    return (
        f'<svg viewBox="0 0 {width} {height}" role="img" aria-labelledby="{name}t {name}d" '
        f'class="chart"><title id="{name}t">{escape(title)}</title>'
        f'<desc id="{name}d">{escape(about)}</desc>{body}</svg>'
    )


def mark(x: float, y: float, style: int | None, told: str = "", size: float = 4.0) -> str:
    """Return the mark of a style, with what hovering over it says."""
    shape = SHAPES[0 if style is None else style % len(SHAPES)](size)
    title = f"<title>{escape(told)}</title>" if told else ""
    # The larger invisible disc makes small marks easy to hit.
    return (
        f'<g class="mark {_css(style)}" transform="translate({x} {y})">{title}'
        f'<circle class="hit" r="9"/>{shape}</g>'
    )


def key(style: int | None) -> str:
    """Return a small drawing of a series' line and mark for a legend."""
    dash = _dash(style)
    return (
        '<svg class="key" viewBox="0 0 26 12" aria-hidden="true">'
        f'<path class="line {_css(style)}" d="M1 6H25"{dash}/>'
        f"{'' if style is None else mark(13, 6, style)}</svg>"
    )


def percent_axis(values: Sequence[float], name: str = "mIoU, %") -> Axis:
    """Return an axis from 0 to the next round number of per cent above all values."""
    top = max([10.0, *(100 * value for value in values)])
    step = next(size for size in (5, 10, 20, 25) if top / size <= 5)
    high = step * -(-top // step)
    ticks = tuple((at / 100, f"{at:g}") for at in _range(0, high, step))
    return Axis(0, high / 100, ticks, name)


def value_axis(values: Sequence[float], name: str) -> Axis:
    """Return an axis that holds 0 and all values, with about five round ticks."""
    low, high = min([0.0, *values]), max([0.0, *values])
    span = (high - low) or 1.0
    size = next(
        base * 10.0**power
        for power in range(-6, 9)
        for base in (1, 2, 5)
        if span / (base * 10.0**power) <= 5
    )
    low, high = size * (low // size), size * -(-high // size)
    ticks = tuple((at, f"{at:g}".replace("-", "−")) for at in _range(low, high, size))
    return Axis(low, high, ticks, name)


def _range(low: float, high: float, size: float) -> list[float]:
    return [round(low + at * size, 9) for at in range(round((high - low) / size) + 1)]


def _css(style: int | None) -> str:
    return "bound" if style is None else f"s{style % STYLES}"


def _dash(style: int | None) -> str:
    dash = "5 4" if style is None else DASHES[style % len(DASHES)]
    return f' stroke-dasharray="{dash}"' if dash else ""


def _axes(frame: Frame, across: Axis, up: Axis) -> str:
    left, right, bottom = frame.left, frame.width - frame.right, frame.height - frame.bottom
    parts = []
    for value, text in up.ticks:
        y = frame.y(value, up)
        parts.append(f'<path class="grid" d="M{left} {y}H{right}"/>')
        parts.append(
            f'<text class="tick" x="{left - 6}" y="{y + 3.5}" text-anchor="end">{text}</text>'
        )
    for value, text in across.ticks:
        x = frame.x(value, across)
        parts.append(
            f'<text class="tick" x="{x}" y="{bottom + 15}" text-anchor="middle">{escape(text)}</text>'
        )
    parts.append(
        f'<text class="axis" x="{right}" y="{bottom + 29}" text-anchor="end">{escape(across.name)}'
        "</text>"
    )
    return "".join(parts)


def _fence(frame: Frame, across: Axis, place: float, text: str) -> str:
    x = frame.x(place, across)
    return (
        f'<path class="fence" d="M{x} {frame.top}V{frame.height - frame.bottom}"/>'
        f'<text class="tick" x="{x + 3}" y="{frame.top + 8}">{escape(text)}</text>'
    )


def _line(frame: Frame, across: Axis, up: Axis, one: Series) -> str:
    places = [(frame.x(p.x, across), frame.y(p.y, up), p) for p in one.points]
    if not places:
        return ""
    if one.style is None:
        y, point = places[-1][1], places[-1][2]
        path = f"M{frame.left} {y}H{frame.width - frame.right}"
        return (
            f'<g><title>{escape(point.told)}</title><path class="line bound" d="{path}"'
            f'{_dash(None)}/><path class="hitline" d="{path}"/></g>'
        )
    path = "M" + "L".join(f"{x} {y}" for x, y, _ in places)
    parts = [f'<path class="line {_css(one.style)}" d="{path}"{_dash(one.style)}/>']
    for x, _, point in places:
        if point.spread:
            a, b = frame.y(point.y - point.spread, up), frame.y(point.y + point.spread, up)
            parts.append(f'<path class="spread {_css(one.style)}" d="M{x} {a}V{b}"/>')
    if one.marks:
        parts += [mark(x, y, one.style, point.told) for x, y, point in places]
    return "".join(parts)


def _labels(frame: Frame, up: Axis, series: Sequence[Series]) -> str:
    """Return the names at the ends of the lines, moved apart where they would touch."""
    ends = sorted((frame.y(s.points[-1].y, up), at) for at, s in enumerate(series) if s.points)
    if any(len(one.name) > 9 for one in series):
        return ""
    places = _apart([y for y, _ in ends], 12, frame.height - frame.bottom)
    x = frame.width - frame.right + 8
    return "".join(
        f'<text class="label {_css(series[at].style)}" x="{x}" y="{y + 3.5}">'
        f"{escape(series[at].name)}</text>"
        for y, (_, at) in zip(places, ends, strict=True)
    )


def _apart(places: list[float], gap: float, bottom: float) -> list[float]:
    """Move sorted places down, then up from the bottom, until they are a gap apart."""
    moved = list(places)
    for at in range(1, len(moved)):
        moved[at] = max(moved[at], moved[at - 1] + gap)
    if moved and moved[-1] > bottom:
        moved[-1] = bottom
        for at in range(len(moved) - 2, -1, -1):
            moved[at] = min(moved[at], moved[at + 1] - gap)
    return moved


def _disc(size: float) -> str:
    return f'<circle r="{size * 0.9:g}"/>'


def _square(size: float) -> str:
    return f'<rect x="{-size * 0.85:g}" y="{-size * 0.85:g}" width="{size * 1.7:g}" height="{size * 1.7:g}"/>'


def _triangle(size: float) -> str:
    return f'<path d="M0 {-size * 1.15:g}L{size * 1.1:g} {size * 0.85:g}H{-size * 1.1:g}Z"/>'


def _diamond(size: float) -> str:
    return (
        f'<path d="M0 {-size * 1.25:g}L{size * 1.25:g} 0L0 {size * 1.25:g}L{-size * 1.25:g} 0Z"/>'
    )


def _wedge(size: float) -> str:
    return f'<path d="M0 {size * 1.15:g}L{size * 1.1:g} {-size * 0.85:g}H{-size * 1.1:g}Z"/>'


def _plus(size: float) -> str:
    a, b = size * 1.15, size * 0.42
    return (
        f'<path d="M{-b:g} {-a:g}H{b:g}V{-b:g}H{a:g}V{b:g}H{b:g}V{a:g}H{-b:g}V{b:g}'
        f'H{-a:g}V{-b:g}H{-b:g}Z"/>'
    )


SHAPES: tuple[Callable[[float], str], ...] = (_disc, _square, _triangle, _diamond, _wedge, _plus)
