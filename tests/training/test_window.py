"""Losses are read when a line of events is due; one that is no number is named with its place."""

import pytest
import torch

from nacre.errors import ReportedElsewhere
from nacre.training import window as windows
from nacre.training.loop import update
from nacre.training.trainer import NotFinite
from nacre.training.window import LossWindow
from nacre.utils.distributed import Distributed
from small_steps import second_step

NAN = float("nan")


@pytest.fixture
def trainer():
    return second_step("lwf", count=1)[0]


def add(window, *values):
    for value in values:
        window.trainer.iteration += 1
        window.add({"ce": torch.tensor(value), "kd": torch.tensor(2.0)})


def test_the_iteration_of_a_loss_that_is_no_number_is_named_when_the_window_is_read(trainer):
    window = LossWindow(trainer, 4)
    add(window, 1.0, 2.0, NAN, 1.0, NAN)
    message = (
        r"not a finite number in step 1, iteration 2: ce = nan, kd = 2.0; a smaller method.weight"
    )
    with pytest.raises(NotFinite, match=message):
        window.close()


def test_all_processes_end_and_one_says_why(trainer):
    trainer.dist = Distributed(1, 1, torch.device("cpu"))
    window = LossWindow(trainer, 4)
    add(window, float("inf"))
    with pytest.raises(ReportedElsewhere):
        window.read()


def test_a_window_tells_means_and_begins_anew(trainer):
    window = LossWindow(trainer, 4)
    add(window, 1.0, 3.0)
    window.read()
    add(window, 5.0)
    event = window.close()
    assert event.losses == {"ce": 3.0, "kd": 2.0}
    assert event.update_seconds >= event.data_seconds >= 0
    add(window, 7.0)
    assert window.close().losses["ce"] == 7.0


def test_a_long_window_is_read_before_it_takes_room(trainer, monkeypatch):
    monkeypatch.setattr(windows, "_MOST", 3)
    window = LossWindow(trainer, 4)
    add(window, 1.0, 1.0)
    with pytest.raises(NotFinite, match="iteration 2"):
        add(window, NAN)


def test_the_norm_of_the_gradient_and_the_memory_are_told(trainer):
    samples = second_step("lwf", count=1)[2]
    window = LossWindow(trainer, 4)
    for batch in window.loading([samples[:1]]):
        window.add(update(trainer, batch, measure=True))
    event = window.close()
    gradients = [one.grad.flatten() for one in trainer.network.parameters()]
    assert event.gradient_norm == pytest.approx(float(torch.cat(gradients).norm()), rel=1e-4)
    assert event.memory_bytes > 1 << 20
