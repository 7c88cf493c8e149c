import pytest

from nacre.sweeps.tune.result import GRID, highest, least_accuracy, next_weight


def searched(accuracy_of, least):
    found = {}
    while (weight := next_weight(found, least)) is not None:
        assert weight not in found, "tried twice"
        found[weight] = accuracy_of(weight)
    return found


def test_the_grid_is_the_supplements():
    assert len(GRID) == 14
    assert GRID[:3] == (0.001, 0.005, 0.01)
    assert GRID[-3:] == (500.0, 1000.0, 5000.0)


def test_a_fifth_of_the_accuracy_may_be_lost():
    assert least_accuracy(0.5) == pytest.approx(0.4)


@pytest.mark.parametrize("last", [None, *GRID])
def test_halving_finds_the_highest_that_passes_in_four_trials(last):
    found = searched(lambda weight: 0.5 if last and weight <= last else 0.3, 0.4)
    assert highest(found, 0.4) == last
    assert len(found) <= 4


def test_an_accuracy_on_the_line_passes():
    assert highest({0.1: 0.4, 1.0: 0.39}, 0.4) == 0.1
