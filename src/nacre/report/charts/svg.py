"""The small parts of charts: axes, marks, dashes and the names at the ends of lines.

Colours come from the page's style sheet by class (``s0``, ``s1`` …) so that they follow light
and dark; shapes of marks and dashes tell series apart without colour.
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
