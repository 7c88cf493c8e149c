"""Charts: well-formed, with text alternatives, values to hover over, and places that fit."""

import xml.etree.ElementTree as ET
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacre.report.charts import (
    SHAPES,
    STYLES,
    Axis,
    Point,
    Series,
    key,
    line_chart,
    loss_chart,
    percent_axis,
    spread_out,
    step_curves,
    value_axis,
)
from nacre.report.results import ScenarioResults, load_results, percent

AXIS = Axis(0, 2, ((0, "0"), (1, "1"), (2, "2")), "step")


@pytest.fixture
def results(runs: Path) -> ScenarioResults:
    (found,) = load_results([runs])
    return found


def titles(text: str) -> list[str]:
    return [one.text or "" for one in ET.fromstring(text).iter("title")]


def test_lines_have_marks_titles_and_labels() -> None:
    points = tuple(Point(x, x / 4, f"a <{x}>") for x in (0, 1, 2))
    series = [Series("a&b", 0, points), Series("top", None, (Point(2, 0.9, "bound 0.9"),))]
    text = line_chart("T", "D", series, AXIS, percent_axis([0.9]), fences=[(1, "here")])
    root = ET.fromstring(text)
    assert root.attrib["role"] == "img"
    named = root.attrib["aria-labelledby"].split()
    assert [one.attrib["id"] for one in root if "id" in one.attrib] == named
    assert titles(text) == ["T", "a <0>", "a <1>", "a <2>", "bound 0.9"]
    words = [one.text for one in root.iter("text")]
    assert {"a&b", "top", "here", "step"} <= set(words)


@given(st.lists(st.floats(-1e6, 1e6).map(lambda value: round(value, 3)), min_size=1))
def test_axis_holds_its_values_and_zero(values: list[float]) -> None:
    axis = value_axis(values)
    assert axis.low <= min(0, *values) or axis.low == pytest.approx(min(values))
    assert axis.high >= max(0, *values) or axis.high == pytest.approx(max(values))
    assert 2 <= len(axis.ticks) <= 8


@given(st.lists(st.floats(0, 1), max_size=20))
def test_percent_axis_holds_its_values(values: list[float]) -> None:
    axis = percent_axis(values)
    assert axis.low == 0
    assert axis.high >= max([0.1, *values]) - 1e-9
    assert len(axis.ticks) <= 7


@given(st.lists(st.floats(0, 100), max_size=8).map(sorted))
def test_labels_never_touch(places: list[float]) -> None:
    moved = spread_out(places, 12, 100)
    assert all(b - a >= 12 - 1e-6 for a, b in pairwise(moved))
    assert not moved or moved[-1] <= 100 + 1e-9


def test_styles_are_told_apart_without_color() -> None:
    assert len(set(SHAPES)) == len(SHAPES)
    assert len({key(style) for style in range(STYLES)}) == STYLES


def test_curves_hold_every_figure(results: ScenarioResults) -> None:
    curves = dict(step_curves(results))
    assert len(curves) == 3
    tooltip = titles(curves["All classes so far"])
    for row in results.incremental:
        for step in range(3):
            value = percent(row.mean(step, "all"))
            assert f"{row.name}, step {step}, all: {value} %" in tooltip
    assert f"Joint, step 2, all: {percent(results.rows[-1].mean(2, 'all'))} %" in tooltip
    assert not any("step 0" in one for one in titles(curves["Old classes"]))


def test_losses_go_on_from_step_to_step(results: ScenarioResults) -> None:
    text = loss_chart(results.rows[2])
    tooltip = titles(text)
    assert tooltip[1] == "ce 0.2, step 0, iteration 10"
    assert "kd 0.5, step 2, iteration 30" in tooltip
    assert [one.text for one in ET.fromstring(text).iter("text") if "step" in (one.text or "")] == [
        "step 1",
        "step 2",
    ]


@pytest.mark.parametrize(
    ("share", "written"),
    [(None, ""), (0.5, "50.0"), (-0.123, "−12.3"), (-0.0001, "0.0"), (1, "100.0")],
)
def test_percent(share: float | None, written: str) -> None:
    assert percent(share) == written
