"""Where pixels go wrong, and what is learnt less well than jointly."""

from pathlib import Path

import numpy as np
import pytest

from nacre.report.page.error_analysis import error_breakdowns, intransigence, mean_forgetting
from nacre.report.results.aggregate import ScenarioResults, load_results


@pytest.fixture
def results(runs: Path) -> ScenarioResults:
    (found,) = load_results([runs])
    return found


def test_fates_are_parts_of_the_confusion_matrix(results: ScenarioResults) -> None:
    row = results.rows[2]
    last = row.runs[0].last
    # Channels: background, six old classes, two new ones.
    matrix = np.array(last.confusion)
    background, old, new = error_breakdowns(results, row)
    assert [one.truth for one in (background, old, new)] == ["background", "old", "new"]
    total = matrix[1:7].sum()
    assert old.pixels == total
    assert old.shares["right"] == pytest.approx(np.trace(matrix[1:7, 1:7]) / total)
    assert old.shares["background"] == pytest.approx(matrix[1:7, 0].sum() / total)
    wrong = matrix[1:7, 1:7].sum() - np.trace(matrix[1:7, 1:7])
    assert old.shares["old"] == pytest.approx(wrong / total)
    assert old.shares["new"] == pytest.approx(matrix[1:7, 7:].sum() / total)
    assert background.shares["background"] == 0
    for one in (background, old, new):
        assert sum(one.shares.values()) == pytest.approx(1)


def test_joint_training_has_the_same_sides(results: ScenarioResults) -> None:
    joint = error_breakdowns(results, results.rows[-1])
    matrix = np.array(results.rows[-1].runs[0].last.confusion)
    assert joint[2].pixels == matrix[7:].sum()


def test_intransigence_is_what_joint_training_has_more(results: ScenarioResults) -> None:
    mib, joint = results.rows[2], results.rows[-1]
    found = intransigence(results, mib)
    for step in range(3):
        bound, own = joint.mean(2, f"step_{step}"), mib.mean(step, "new")
        assert bound is not None
        assert own is not None
        assert found[step] == pytest.approx(bound - own)
    assert intransigence(results, joint) == [None] * 3


def test_without_joint_training_there_is_none(runs: Path) -> None:
    (results,) = load_results([runs / "mib"])
    assert intransigence(results, results.rows[0]) == [None] * 3


def test_mean_forgetting_leaves_the_background_out(results: ScenarioResults) -> None:
    row = results.rows[0]
    forgotten = row.runs[0].forgetting
    values = [
        value for name, value in forgotten.items() if name != "background" and value is not None
    ]
    assert "background" in forgotten
    assert mean_forgetting(results, row) == pytest.approx(sum(values) / len(values))
