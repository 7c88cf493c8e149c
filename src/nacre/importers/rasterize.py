"""Exact rasterization: a pixel belongs to a shape if its center is inside.

Pixel (column c, row r) has its center at (c + 1/2, r + 1/2). x points right, y points down, and the
origin is the corner of the image. Within a ring the even-odd rule applies, so self-crossing
outlines and keyholes are right, and the bridges of zero width with which some tools join parts
cover nothing. An edge owns its upper end, and a shape owns the pixels whose centers are on its left
edge, so two neighbors with a common edge share no pixel and leave none out.

The scan line: in each row, every edge that crosses the centers toggles all pixels right of the
crossing. The running parity along the row is the filled shape. Crossings are computed in float64,
each edge from its upper end, so both shapes at an edge get the same crossings.
"""

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]
Bits = npt.NDArray[np.bool_]

MAX_COORDINATE = 1e9
"""Coordinates beyond this are damage, not annotation."""

MAX_CROSSINGS = 5_000_000
"""Number of rows that the edges of one outline may cross in total; more is an attack."""


class Patch(NamedTuple):
    """The pixels of a shape: the corner of its box, and which pixels of the box it covers."""

    left: int
    top: int
    bits: Bits

    def slices(self, left: int = 0, top: int = 0) -> tuple[slice, slice]:
        """Return the rows and columns of the box in an array that begins at (left, top)."""
        rows, columns = self.bits.shape
        y, x = self.top - top, self.left - left
        return slice(y, y + rows), slice(x, x + columns)

    def crop(self, left: int, top: int, right: int, bottom: int) -> "Patch":
        """Return the part inside a box."""
        rows, columns = self.bits.shape
        left, right = max(left, self.left), min(right, self.left + columns)
        top, bottom = max(top, self.top), min(bottom, self.top + rows)
        if right <= left or bottom <= top:
            return empty_patch()
        inside = self.bits[top - self.top : bottom - self.top, left - self.left : right - self.left]
        return Patch(left, top, inside)


def empty_patch() -> Patch:
    """Return a patch without pixels."""
    return Patch(0, 0, np.zeros((0, 0), np.bool_))


def fill_ring(ring: Points, width: int, height: int) -> Patch:
    """Fill a closed ring of corners (x, y) by the even-odd rule."""
    if len(ring) < 3:
        return empty_patch()
    left, right = _span(ring[:, 0], width)
    top, bottom = _span(ring[:, 1], height)
    if right <= left or bottom <= top:
        return empty_patch()
    columns = right - left
    # Crossings right of the box toggle one extra column.
    toggles = np.zeros((bottom - top, columns + 1), np.uint8)
    rows, crossings = _crossings(ring, top, bottom)
    places = (rows - top) * (columns + 1) + np.clip(crossings - left, 0, columns)
    np.add.at(toggles.reshape(-1), places, 1)
    # Only the parity counts, so a sum that wraps around at 256 is right.
    parity = np.cumsum(toggles[:, :-1], axis=1, dtype=np.uint8) & 1
    return Patch(left, top, parity.astype(np.bool_))


def fill_region(parts: Iterable[tuple[Points, Iterable[Points]]], width: int, height: int) -> Patch:
    """Fill the union of parts, each an outer ring without its holes."""
    patches = []
    for outer, holes in parts:
        patch = fill_ring(outer, width, height)
        rows, columns = patch.bits.shape
        for hole in holes:
            hidden = fill_ring(hole, width, height).crop(
                patch.left, patch.top, patch.left + columns, patch.top + rows
            )
            if hidden.bits.size:
                patch.bits[hidden.slices(patch.left, patch.top)] &= ~hidden.bits
        if patch.bits.size:
            patches.append(patch)
    if len(patches) <= 1:
        return patches[0] if patches else empty_patch()
    left = min(patch.left for patch in patches)
    top = min(patch.top for patch in patches)
    right = max(patch.left + patch.bits.shape[1] for patch in patches)
    bottom = max(patch.top + patch.bits.shape[0] for patch in patches)
    union = np.zeros((bottom - top, right - left), np.bool_)
    for patch in patches:
        union[patch.slices(left, top)] |= patch.bits
    return Patch(left, top, union)


def fill_ellipse(
    center: tuple[float, float],
    radii: tuple[float, float],
    degrees: float,
    width: int,
    height: int,
) -> Patch:
    """Fill an ellipse that is rotated clockwise (on screen, y down) about its center."""
    (x, y), (rx, ry) = center, radii
    if not (rx > 0 and ry > 0):
        return empty_patch()
    angle = np.deg2rad(degrees)
    cos, sin = np.cos(angle), np.sin(angle)
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
    """Return the corners of a rectangle, rotated clockwise about its center."""
    corners = np.array([(left, top), (right, top), (right, bottom), (left, bottom)], np.float64)
    return rotate(corners, degrees, ((left + right) / 2, (top + bottom) / 2))


def rotate(points: Points, degrees: float, center: tuple[float, float]) -> Points:
    """Rotate points clockwise (on screen, y down) about a center; quarter turns are exact."""
    if degrees % 360 == 0:
        return points
    quarter = degrees % 360 / 90
    if quarter.is_integer():
        cos, sin = ((1, 0), (0, 1), (-1, 0), (0, -1))[int(quarter)]
    else:
        cos, sin = np.cos(np.deg2rad(degrees)), np.sin(np.deg2rad(degrees))
    x, y = points[:, 0] - center[0], points[:, 1] - center[1]
    return np.stack([x * cos - y * sin + center[0], x * sin + y * cos + center[1]], axis=1)


def _span(values: Points, size: int) -> tuple[int, int]:
    """Return the range of the pixels whose centers the values can enclose."""
    first = np.clip(np.ceil(values.min() - 0.5), 0, size)
    last = np.clip(np.floor(values.max() - 0.5) + 1, 0, size)
    return int(first), int(last)


def _crossings(
    ring: Points, top: int, bottom: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the row of each crossing, and the first pixel right of it."""
    start, end = ring, np.roll(ring, -1, axis=0)
    down = start[:, 1] <= end[:, 1]
    upper, lower = np.where(down[:, None], start, end), np.where(down[:, None], end, start)
    first = np.clip(np.ceil(upper[:, 1] - 0.5), top, bottom).astype(np.int64)
    count = np.clip(np.ceil(lower[:, 1] - 0.5), top, bottom).astype(np.int64) - first
    crosses = count > 0
    upper, lower, first, count = upper[crosses], lower[crosses], first[crosses], count[crosses]
    if (total := int(count.sum())) > MAX_CROSSINGS:
        raise ValueError(f"an outline crosses {total:,} rows of pixels in total")
    edge = np.repeat(np.arange(len(count)), count)
    rows = np.arange(total) - np.repeat(np.cumsum(count) - count - first, count)
    slant = lower - upper
    below = rows + 0.5 - upper[edge, 1]
    x = upper[edge, 0] + below * slant[edge, 0] / slant[edge, 1]
    return rows, np.ceil(x - 0.5).astype(np.int64)
