"""Filling outlines exactly: a pixel belongs to a shape when its center lies inside.

Pixel (column c, row r) has its center at (c + 1/2, r + 1/2); x points right, y down, the corner of
the image is the origin. Inside one ring the even-odd rule holds, so that self-crossing outlines
and keyholes are right and the zero-width bridges with which some tools join parts cover nothing. An
edge owns its upper end and a pixel whose center lies on a left edge, so that neighbors that share
an edge share no pixel and leave none out.

The scan line: every edge toggles, in each row whose center it crosses, all pixels right of the
crossing; a running parity along the row is the filled shape. Crossings are computed in doubles; the
few that fall so near to a center that rounding could decide are settled in exact fractions.
"""

from collections.abc import Iterable, Iterator
from fractions import Fraction
from math import ceil
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]

LARGEST_COORDINATE = 1e9
"""Corners further out than this are damage, not annotation."""

MOST_CROSSINGS = 50_000_000
"""An outline that crosses more rows than this in all is an attack, not an object."""

MOST_DOUBTFUL = 100_000
"""Crossings at a time that are worth exact fractions; real outlines have a handful."""

_CHUNK = 1_000_000
_GRID = 64
_ROUNDING = 16 * np.finfo(np.float64).eps


class Patch(NamedTuple):
    """The filled part of a shape: where its box begins, and which pixels of the box it covers."""

    left: int
    top: int
    bits: Bits


def empty_patch() -> Patch:
    """Return a patch that covers nothing."""
    return Patch(0, 0, np.zeros((0, 0), np.bool_))


def fill_ring(ring: Points, width: int, height: int) -> Patch:
    """Fill one ring of corners (x, y), the last joined to the first, by the even-odd rule.

    Raises:
        ValueError: The outline is too large to be real.
    """
    if len(ring) < 3:
        return empty_patch()
    left, right = _span(ring[:, 0], width)
    top, bottom = _span(ring[:, 1], height)
    if right <= left or bottom <= top:
        return empty_patch()
    columns = right - left
    # One column more than the box: what lies right of everything is toggled there.
    toggles = np.zeros((bottom - top, columns + 1), np.uint8)
    for rows, crossings in _crossings(ring, top, bottom):
        places = (rows - top) * (columns + 1) + np.clip(crossings - left, 0, columns)
        if len(places) < toggles.size:
            np.add.at(toggles.reshape(-1), places, 1)
        else:
            counts = np.bincount(places, minlength=toggles.size).reshape(toggles.shape)
            toggles += (counts & 1).astype(np.uint8)
    # Only the parity counts, so a sum that wraps at 256 is right.
    parity = np.cumsum(toggles[:, :-1], axis=1, dtype=np.uint8) & 1
    return Patch(left, top, parity.astype(np.bool_))


def fill_region(parts: Iterable[tuple[Points, list[Points]]], width: int, height: int) -> Patch:
    """Unite parts, each an outer ring without the holes that go with it."""
    patches = []
    for outer, holes in parts:
        patch = fill_ring(outer, width, height)
        for hole in holes:
            _erase(patch, fill_ring(hole, width, height))
        patches.append(patch)
    return unite(patches)


def fill_ellipse(
    center: tuple[float, float],
    radii: tuple[float, float],
    degrees: float,
    width: int,
    height: int,
) -> Patch:
    """Fill an ellipse that is turned clockwise (as seen, y down) about its center."""
    (x, y), (rx, ry) = center, radii
    if not (rx > 0 and ry > 0):
        return empty_patch()
    turn = np.deg2rad(degrees)
    cos, sin = np.cos(turn), np.sin(turn)
    half_width, half_height = np.hypot(rx * cos, ry * sin), np.hypot(rx * sin, ry * cos)
    left, right = _span(np.array([x - half_width, x + half_width]), width)
    top, bottom = _span(np.array([y - half_height, y + half_height]), height)
    if right <= left or bottom <= top:
        return empty_patch()
    dx = np.arange(left, right) + 0.5 - x
    dy = (np.arange(top, bottom) + 0.5 - y)[:, None]
    along, across = dx * cos + dy * sin, dy * cos - dx * sin
    return Patch(left, top, (along / rx) ** 2 + (across / ry) ** 2 <= 1)


def rectangle(left: float, top: float, right: float, bottom: float, degrees: float = 0.0) -> Points:
    """Return the corners of a rectangle, turned clockwise about its center."""
    corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)
    return turned(corners, degrees, ((left + right) / 2, (top + bottom) / 2))


def turned(points: Points, degrees: float, about: tuple[float, float]) -> Points:
    """Turn points clockwise (as seen, y down) about a point; quarter turns are exact."""
    if degrees % 360 == 0:
        return points
    quarter = degrees % 360 / 90
    if quarter.is_integer():
        cos, sin = ((1, 0), (0, 1), (-1, 0), (0, -1))[int(quarter)]
    else:
        cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    x, y = points[:, 0] - about[0], points[:, 1] - about[1]
    return np.stack([x * cos - y * sin + about[0], x * sin + y * cos + about[1]], axis=1)


