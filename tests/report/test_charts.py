"""Charts: well-formed, with text alternatives, and with a tooltip for every mean."""

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacre.report.charts import NUM_STYLES, SHAPES, key, percent_ticks, step_curves
from nacre.report.results import load_results, percent


@given(st.lists(st.floats(0, 1), max_size=20))
def test_an_axis_has_few_ticks_and_contains_its_values(values: list[float]) -> None:
    ticks = percent_ticks(values)
    assert ticks[0] == 0
    assert ticks[-1] >= 100 * max([0.1, *values]) - 1e-7
    assert len(ticks) <= 7


def test_styles_are_told_apart_without_color() -> None:
    assert len(set(SHAPES)) == len(SHAPES)
    assert len({key(style) for style in range(NUM_STYLES)}) == NUM_STYLES


def test_curves_have_every_mean_and_text_alternatives(runs: Path) -> None:
    (results,) = load_results([runs])
    curves = dict(step_curves(results))
    assert len(curves) == 3
    root = ET.fromstring(curves["All classes so far"])
    assert root.attrib["role"] == "img"
    named = root.attrib["aria-labelledby"].split()
    assert [element.attrib["id"] for element in root if "id" in element.attrib] == named
    tooltips = {element.text for element in root.iter("title")}
    for row in results.incremental:
        for step in range(3):
            assert f"{row.name}, step {step}, all: {percent(row.mean(step, 'all'))} %" in tooltips
    assert f"Joint, step 2, all: {percent(results.rows[-1].mean(2, 'all'))} %" in tooltips
    assert "step 0" not in curves["Old classes"], "there are no old classes yet"


@pytest.mark.parametrize(
    ("fraction", "text"),
    [(None, ""), (0.5, "50.0"), (-0.123, "−12.3"), (-0.0001, "0.0"), (1, "100.0")],
)
def test_percent(fraction: float | None, text: str) -> None:
    assert percent(fraction) == text
