"""From a class map to polygons, for annotation tools.

A ring follows the edges of pixels clockwise around pixels of one class that share sides. Rings have
no holes: a region inside another is a separate ring. Painted from the largest to the smallest, the
rings reproduce the class map exactly. A large map is traced tile by tile, so that a region across
the edge of a tile becomes two rings.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Points = npt.NDArray[np.float64]

ClassMap = npt.NDArray[np.unsignedinteger[Any]]
"""The channel of each pixel: uint8, or uint16 where channels need 16 bits."""

TILE = 4096
"""Side of the tiles of a large map."""

# Right, down, left, up: steps along edges with the ring's pixels on the right-hand side.
_STEPS = ((1, 0), (0, 1), (-1, 0), (0, -1))


@dataclass(frozen=True)
class Ring:
    """The outline of connected pixels of one class.

    Attributes:
        channel: The channel of the class.
        points: The corners as x, y, clockwise.
        area: The area inside the outline.
    """

    channel: int
    points: Points
    area: float


def trace_rings(classes: ClassMap, tile: int = TILE) -> list[Ring]:
    """Return the outlines of all regions, from the largest to the smallest."""
    height, width = classes.shape
    rings = []
    for top in range(0, height, tile):
        for left in range(0, width, tile):
            part = classes[top : min(top + tile, height), left : min(left + tile, width)]
            for ring in _rings(part):
                if ring.area > 0:
                    rings.append(Ring(ring.channel, ring.points + np.array([left, top]), ring.area))
    return sorted(rings, key=lambda ring: -ring.area)


def leave_out_small(rings: Sequence[Ring], smallest: float) -> list[Ring]:
    """Leave out rings with a smaller area, except the largest of each class.

    What is painted below a ring takes its place, so that small holes are closed.

    Args:
        rings: Rings from the largest to the smallest.
        smallest: Smallest area in pixels.
    """
    found = {0}  # background needs no ring of its own
    kept = []
    for ring in rings:
        if ring.area >= smallest or ring.channel not in found:
            kept.append(ring)
            found.add(ring.channel)
    return kept


def _rings(classes: ClassMap) -> Iterator[Ring]:
    """Yield each closed outline once; the area of an outline around a hole is negative."""
    edges, owners = _edges(classes)
    width = classes.shape[1] + 1
    moves = tuple(4 * (x + y * width) for x, y in _STEPS)
    for start in np.flatnonzero(np.frombuffer(edges, np.uint8)):
        if not edges[start]:
            continue
        corners = _walk(int(start), edges, owners, moves)
        points = np.array([(i % width, i // width) for i in corners], np.float64)
        yield Ring(int(owners[start]), points, _area(points))


def _edges(classes: ClassMap) -> tuple[bytearray, memoryview]:
    """Return the edges that leave each corner in each direction, and the class to their right."""
    height, width = classes.shape
    framed = np.full((height + 2, width + 2), -1, np.int32)
    framed[1:-1, 1:-1] = classes
    # The four pixels around each corner of a pixel:
    north_west, north_east = framed[:-1, :-1], framed[:-1, 1:]
    south_west, south_east = framed[1:, :-1], framed[1:, 1:]
    right = np.stack([south_east, south_west, north_west, north_east], -1)
    left = np.stack([north_east, south_east, south_west, north_west], -1)
    edges = (right != left) & (right >= 0)
    owners = np.where(edges, right, 0).astype(classes.dtype)
    return bytearray(edges.astype(np.uint8).tobytes()), owners.ravel().data


def _walk(start: int, edges: bytearray, owners: memoryview, moves: tuple[int, ...]) -> list[int]:
    """Follow the edges of one class around an outline; return the corners."""
    owner = owners[start]
    edge = start
    corners: list[int] = []
    while True:
        direction = edge & 3
        straight = edge + moves[direction]
        corner = straight - direction
        # Turn right first: pixels that touch only at a corner are not connected.
        next_edge = corner + (direction + 1 & 3)
        if not edges[next_edge] or owners[next_edge] != owner:
            next_edge = straight
            if not edges[next_edge] or owners[next_edge] != owner:
                next_edge = corner + (direction + 3 & 3)
        if next_edge != straight:
            corners.append(corner >> 2)
        if next_edge == start:
            break
        edge = next_edge
        edges[edge] = 0
    edges[start] = 0
    return corners


def _area(points: Points) -> float:
    x, y = points.T
    return float((x * np.roll(y, -1) - np.roll(x, -1) * y).sum() / 2)


def simplify(points: Points, tolerance: float) -> Points:
    """Remove corners that are within a tolerance of the line without them.

    This is the method of Douglas and Peucker, from two corners far from each other.
    """
    if tolerance <= 0 or len(points) < 5:
        return points
    far = int(np.abs(points - points[0]).sum(1).argmax())
    kept = np.zeros(len(points) + 1, bool)
    kept[[0, far, len(points)]] = True
    closed = np.concatenate([points, points[:1]])
    pending = [(0, far), (far, len(points))]
    while pending:
        first, last = pending.pop()
        distance = _distances(closed[first + 1 : last], closed[first], closed[last])
        if distance.size and distance.max() > tolerance:
            middle = first + 1 + int(distance.argmax())
            kept[middle] = True
            pending += [(first, middle), (middle, last)]
    simplified = points[kept[:-1]]
    return simplified if len(simplified) > 2 else points


def _distances(points: Points, start: Points, end: Points) -> Points:
    line = end - start
    length = float(np.hypot(*line))
    offsets = points - start
    if not length:
        return np.hypot(offsets[:, 0], offsets[:, 1])
    return np.abs(line[0] * offsets[:, 1] - line[1] * offsets[:, 0]) / length
