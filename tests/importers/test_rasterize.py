"""The scan line against a slow exact reference: every pixel center, every edge, in fractions."""

from fractions import Fraction

import numpy as np
import pytest
from numpy.typing import NDArray

from nacre.importers import rasterize
from nacre.importers.rasterize import (
    Patch,
    fill_ellipse,
    fill_region,
    fill_ring,
    rectangle,
    rotate,
)


def whole(patch: Patch, width: int, height: int) -> NDArray[np.bool_]:
    """Return a patch in the image that it belongs to."""
    image = np.zeros((height, width), np.bool_)
    image[patch.slices()] = patch.bits
    return image


def reference(ring: NDArray[np.float64], width: int, height: int) -> NDArray[np.bool_]:
    """Count, for every center, the edges that a ray to the left crosses, without rounding."""
    corners = [(Fraction(float(x)), Fraction(float(y))) for x, y in ring]
    edges = list(zip(corners, corners[1:] + corners[:1], strict=True))
    filled = np.zeros((height, width), np.bool_)
    for row in range(height):
        y = Fraction(2 * row + 1, 2)
        crossings = [
            x0 + (y - y0) * (x1 - x0) / (y1 - y0)
            for (x0, y0), (x1, y1) in edges
            if (y0 <= y) != (y1 <= y)
        ]
        for column in range(width):
            x = Fraction(2 * column + 1, 2)
            filled[row, column] = sum(crossing <= x for crossing in crossings) % 2
    return filled


GRIDS = {"any": None, "whole": 1, "halves": 2, "eighths": 8, "cents": 100}


@pytest.mark.parametrize("grid", GRIDS)
def test_random_rings_self_crossing_ones_too(grid: str) -> None:
    rng = np.random.default_rng(list(GRIDS).index(grid))
    for _ in range(400):
        width, height = (int(side) for side in rng.integers(1, 13, 2))
        ring = rng.uniform(-4, 16, (int(rng.integers(3, 9)), 2))
        step = GRIDS[grid]
        ring = ring if step is None else np.round(ring * step) / step
        got = whole(fill_ring(ring, width, height), width, height)
        np.testing.assert_array_equal(got, reference(ring, width, height), err_msg=repr(ring))


def test_neighbours_share_no_pixel_and_leave_none_out() -> None:
    rng = np.random.default_rng(1)
    for _ in range(50):
        middle = rng.uniform(1, 19, 2)
        corners = [(0, 0), (20, 0), (20, 20), (0, 20)]
        times = np.zeros((20, 20), int)
        for one, other in zip(corners, corners[1:] + corners[:1], strict=True):
            times += whole(fill_ring(np.array([one, other, middle], float), 20, 20), 20, 20)
        assert np.all(times == 1)


def test_parts_are_united_and_holes_cut_only_their_own_part() -> None:
    square = rectangle(0, 0, 6, 6)
    patch = fill_region([(square, [rectangle(2, 2, 4, 4)]), (rectangle(3, 3, 9, 5), [])], 10, 8)
    expected = np.zeros((8, 10), np.bool_)
    expected[:6, :6] = True
    expected[2:4, 2:4] = False
    expected[3:5, 3:9] = True
    np.testing.assert_array_equal(whole(patch, 10, 8), expected)


@pytest.mark.parametrize("degrees", [0, 30, 90, 137.5])
def test_an_ellipse_holds_the_centres_inside_it(degrees: float) -> None:
    patch = fill_ellipse((9.3, 7.1), (6.2, 3.4), degrees, 20, 15)
    turn = np.deg2rad(degrees)
    for row in range(15):
        for column in range(20):
            dx, dy = column + 0.5 - 9.3, row + 0.5 - 7.1
            along = dx * np.cos(turn) + dy * np.sin(turn)
            across = -dx * np.sin(turn) + dy * np.cos(turn)
            inside = (along / 6.2) ** 2 + (across / 3.4) ** 2 <= 1
            assert whole(patch, 20, 15)[row, column] == inside


def test_a_quarter_turn_is_exact_and_clockwise() -> None:
    points = rotate(np.array([(3.0, 1.0)]), 90, (1.0, 1.0))
    np.testing.assert_array_equal(points, [(1.0, 3.0)])
    wide = rectangle(2, 4, 8, 6, 90)
    got = whole(fill_ring(wide, 10, 10), 10, 10)
    expected = np.zeros((10, 10), np.bool_)
    expected[2:8, 4:6] = True
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    "ring",
    [
        np.zeros((0, 2)),
        np.array([(1.0, 1.0), (5.0, 5.0)]),
        np.array([(1.0, 1.0), (5.0, 5.0), (3.0, 3.0)]),
        np.array([(-9.0, -9.0), (-3.0, -9.0), (-3.0, -3.0)]),
        np.array([(1e9, 1e9), (-1e9, 1e9), (0.0, 1e9)]),
    ],
    ids=["nothing", "a line", "flat", "outside", "far outside"],
)
def test_rings_that_cover_nothing(ring: NDArray[np.float64]) -> None:
    assert not fill_ring(ring, 8, 8).bits.any()


def test_a_ring_around_everything_covers_everything() -> None:
    ring = np.array([(-1e9, -1e9), (1e9, -1e9), (1e9, 1e9), (-1e9, 1e9)])
    assert fill_ring(ring, 7, 5).bits.all()
    assert fill_ring(ring, 7, 5).bits.shape == (5, 7)


def test_an_outline_without_end_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rasterize, "MAX_CROSSINGS", 100)
    zigzag = np.array([(i, 0.0 if i % 2 else 50.0) for i in range(40)], float)
    with pytest.raises(ValueError, match="crosses 2,000 rows"):
        fill_ring(zigzag, 60, 60)
