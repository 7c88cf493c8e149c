import multiprocessing
import os
import signal
import sys
import threading
import time

import pytest
import torch
from small_data import blocks, make_pairs

from nacre.data import dataset as loading
from nacre.data.dataset import (
    LabeledImages,
    StepSampler,
    TrainDataset,
    train_batches,
)
from nacre.data.image_io import open_image, read_mask
from nacre.data.scenes import SPACE, Scenes, ScenesConfig
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError
from nacre.labels.channels import IGNORE_INDEX
from nacre.labels.mapping import LabelPolicy
from nacre.scenarios.classes import ClassSchedule

TABLE = ClassSchedule(SPACE, ((1, 2, 3, 4), (5, 6, 7, 8)))
PAPER = LabelPolicy()
IMAGES = ImagesConfig(crop_size=24, crop="paper")


@pytest.fixture(scope="module")
def scenes():
    return Scenes(ScenesConfig(train=13, val=7, size=32, seed=5))


def training_set(scenes, seed=1):
    names, mapping = scenes.index("train").names, TABLE.training_mapping(0, PAPER)
    return TrainDataset([LabeledImages(scenes, names, mapping)], IMAGES, seed)


def order(**changes):
    values = {"num_images": 13, "batch_size": 4, "epochs": 3, "seed": 1}
    return StepSampler(**{**values, **changes})


def joined(data, order, start=0, workers=0):
    batches = train_batches(data, order, start, workers, pin=False)
    return [torch.cat([images for images, *_ in parts]) for parts in batches]


def test_neither_workers_nor_processes_nor_a_restart_change_a_sample(scenes):
    data = training_set(scenes)
    whole = joined(data, order())
    with_workers = joined(data, order(), workers=2)
    restarted = joined(data, order(), start=4)
    halves = [joined(data, order(world_size=2, rank=rank, micro_batch=1)) for rank in (0, 1)]
    for i, batch in enumerate(whole):
        assert torch.equal(batch, with_workers[i])
        assert torch.equal(batch, torch.cat([half[i] for half in halves]))
        if i >= 4:
            assert torch.equal(batch, restarted[i - 4])
    assert not torch.equal(whole[0], joined(training_set(scenes, seed=2), order())[0])


@pytest.mark.parametrize("test", ["crop", "full"])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_every_test_image_is_tested_once(scenes, test, processes):
    names = scenes.index("val").names
    images = ImagesConfig(crop_size=24, eval_mode=test)
    mapping = TABLE.testing_mapping(0, PAPER)
    data = loading.EvalDataset(LabeledImages(scenes, names, mapping, "val"), images)
    seen = [
        labels
        for rank in range(processes)
        for _, batch in loading.eval_batches(data, 2, rank, processes, num_workers=0)
        for labels in batch
    ]
    assert len(seen) == len(names)
    expected = sum(int((data[i][1] != IGNORE_INDEX).sum()) for i in range(len(names)))
    assert sum(int((labels != IGNORE_INDEX).sum()) for labels in seen) == expected
    side = 24 if test == "crop" else 32
    assert all(labels.shape == (side, side) for labels in seen)