def unite(patches: Iterable[Patch]) -> Patch:
    """Return what at least one of the patches covers."""
    there = [patch for patch in patches if patch.bits.size]
    if len(there) <= 1:
        return there[0] if there else empty_patch()
    left = min(patch.left for patch in there)
    top = min(patch.top for patch in there)
    right = max(patch.left + patch.bits.shape[1] for patch in there)
    bottom = max(patch.top + patch.bits.shape[0] for patch in there)
    united = Patch(left, top, np.zeros((bottom - top, right - left), np.bool_))
    for patch in there:
        rows, columns = patch.bits.shape
        y, x = patch.top - top, patch.left - left
        united.bits[y : y + rows, x : x + columns] |= patch.bits
    return united


def _erase(patch: Patch, hole: Patch) -> None:
    """Take a hole out of a patch in place."""
    top, left = max(patch.top, hole.top), max(patch.left, hole.left)
    bottom = min(patch.top + patch.bits.shape[0], hole.top + hole.bits.shape[0])
    right = min(patch.left + patch.bits.shape[1], hole.left + hole.bits.shape[1])
    if bottom <= top or right <= left:
        return
    inside = hole.bits[top - hole.top : bottom - hole.top, left - hole.left : right - hole.left]
    patch.bits[
        top - patch.top : bottom - patch.top, left - patch.left : right - patch.left
    ] &= ~inside


def _span(values: Points, size: int) -> tuple[int, int]:
    """Return the first pixel and the one after the last whose centers the values can enclose."""
    first = np.clip(np.ceil(values.min() - 0.5), 0, size)
    last = np.clip(np.floor(values.max() - 0.5) + 1, 0, size)
    return int(first), int(last)


def _crossings(
    ring: Points, top: int, bottom: int
) -> Iterator[tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]]:
    """Yield rows and the first pixel right of where an edge crosses each, some edges at a time."""
    start, end = ring, np.roll(ring, -1, axis=0)
    down = start[:, 1] <= end[:, 1]
    upper, lower = np.where(down[:, None], start, end), np.where(down[:, None], end, start)
    first = np.clip(np.ceil(upper[:, 1] - 0.5), top, bottom).astype(np.int64)
    count = np.clip(np.ceil(lower[:, 1] - 0.5), top, bottom).astype(np.int64) - first
    edges = np.flatnonzero(count > 0)
    total = np.cumsum(count[edges])
    if len(total) and total[-1] > MOST_CROSSINGS:
        raise ValueError(f"an outline crosses {total[-1]:,} rows of pixels in all")
    # Memory is bounded by the chunk, however long the outline is.
    ends = np.searchsorted(
        total, np.arange(_CHUNK, (total[-1] if len(total) else 0) + _CHUNK, _CHUNK)
    )
    begin = 0
    for i in ends:
        some = edges[begin : i + 1]
        begin = int(i) + 1
        if len(some):
            yield _cross(upper[some], lower[some], first[some], count[some])


def _cross(
    upper: Points,
    lower: Points,
    first: npt.NDArray[np.int64],
    count: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    edge = np.repeat(np.arange(len(count)), count)
    rows = np.arange(len(edge)) - np.repeat(np.cumsum(count) - count - first, count)
    slant = lower - upper
    below = rows + 0.5 - upper[edge, 1]
    x = upper[edge, 0] + below * slant[edge, 0] / slant[edge, 1] - 0.5
    nearest = np.rint(x)
    columns = np.ceil(x).astype(np.int64)
    # Rounding can move a crossing by so much; it moves none of an upright edge.
    reach = np.abs(upper).sum(axis=1) + np.abs(lower).sum(axis=1) + 1
    slack = _ROUNDING * reach * (1 + np.abs(slant[:, 0] / slant[:, 1]))
    slack[slant[:, 0] == 0] = -1
    doubtful = np.flatnonzero(np.abs(x - nearest) <= slack[edge])
    if len(doubtful):
        columns[doubtful] = _settle(upper[edge[doubtful]], lower[edge[doubtful]], rows[doubtful])
    return rows, columns


def _settle(
    upper: Points, lower: Points, rows: npt.NDArray[np.int64]
) -> npt.NDArray[np.int64] | list[int]:
    """Return the first pixel whose center is not left of each crossing, without any rounding."""
    ends = np.concatenate([upper, lower], axis=1) * _GRID
    if np.all(ends == np.rint(ends)) and np.abs(ends).max() < 2**24:
        # Corners on whole, half or quarter pixels are where ties come from; whole numbers do.
        x0, y0, x1, y1 = ends.astype(np.int64).T
        above = _GRID * rows + _GRID // 2 - y0
        return -(-((x0 - _GRID // 2) * (y1 - y0) + above * (x1 - x0)) // (_GRID * (y1 - y0)))
    if len(rows) > MOST_DOUBTFUL:
        raise ValueError(f"an outline passes {len(rows):,} pixel centers closer than can be told")
    return [_exact(a, b, int(row)) for a, b, row in zip(upper, lower, rows, strict=True)]


def _exact(upper: Points, lower: Points, row: int) -> int:
    x0, y0, x1, y1 = (Fraction(float(value)) for value in (*upper, *lower))
    x = x0 + (Fraction(2 * row + 1, 2) - y0) * (x1 - x0) / (y1 - y0)
    return ceil(x - Fraction(1, 2))
