import pytest

from nacre.data import DATASETS
from nacre.errors import NacreError
from nacre.labels.space import LabelIndex, LabelSpace
from nacre.scenarios.scenario import (
    check_images,
    images_to_test,
    make_plan,
    make_scenario,
    read_scenario,
    shipped_scenarios,
    split_classes,
    step_images,
)

SPACE = LabelSpace({1: "cat", 2: "dog", 3: "cow"})


def index(*labels):
    names = tuple(f"image-{i}" for i in range(len(labels)))
    return LabelIndex(names, tuple(dict.fromkeys(one, 1) for one in labels))


def scenario(text="voc/1-1/overlapped", space=SPACE, named=None):
    return make_scenario(text, read_scenario(text), space, named or {})


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        ("15-5", [15, 5]),
        ("15-1", [15, 1, 1, 1, 1, 1]),
        ("10-5", [10, 5, 5]),
        ("4-2-14", [4, 2, 14]),
        ("20", [20]),
    ],
)
def test_tasks_split_the_classes(task, sizes):
    steps = split_classes(task, range(1, 21))
    assert [len(step) for step in steps] == sizes
    assert [label for step in steps for label in step] == list(range(1, 21))


@pytest.mark.parametrize(
    ("task", "message"),
    [
        ("15-", "task '15-' is not a list of class numbers such as 19-1"),
        ("15-3", "after 15 of the 20 classes, 5 cannot be split into steps of 3"),
        ("10-5-4", "has 19 classes, but the data has 20"),
        ("25", "has 25 classes, but the data has 20"),
        ("0-20", "not a list of class numbers"),
    ],
)
def test_tasks_that_do_not_add_up_are_refused(task, message):
    with pytest.raises(NacreError, match=message):
        split_classes(task, range(1, 21))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("voc/15-5/overlaped", r"'overlaped' \(did you mean 'overlapped'\?\)"),
        ("voc/15-5", "has 2 part"),
        ("voc//overlapped", "write three"),
        ("voc-animals", "unknown scenario 'voc-animals'"),
        ("nowhere.yaml", "could not read scenario file nowhere.yaml"),
    ],
)
def test_typing_errors_in_a_scenario_are_named(text, message):
    with pytest.raises(NacreError, match=message):
        read_scenario(text)


def test_overlapped_and_disjoint():
    images = index({0, 1}, {0, 1, 2}, {2, 255}, {0, 3}, {0})
    assert step_images(scenario(), images) == ((0, 1), (1, 2), (3,))
    disjoint = scenario("voc/1-1/disjoint")
    assert step_images(disjoint, images) == ((0,), (1, 2), (3,))


def test_a_disjoint_image_may_contain_a_class_outside_the_task(tmp_path):
    path = tmp_path / "animals.yaml"
    path.write_text("data: voc\nsetup: disjoint\nsteps: [[cat], [2]]\n")
    applied = make_scenario("animals", read_scenario(str(path)), SPACE, {})
    assert applied.classes.steps == ((1,), (2,))
    assert step_images(applied, index({1, 3}, {1, 2}, {2, 3})) == ((0,), (1, 2))


def test_order_by_name_or_label(tmp_path):
    path = tmp_path / "one.yaml"
    path.write_text("data: voc\ntask: 1-1\norder: [cow, 1, dog]\n")
    assert make_scenario("one", read_scenario(str(path)), SPACE, {}).classes.steps == (
        (3,),
        (1,),
        (2,),
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("data: voc\n", "needs either `task` or `steps`"),
        ("data: voc\ntask: 1-1\nsetups: disjoint\n", r"unknown key \(did you mean 'setup'\?\)"),
        ("data: voc\nsteps: [[cat]]\norder: [cat]\n", "`order` needs `task`"),
        ("- 1", "must hold `data:`"),
        ("data: [", "is not valid YAML"),
        ("data: voc\nsteps: []\n", "there is no step"),
    ],
)
def test_mistakes_in_a_scenario_file(tmp_path, content, message):
    path = tmp_path / "one.yaml"
    path.write_text(content)
    with pytest.raises(NacreError, match=message):
        make_scenario("one", read_scenario(str(path)), SPACE, {})


def test_tests_use_the_images_with_a_known_class():
    images = index({0}, {1}, {0, 2}, {3})
    assert images_to_test(scenario().classes, 0, images) == (1,)
    assert images_to_test(scenario().classes, 1, images) == (1, 2)


def test_an_empty_class_and_a_step_without_images_are_errors():
    one = index({1}, {2})
    with pytest.raises(NacreError, match=r"no training image holds a pixel of 'cow' \(label 3\)"):
        check_images(scenario(), one, step_images(scenario(), one))
    together = index({1, 2, 3})
    disjoint = scenario("voc/1-1/disjoint")
    with pytest.raises(NacreError, match=r"step 0 \(cat\) has no images in the setup 'disjoint'"):
        check_images(disjoint, together, step_images(disjoint, together))


def test_merged_learns_all_classes_in_one_step_and_keeps_the_groups():
    merged = scenario().merged()
    assert merged.classes.names(0) == scenario().classes.names(2)
    assert merged.classes.steps == ((1, 2, 3),)
    assert merged.groups == ((1,), (2,), (3,))


@pytest.mark.parametrize("name", sorted(shipped_scenarios()))
def test_every_shipped_scenario_is_valid(name):
    written = read_scenario(name)
    assert written.about
    data = DATASETS[written.data]
    if data.space is not None:
        make_scenario(name, written, data.space, data.tasks())


@pytest.mark.parametrize(
    ("data", "task"),
    [(name, task) for name, one in DATASETS.items() if one.space for task in one.examples],
)
def test_every_example_task_is_valid(data, task):
    one = DATASETS[data]
    applied = make_scenario("x", read_scenario(f"{data}/{task}/overlapped"), one.space, one.tasks())
    learned = [label for step in applied.classes.steps for label in step]
    assert sorted(learned) == sorted(one.space.names)


def test_a_shipped_scenario_takes_another_setup() -> None:
    disjoint = read_scenario("voc-animals-4-1/disjoint")
    assert disjoint.setup == "disjoint"
    assert disjoint.steps == read_scenario("voc-animals-4-1").steps
    with pytest.raises(NacreError, match="setup in scenario 'voc-animals-4-1/joint'"):
        read_scenario("voc-animals-4-1/joint")


def test_a_plan_counts_the_classes_hidden_in_the_background_of_a_step():
    counted = LabelIndex(
        ("a", "b", "c"),
        ({0: 50, 1: 30, 2: 20}, {2: 60, 3: 40}, {1: 100}),
    )
    first, second, third = make_plan(
        scenario("voc/1-1/overlapped"), counted, [(0, 2), (0, 1), (2,)]
    )
    assert (first.hidden_old, first.hidden_future) == ({}, {"dog": 1})
    assert (second.hidden_old, second.hidden_future) == ({"cat": 1}, {"cow": 1})
    assert first.background == {"old": 0, "future": 20 / 70}
    assert second.background == {"old": 30 / 120, "future": 40 / 120}
    assert third.background == {"old": 1, "future": 0}
    alone = LabelIndex(("d",), ({1: 9},))
    (only, *_) = make_plan(scenario("voc/1-1/overlapped"), alone, [(0,), (), ()])
    assert only.background == {"old": 0, "future": 0}, "a step without background"
