import numpy as np
import pytest
import torch

from nacre.errors import NacreError
from nacre.labels.channels import (
    Channels,
    Growth,
    distinct_colors,
    extend_colors,
    first_channels,
    from_background,
    ignore_value,
    target_dtype,
)

CAT = (200, 10, 10)


def test_a_step_appends_its_channels():
    first = first_channels(["cat", "dog"], {"cat": CAT})
    second = first.extended(["bird"], {})
    assert second.names == ("background", "cat", "dog", "bird")
    assert second.colors[:3] == first.colors
    assert first.colors[1] == CAT
    assert second.step_of == (0, 0, 0, 1)
    assert second.per_step == [3, 1]
    assert [second.learned_in(step) for step in (0, 1)] == [("cat", "dog"), ("bird",)]
    assert second.of == {"background": 0, "cat": 1, "dog": 2, "bird": 3}


def test_no_two_classes_get_the_same_color():
    spread = extend_colors([(0, 0, 0)], ("background", "a", "b", "c"), {})
    assert len(set(spread)) == 4
    # A cat that has the color of the next channel, and a bird without a color of its own.
    cat = spread[2]
    colors = extend_colors([(0, 0, 0), cat], ("background", "cat", "bird"), {})
    assert colors[:2] == [(0, 0, 0), cat]
    assert colors[2] not in colors[:2]
    # The data's own colors are taken, but for one that another class has.
    own = {"bird": cat, "fish": spread[1], "cow": (9, 9, 9)}
    names = ("background", "cat", "bird", "fish", "cow")
    colors = extend_colors([(0, 0, 0), cat], names, own)
    assert colors[3:] == [spread[1], (9, 9, 9)]
    assert len(set(colors)) == 5


def test_spread_colors_are_distinct():
    colors = distinct_colors(40)
    assert len(set(colors)) == 40
    assert colors[0] == (0, 0, 0)


def test_more_classes_than_16_bits_can_name_are_refused():
    names = tuple(f"class {i}" for i in range(32_767))
    with pytest.raises(NacreError, match="32,767 classes are too many; at most 32,766"):
        Channels(("background", *names), ((0, 0, 0),) * 32_768, (0,) * 32_768)


@pytest.mark.parametrize(("count", "dtype"), [(255, "uint8"), (256, "int16"), (257, "int16")])
def test_the_ignored_target_is_never_a_channel(count, dtype):
    assert target_dtype(count) == dtype
    for targets in (np.zeros(1, dtype), torch.zeros(1, dtype=getattr(torch, dtype))):
        assert ignore_value(targets) not in range(count)


def test_in_step_0_the_background_is_new_too():
    growth = from_background(0, 4)
    assert (growth.first_new, growth.num_new, growth.new_origins) == (1, 4, (0, 0, 0))


def test_a_class_may_split_from_a_class():
    growth = Growth(4, (0, 1, 2, 3, 2, 2, 0))
    assert (growth.first_new, growth.num_new) == (4, 3)
    assert growth.new_origins == (2, 2, 0)
    assert from_background(4, 7).new_origins == (0, 0, 0)


@pytest.mark.parametrize("origins", [(0, 2, 1, 0), (0, 1, 2, 3), (1, 1, 2, 0)])
def test_old_channels_stay_and_new_ones_come_from_old_ones(origins):
    with pytest.raises(AssertionError):
        Growth(3, origins)
