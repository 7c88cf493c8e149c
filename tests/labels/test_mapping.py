"""The channel of each label, and the channels that its pixels may be."""

import numpy as np
import pytest
import torch

from nacre.labels.channels import IGNORE_INDEX, first_channels, from_background
from nacre.labels.mapping import (
    LabelPolicy,
    mapping_for_tests,
    mapping_for_training,
    rows_for_loss,
)
from nacre.labels.space import LabelSpace

SPACE = LabelSpace({1: "cat", 2: "dog", 7: "bird", 9: "fish"}, background=0, ignored=255)
CHANNELS = first_channels(["dog", "cat", "bird"], {})
BIRDS = {7: "bird"}
PETS = {1: "cat", 2: "dog"}
MASK = np.array([[0, 1, 2, 7, 9, 255]], np.uint8)


def train(labeled, channels=CHANNELS, **policy):
    return mapping_for_training(channels, SPACE, LabelPolicy(**policy), labeled)


def test_unlabeled_classes_are_background_and_may_hide_there():
    mapping = train(BIRDS)
    assert mapping.apply(MASK).tolist() == [[0, 0, 0, 3, 0, 0]]
    assert mapping.hidden == ["dog", "cat"]
    assert mapping.may_be[0].tolist() == [True, True, True, False]
    assert np.array_equal(mapping.may_be[1:], np.eye(4, dtype=bool)[1:])


def test_a_known_class_that_is_labeled_again_does_not_hide():
    assert train(BIRDS | {1: "cat"}).hidden == ["dog"]


def test_hidden_classes_can_be_treated_as_background():
    assert train(BIRDS, unlabeled="background").hidden == []


def test_border_pixels_are_background_or_ignored_in_training():
    assert train(BIRDS, border="ignored").apply(MASK)[0, -1] == IGNORE_INDEX
    assert train(BIRDS, border="background").apply(MASK)[0, -1] == 0


@pytest.mark.parametrize(("unseen", "target"), [("ignored", IGNORE_INDEX), ("background", 0)])
def test_unknown_classes_are_ignored_or_background_in_tests(unseen, target):
    policy = LabelPolicy(unseen=unseen)
    mapping = mapping_for_tests(CHANNELS, SPACE, policy, SPACE.names)
    assert mapping.apply(MASK).tolist() == [[0, 2, 1, 3, target, IGNORE_INDEX]]
    never = mapping_for_tests(CHANNELS, SPACE, policy, SPACE.names, never=[9])
    assert never.apply(MASK).tolist() == [[0, 2, 1, 3, 0, IGNORE_INDEX]]


def test_classes_of_the_data_have_the_names_of_the_model():
    mapping = mapping_for_tests(CHANNELS, SPACE, LabelPolicy(), {1: "dog", 7: "bird"})
    assert mapping.apply(MASK)[0, [1, 3]].tolist() == [1, 3]
    assert mapping.hidden == ["cat"]


def test_a_predicted_unlabeled_class_counts_as_background():
    confusion = torch.arange(16).view(4, 4)
    mapping = mapping_for_tests(CHANNELS, SPACE, LabelPolicy(), BIRDS)
    folded = mapping.fold(confusion)
    assert folded[:, 0].tolist() == confusion[:, :3].sum(1).tolist()
    assert not folded[:, 1:3].any()
    assert folded[:, 3].tolist() == confusion[:, 3].tolist()
    assert confusion[0].tolist() == [0, 1, 2, 3], "the counts themselves stay"


STEP = from_background(3, 4)
"""A step that learns birds after pets."""


def test_a_loss_needs_no_rows_for_its_own_assumptions():
    own = [train(BIRDS)]
    assert rows_for_loss(own, STEP, hides_old=True) is None, "background may be any old class"
    assert rows_for_loss(own, STEP, hides_old=False) is None, "background is background"
    compared = [train(BIRDS, unlabeled="background")]
    assert rows_for_loss(compared, STEP, hides_old=False) is None
    assert rows_for_loss(compared, STEP, hides_old=True)[0, 0].tolist() == [True] + [False] * 3


def test_only_a_loss_with_hidden_old_classes_gets_their_rows():
    again = [train(BIRDS | {1: "cat"})]
    assert rows_for_loss(again, STEP, hides_old=True)[0, 0].tolist() == [True, True, False, False]
    assert rows_for_loss(again, STEP, hides_old=False) is None


def test_every_loss_gets_rows_for_new_classes_of_another_data_set():
    first = from_background(0, 4)
    for hides_old in (True, False):
        rows = rows_for_loss([train(PETS), train(BIRDS)], first, hides_old=hides_old)
        assert rows[:, 0].tolist() == [[True, False, False, True], [True, True, True, False]]


def test_every_loss_gets_rows_for_exemplars():
    kept = [train(BIRDS), train({1: "cat"})]
    for hides_old in (True, False):
        rows = rows_for_loss(kept, STEP, hides_old=hides_old)
        assert rows[0, 0].tolist() == [True, hides_old, hides_old, False]
        assert rows[1, 0].tolist() == [True, True, False, True]


@pytest.mark.parametrize("count", [254, 255, 256, 300])
def test_any_number_of_classes_has_targets_and_an_ignored_value(count):
    names = {label: f"class {label}" for label in range(1, count + 1)}
    space = LabelSpace(names, ignored=65535)
    channels = first_channels(list(names.values()), {})
    mask = np.array([0, 1, 254, 255, 256, count, 65535], np.uint16)
    mask = np.minimum(mask, np.where(mask == 65535, 65535, count)).astype(np.uint16)
    for mapping in (
        mapping_for_training(channels, space, LabelPolicy(border="ignored"), names),
        mapping_for_tests(channels, space, LabelPolicy(), names),
    ):
        targets = mapping.apply(mask)
        assert targets[:-1].tolist() == mask[:-1].tolist()
        assert targets[-1] == mapping.ignored
        assert mapping.ignored not in range(len(channels))
