"""The order of images: steps smaller than a batch, updates instead of epochs, shares of a batch."""

from collections import Counter
from dataclasses import replace
from itertools import islice

import pytest

from nacre.data.dataset import StepSampler
from nacre.errors import NacreError


def flat(batches):
    return [pair for batch in batches for pair in batch]


def test_an_epoch_visits_no_image_twice_and_drops_what_is_left():
    batches = list(StepSampler(num_images=13, batch_size=4, epochs=3, seed=1))
    orders = [tuple(image for _, image in flat(batches[i : i + 3])) for i in (0, 3, 6)]
    assert [len(set(order)) for order in orders] == [12, 12, 12]
    assert len(set(orders)) == 3, "each epoch has an order of its own"


def test_a_step_smaller_than_a_batch_fills_batches_over_epoch_borders():
    sampler = StepSampler(num_images=3, batch_size=8, epochs=16, seed=1)
    batches = list(sampler)
    assert len(batches) == sampler.iterations == 6
    assert all(len(batch) == 8 for batch in batches)
    pairs = flat(batches)
    assert len(set(pairs)) == len(pairs), "no image twice in the same augmentation"
    assert Counter(image for _, image in pairs) == {0: 16, 1: 16, 2: 16}


@pytest.mark.parametrize("num_images", [3, 20])
def test_updates_can_be_counted_instead_of_epochs(num_images):
    sampler = StepSampler(num_images, batch_size=8, epochs=1, seed=1, total=7)
    assert sampler.iterations == len(list(sampler)) == 7


SHARED = StepSampler(
    num_images=60, batch_size=10, epochs=1, seed=2, total=40, shares=((50, 0.75), (10, 0.25))
)


def test_data_sets_keep_their_fraction_of_the_batches():
    counts = [sum(image >= 50 for _, image in batch) for batch in SHARED]
    assert set(counts) <= {2, 3}
    assert sum(counts) == 100
    of_second = Counter(image for _, image in flat(SHARED) if image >= 50)
    assert set(of_second.values()) == {10}, "every image of a data set comes as often as others"
    pairs = flat(SHARED)
    assert len(set(pairs)) == len(pairs)


@pytest.mark.parametrize(
    "sampler",
    [SHARED, StepSampler(3, 8, 16, 1), StepSampler(20, 8, 4, 1), StepSampler(20, 8, 4, 1, total=9)],
)
def test_a_restart_and_several_processes_change_nothing(sampler):
    whole = list(sampler)
    assert list(sampler.starting_at(3)) == whole[3:]
    parts = [replace(sampler, rank=rank, world_size=2, micro_batch=1) for rank in (0, 1)]
    local = sampler.batch_size // 2
    first = [flat(islice(part, local)) for part in parts]
    assert first[0] + first[1] == whole[0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"world_size": 3}, "4 images cannot be split evenly among 3 processes"),
        ({"micro_batch": 3}, "the 4 images of a process are not a multiple of 3"),
    ],
)
def test_batches_that_cannot_be_split_are_refused(changes, message):
    with pytest.raises(NacreError, match=message):
        StepSampler(13, 4, 3, 1, **changes)