@pytest.mark.parametrize("test", ["crop", "full"])
@pytest.mark.parametrize("processes", [1, 2, 3])
def test_a_plain_pass_reads_every_image_once_as_in_tests(scenes, test, processes):
    names = scenes.index("train").names
    images = ImagesConfig(crop_size=24, eval_mode=test)
    mapping = TABLE.training_mapping(0, PAPER)
    folders = [LabeledImages(scenes, some, mapping) for some in (names[:6], names[6:])]
    data = TrainDataset(folders, images, 1)
    dealt = [list(loading.plain_batches(data, 4, rank, processes, 0)) for rank in range(processes)]
    batches = [dealt[i % processes][i // processes] for i in range(sum(map(len, dealt)))]
    sizes = [4, 2, 4, 3] if test == "crop" else [1] * 13
    assert [len(images) for images, *_ in batches] == sizes, "a batch is of one data set"
    whose = [int(part) for *_, part in batches]
    assert whose == ([0, 0, 1, 1] if test == "crop" else [0] * 6 + [1] * 7)
    tested = loading.EvalDataset(LabeledImages(scenes, names, mapping), images)
    for part in (0, 1):
        wanted = torch.cat([tested[i][part][None] for i in range(len(names))])
        assert torch.equal(torch.cat([batch[part] for batch in batches]), wanted)


class Damaged(Scenes):
    """Scenes of which no image can be read."""

    def image(self, split, name):
        raise NacreError(f"the image {name}.jpg is damaged: it ends too early")


@pytest.mark.parametrize("workers", [0, 1])
def test_a_damaged_image_is_one_sentence_with_and_without_workers(scenes, workers):
    before = {process.pid for process in multiprocessing.active_children()}
    data = training_set(Damaged(scenes.config))
    with pytest.raises(NacreError) as caught:
        joined(data, order(), workers=workers)
    started = [one for one in multiprocessing.active_children() if one.pid not in before]
    assert not started, "at its end Python would wait for them, and they hear no signal"
    assert workers == 0 or caught.value.__cause__ is not None
    message = str(caught.value)
    assert message.startswith("the image scene-")
    assert message.endswith("is damaged: it ends too early")
    assert "Traceback" not in message


class _Files:
    """A few images, of which reading one mask ends the process that reads it."""

    space = SPACE

    def __init__(self, folder, end):
        masks = {f"{i:02}": blocks(12, 16, [0, 1]) for i in range(8)}
        self.pairs, self.end = {pair.name: pair for pair in make_pairs(folder, masks)}, end

    def image(self, split, name):
        return open_image(self.pairs[name].image)

    def mask(self, split, name):
        mask = read_mask(self.pairs[name].mask)
        if name == "05":
            self.end()
        return mask


def be_killed():
    os.kill(os.getpid(), getattr(signal, "SIGKILL", signal.SIGTERM))  # Windows knows one death


def exit_at_once():
    os._exit(3)


def be_killed_with_a_lock():
    """Die while holding the lock that the loader takes when it shuts down."""
    frame = sys._getframe()
    while "done_event" not in frame.f_locals:
        frame = frame.f_back
    frame.f_locals["done_event"]._cond.acquire()
    be_killed()


@pytest.mark.timeout(60)
@pytest.mark.parametrize(
    ("end", "workers"), [(be_killed, 1), (exit_at_once, 2), (be_killed_with_a_lock, 2)]
)
def test_a_worker_that_dies_is_one_sentence_where_the_next_batch_is_requested(
    tmp_path, monkeypatch, end, workers
):
    source = _Files(tmp_path, end)
    mapping = TABLE.training_mapping(0, PAPER)
    data = TrainDataset([LabeledImages(source, list(source.pairs), mapping)], IMAGES, 1)
    entered, enter = 0, threading.Condition.__enter__

    def enter_slowly(condition):
        """Give the worker time to die while the main thread takes the lock of a queue."""
        nonlocal entered
        result = enter(condition)
        if threading.get_ident() == threading.main_thread().ident:
            time.sleep(0.1)
            entered += 1
        return result

    monkeypatch.setattr(threading.Condition, "__enter__", enter_slowly)
    busy = []

    def learn():
        for _ in train_batches(data, order(num_images=8), 0, workers, pin=False):
            busy.append(True)
            time.sleep(0.3)  # which a signal handler could interrupt
            busy.pop()

    with pytest.raises(NacreError, match=r"^a data-loading worker died; if memory"):
        learn()
    assert not busy
    assert entered > 2
    assert not multiprocessing.active_children()


@pytest.mark.parametrize("kind", [ZeroDivisionError, ConnectionError, RuntimeError])
@pytest.mark.parametrize("workers", [0, 1])
def test_other_errors_pass_as_they_are(scenes, monkeypatch, kind, workers):
    def fail(dataset, key):
        raise kind("not ours")

    monkeypatch.setattr(TrainDataset, "__getitem__", fail)
    with pytest.raises(kind, match="not ours"):
        joined(training_set(scenes), order(), workers=workers)
