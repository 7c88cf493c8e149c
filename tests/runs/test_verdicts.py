"""Verdicts: a word for every class after a step, and a reason if it is bad."""

from types import SimpleNamespace
from typing import Any

import pytest

from nacre.data.transforms import ImagesConfig
from nacre.runs.verdicts import judge


def step(*counts: dict[int, int]) -> Any:
    """Return a step that adds a bird, label 3, to a model of cats, with pixel counts by image."""
    one = SimpleNamespace(names={3: "bird"}, train_index=SimpleNamespace(pixel_counts=counts))
    return SimpleNamespace(
        sets=[one],
        channels=SimpleNamespace(names=("background", "cat", "bird")),
        new=("bird",),
        config=ImagesConfig(crop_size=160),
    )


LARGE = [{0: 5000, 3: 5000}] * 9


@pytest.mark.parametrize(
    ("iou", "word"),
    [
        (0.0, "not learned"),
        (0.04, "not learned"),
        (0.2, "weak"),
        (0.3, "learned"),
        (None, "not tested"),
    ],
)
def test_a_new_class_is_judged_by_its_iou(iou, word):
    found = judge(step(*LARGE), 16, {"bird": iou}, {}, {})["bird"]
    assert found["word"] == word
    assert bool(found["reason"]) == (word != "learned")


@pytest.mark.parametrize(
    ("counts", "reason"),
    [
        ([{0: 9000, 3: 1000}] * 4, "only 4 training images contain it: label more"),
        ([{0: 9990, 3: 36}] * 9, "it is about 10 pixels wide, .* --set images.crop_size=320"),
        ([{0: 9910, 3: 90}] * 9, "wide"),
        (LARGE, "try more updates"),
    ],
)
def test_a_class_that_was_not_learned_has_the_likely_reason(counts, reason):
    import re

    found = judge(step(*counts), 16, {"bird": 0.0}, {}, {})["bird"]
    assert re.search(reason, found["reason"]), found


@pytest.mark.parametrize("counts", [LARGE, [{0: 49900, 3: 100}] * 9])
def test_more_updates_are_not_advised_after_a_step_without_updates(counts):
    found = judge(step(*counts), 4, {"bird": 0.0}, {}, {}, has_updates=False)["bird"]
    assert "label more" in found["reason"]
    assert "updates" not in found["reason"]


@pytest.mark.parametrize(
    ("now", "was", "agreement", "word"),
    [
        (0.6, 0.6, None, "kept"),
        (0.5, 0.6, None, "kept"),
        (0.4, 0.6, None, "lost"),
        (0.02, 0.05, None, "kept"),
        (None, None, 0.9, "kept"),
        (None, None, 0.1, "not tested"),
        (None, None, None, "not tested"),
    ],
)
def test_an_old_class_is_judged_by_its_loss(now, was, agreement, word):
    agreed = {} if agreement is None else {"cat": agreement}
    found = judge(step(*LARGE), 16, {"cat": now, "bird": 0.9}, {"cat": was}, agreed)
    assert found["cat"]["word"] == word
