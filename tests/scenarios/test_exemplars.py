"""The choice of exemplars: balanced, repeatable, and within its limit."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from nacre.labels.space import LabelIndex, LabelSpace
from nacre.scenarios.classes import ClassSchedule
from nacre.scenarios.scenario import choose_exemplars, keep_exemplars

candidates = st.dictionaries(
    st.text("abcdef", min_size=1, max_size=4), st.frozensets(st.integers(1, 5)), max_size=30
)


@given(labels=candidates, size=st.integers(0, 20), seed=st.integers(0, 9))
def test_the_memory_is_as_full_as_can_be_and_holds_nothing_twice(
    labels: dict[str, frozenset[int]], size: int, seed: int
) -> None:
    chosen = choose_exemplars(labels, size, seed=seed)
    useful = {name for name, held in labels.items() if held}
    assert len(set(chosen)) == len(chosen) == min(size, len(useful))
    assert set(chosen) <= useful


@given(labels=candidates, size=st.integers(0, 20), seed=st.integers(0, 9))
def test_a_smaller_memory_is_the_beginning_of_a_larger_one(
    labels: dict[str, frozenset[int]], size: int, seed: int
) -> None:
    reordered = dict(reversed(labels.items()))
    larger = choose_exemplars(labels, size, seed=seed)
    assert choose_exemplars(reordered, size // 2, seed=seed) == larger[: size // 2]


@given(labels=candidates, seed=st.integers(0, 9))
def test_no_class_goes_without_while_another_gets_a_second_image(
    labels: dict[str, frozenset[int]], seed: int
) -> None:
    classes = {label for held in labels.values() for label in held}
    chosen = choose_exemplars(labels, len(classes), seed=seed)
    held = {label for name in chosen for label in labels[name]}
    assert held == classes


def test_rare_classes_are_as_frequent_as_common_ones() -> None:
    labels = {f"common {n}": {1} for n in range(500)} | {f"rare {n}": {2} for n in range(10)}
    chosen = choose_exemplars(labels, 20, seed=0)
    assert Counter(name.split()[0] for name in chosen) == {"common": 10, "rare": 10}


def test_an_image_is_kept_for_what_its_own_step_labeled() -> None:
    classes = ClassSchedule(LabelSpace({1: "a", 2: "b", 3: "c"}), ((1,), (2,), (3,)))
    names = tuple("pqrst")
    labels = tuple(dict.fromkeys(held, 1) for held in ({1, 2}, {1}, {2}, {2, 3}, {1, 3}))
    memories = keep_exemplars(
        classes, LabelIndex(names, labels), ((0, 1, 4), (0, 2, 3), (3, 4)), 3, seed=0
    )
    assert memories[:2] == [{}, {0: ["p", "q", "t"]}]
    assert sorted(memories[2]) == [0, 1], "class b, of step 1, has its part"
    assert sum(map(len, memories[2].values())) == 3
    assert set(memories[2][0]) <= set("pqt")
