import numpy as np
import pytest

from nacre.errors import NacreError
from nacre.labels.channels import IGNORE_INDEX, from_background
from nacre.labels.mapping import LabelPolicy
from nacre.labels.space import LabelSpace
from nacre.scenarios.classes import ClassSchedule

SPACE = LabelSpace(names={1: "cat", 2: "dog", 7: "cow", 9: "sheep"}, background=0, ignored=255)
TABLE = ClassSchedule(SPACE, ((2, 1), (9,)))
PAPER = LabelPolicy()
LATER = LabelPolicy(border="ignored", unseen="background")


def test_channels_follow_the_order_of_learning():
    assert TABLE.names(0) == ("background", "dog", "cat")
    assert TABLE.names(1) == ("background", "dog", "cat", "sheep")
    assert TABLE.channels(1).step_of == (0, 0, 0, 1)
    assert [TABLE.growth(0), TABLE.growth(1)] == [from_background(0, 3), from_background(3, 4)]


@pytest.mark.parametrize(
    ("mapping", "targets"),
    [
        (TABLE.training_mapping(0, PAPER), [0, 2, 1, 0, 0, 0]),
        (TABLE.training_mapping(1, PAPER), [0, 0, 0, 0, 3, 0]),
        (TABLE.training_mapping(1, LATER), [0, 0, 0, 0, 3, IGNORE_INDEX]),
        (TABLE.testing_mapping(0, PAPER), [0, 2, 1, 0, IGNORE_INDEX, IGNORE_INDEX]),
        (TABLE.testing_mapping(0, LATER), [0, 2, 1, 0, 0, IGNORE_INDEX]),
        (TABLE.testing_mapping(1, PAPER), [0, 2, 1, 0, 3, IGNORE_INDEX]),
    ],
)
def test_training_hides_all_but_new_classes_and_tests_what_is_not_learned_yet(mapping, targets):
    """A cow is outside the task: it is background in both."""
    assert mapping.apply(np.array([[0, 1, 2, 7, 9, 255]], np.uint8)).tolist() == [targets]


def test_unlabeled_background_does_not_count_in_tests():
    space = LabelSpace({1: "a", 2: "b"}, 0, None, ignore_background_in_tests=True)
    table = ClassSchedule(space, ((1,), (2,)))
    assert table.testing_mapping(1, PAPER).lookup[:3].tolist() == [IGNORE_INDEX, 1, 2]
    assert table.training_mapping(1, PAPER).lookup[:3].tolist() == [0, 0, 2]


def test_data_without_background_maps_the_rest_to_channel_0():
    space = LabelSpace({0: "sky", 1: "road", 2: "car"}, background=None, ignored=11)
    table = ClassSchedule(space, ((1,), (0, 2)))
    assert table.training_mapping(0, PAPER).lookup[[0, 1, 2, 11]].tolist() == [0, 1, 0, 0]
    assert table.testing_mapping(0, LATER).lookup[[0, 1, 2, 11]].tolist() == [0, 1, 0, IGNORE_INDEX]
    assert table.names(1) == ("background", "road", "sky", "car")


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: ClassSchedule(SPACE, ((1,), ())), "step 1 learns no class"),
        (lambda: ClassSchedule(SPACE, ((1,), (1,))), "'cat' is learned twice"),
        (
            lambda: ClassSchedule(SPACE, ((3,),)),
            "label 3 is not a class of this data; labels: 1..2",
        ),
        (lambda: SPACE.label_of("kat"), r"no class is named 'kat' \(did you mean 'cat'\?\)"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(NacreError, match=message):
        make()


def test_a_background_without_a_label_has_no_class_color():
    space = LabelSpace({0: "sky", 1: "road"}, None, None, colors={0: (9, 9, 9), 1: (1, 1, 1)})
    assert ClassSchedule(space, ((0, 1),)).channels(0).colors == ((0, 0, 0), (9, 9, 9), (1, 1, 1))


def test_labels_of_an_earlier_step_become_targets_of_the_later_ones_width() -> None:
    space = LabelSpace({label: f"class {label}" for label in range(1, 301)}, ignored=1000)
    classes = ClassSchedule(space, (tuple(range(1, 201)), tuple(range(201, 301))))
    assert classes.training_mapping(0, LATER).lookup.dtype == np.uint8
    table = classes.training_mapping(0, LATER, at=1).lookup
    assert table.dtype == classes.training_mapping(1, LATER).lookup.dtype == np.int16
    assert table[200] == 200
    assert table[201] == 0, "a class of the later step is background in an earlier one's image"
    assert table[1000] == -1
