"""Filling outlines exactly: a pixel belongs to a shape when its center lies inside.

Pixel (column c, row r) has its center at (c + 1/2, r + 1/2); x points right, y down, the corner of
the image is the origin. Inside one ring the even-odd rule holds, so that self-crossing outlines
and keyholes are right and the zero-width bridges with which some tools join parts cover nothing. An
edge owns its upper end and a pixel whose center lies on a left edge, so that neighbors that share
an edge share no pixel and leave none out.

The scan line: every edge toggles, in each row whose center it crosses, all pixels right of the
crossing; a running parity along the row is the filled shape. Crossings are computed in doubles,
each edge from its upper end, so that the two shapes at an edge come to the same pixels.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]

LARGEST_COORDINATE = 1e9
"""Corners further out than this are damage, not annotation."""

MOST_CROSSINGS = 5_000_000
"""An outline that crosses more rows than this in all is an attack, not an object."""


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
    rows, crossings = _crossings(ring, top, bottom)
    places = (rows - top) * (columns + 1) + np.clip(crossings - left, 0, columns)
    np.add.at(toggles.reshape(-1), places, 1)
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
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return rows, and the first pixel right of where an edge crosses each."""
    start, end = ring, np.roll(ring, -1, axis=0)
    down = start[:, 1] <= end[:, 1]
    upper, lower = np.where(down[:, None], start, end), np.where(down[:, None], end, start)
    first = np.clip(np.ceil(upper[:, 1] - 0.5), top, bottom).astype(np.int64)
    count = np.clip(np.ceil(lower[:, 1] - 0.5), top, bottom).astype(np.int64) - first
    crossing = count > 0
    upper, lower, first, count = (one[crossing] for one in (upper, lower, first, count))
    if (total := int(count.sum())) > MOST_CROSSINGS:
        raise ValueError(f"an outline crosses {total:,} rows of pixels in all")
    edge = np.repeat(np.arange(len(count)), count)
    rows = np.arange(total) - np.repeat(np.cumsum(count) - count - first, count)
    slant = lower - upper
    below = rows + 0.5 - upper[edge, 1]
    x = upper[edge, 0] + below * slant[edge, 0] / slant[edge, 1]
    return rows, np.ceil(x - 0.5).astype(np.int64)
