"""Polygons that, painted in their order, are the class map again."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from nacre.importers.rasterize import fill_ring
from nacre.predict.polygons import Ring, leave_out_small, simplify, trace_rings


def paint(rings: list[Ring], shape: tuple[int, int], tolerance: float = 0.0):
    """Paint rings with the importers' own rasteriser."""
    height, width = shape
    found = np.full(shape, 255, np.uint8)
    for ring in rings:
        patch = fill_ring(simplify(ring.points, tolerance), width, height)
        rows = slice(patch.top, patch.top + patch.bits.shape[0])
        columns = slice(patch.left, patch.left + patch.bits.shape[1])
        found[rows, columns][patch.bits] = ring.channel
    return found


@settings(max_examples=150, deadline=None)
@given(
    arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(0, 3))
)
def test_painted_rings_are_the_class_map(classes) -> None:
    assert (paint(trace_rings(classes), classes.shape) == classes).all()


@settings(max_examples=50, deadline=None)
@given(
    arrays(np.uint8, array_shapes(min_dims=2, max_dims=2, max_side=12), elements=st.integers(0, 3)),
    st.integers(1, 7),
)
def test_rings_traced_tile_by_tile_are_the_class_map(classes, tile: int) -> None:
    assert (paint(trace_rings(classes, tile), classes.shape) == classes).all()


def test_a_rectangle_has_four_corners() -> None:
    classes = np.zeros((9, 12), np.uint8)
    classes[2:5, 3:10] = 1
    whole, inner = trace_rings(classes)
    assert (whole.channel, whole.area) == (0, 9 * 12)
    assert (inner.channel, inner.area) == (1, 3 * 7)
    assert sorted(map(tuple, inner.points.tolist())) == [(3, 2), (3, 5), (10, 2), (10, 5)]


def test_pixels_that_touch_only_at_a_corner_are_separate() -> None:
    classes = np.array([[1, 0], [0, 1]], np.uint8)
    assert [ring.area for ring in trace_rings(classes)] == [1, 1, 1, 1]


def test_small_regions_and_holes_are_left_out_but_never_the_largest_of_a_class() -> None:
    clean = np.zeros((20, 30), np.uint8)
    clean[2:12, 3:15] = 1
    clean[16:18, 20:22] = 2
    dusty = clean.copy()
    dusty[5, 6:8] = 0  # a hole
    dusty[8, 8] = 2
    dusty[15, 2:4] = 1
    kept = leave_out_small(trace_rings(dusty), smallest=10)
    assert [(ring.channel, ring.area) for ring in kept] == [(0, 600), (1, 120), (2, 4)]
    assert (paint(kept, dusty.shape) == clean).all()
    assert (paint(leave_out_small(trace_rings(dusty), smallest=1), dusty.shape) == dusty).all()


@pytest.mark.parametrize("tolerance", [0.8, 1.5])
def test_simplified_rings_have_fewer_corners_and_are_near(tolerance: float) -> None:
    rows, columns = np.mgrid[:80, :90]
    classes = ((rows - 40) ** 2 + (columns - 44) ** 2 < 30**2).astype(np.uint8)
    _, disc = trace_rings(classes)
    smooth = simplify(disc.points, tolerance)
    assert len(smooth) < len(disc.points) / 2
    painted = paint(trace_rings(classes), classes.shape, tolerance) == 1
    assert (painted & (classes == 1)).sum() / (painted | (classes == 1)).sum() > 0.95


def test_more_than_256_classes_keep_their_numbers() -> None:
    classes = np.arange(40_000, 40_006, dtype=np.uint16).reshape(2, 3)
    assert {ring.channel for ring in trace_rings(classes)} == set(range(40_000, 40_006))
