"""The printed loop runs as printed, and losses are read when an event is due."""

import re

import pytest
import torch

import nacre.methods.base
from nacre.errors import ReportedElsewhere
from nacre.methods.base import Method
from nacre.training import loop
from nacre.training.loop import LossWindow
from nacre.training.trainer import NotFinite
from nacre.utils.distributed import Distributed
from small_steps import second_step
from tiny_runs import tiny_run

COMPONENTS = ("freeze", "find_thresholds", "pseudo_labels", "auxiliary_row", "fuse")
HOOK = re.compile(rf"method\.(\w+)\(|\b({'|'.join(COMPONENTS)})\(")


def printed(updates: int) -> list[str]:
    """Return the calls in the docstring, those in the loop once per update."""
    lines = [line for line in (nacre.methods.base.__doc__ or "").split("\n") if line[:4] == " " * 4]
    start = next(i for i, line in enumerate(lines) if line.startswith("    for batch in"))
    end = next(i for i, line in enumerate(lines) if i > start and line[4] != " ")
    parts = (lines[:start], lines[start:end] * updates, lines[end:])
    return [a or b for part in parts for line in part for a, b in HOOK.findall(line)]


def test_every_hook_is_called_in_the_order_in_which_it_is_printed(tmp_path, monkeypatch):
    called: list[str] = []

    def watched(name, function):
        def call(*args, **kwargs):
            called.append(name)
            return function(*args, **kwargs)

        return call

    hooks = set(printed(1)) - set(COMPONENTS)
    for kind in (Method, nacre.methods.find_method("mib")):
        for name in hooks & vars(kind).keys():
            monkeypatch.setattr(kind, name, watched(name, vars(kind)[name]))
    for name in COMPONENTS:
        monkeypatch.setattr(loop, name, watched(name, getattr(loop, name)))
    updates = {"iterations": 2, "batch_size": 4}
    tiny_run(tmp_path, scenario="scenes/4-4/overlapped", method="mib", train=updates)
    steps = [i for i, name in enumerate(called) if name == "prepare"]
    assert len(steps) == 2
    assert called[steps[1] - 1 :] == printed(2)
    public = {name for name in vars(Method) if name[0] != "_" and callable(vars(Method)[name])}
    others = {"network_config", "state", "load_state"}  # not in the loop: what is built and kept
    assert public - others == hooks


NAN = float("nan")


@pytest.fixture
def trainer():
    return second_step("lwf", count=1)[0]


def add(window, *values):
    for value in values:
        window.trainer.iteration += 1
        window.add({"ce": torch.tensor(value), "kd": torch.tensor(2.0)})


def test_the_error_of_a_loss_that_is_not_finite_names_its_iteration(trainer):
    window = LossWindow(trainer)
    add(window, 1.0, 2.0, NAN, 1.0, NAN)
    message = (
        r"not a finite number in step 1, iteration 2: ce = nan, kd = 2.0; a smaller method.weight"
    )
    with pytest.raises(NotFinite, match=message):
        window.close()


def test_all_processes_end_and_one_reports_the_error(trainer):
    trainer.dist = Distributed(1, 1, torch.device("cpu"))
    window = LossWindow(trainer)
    add(window, float("inf"))
    with pytest.raises(ReportedElsewhere):
        window.read()


def test_a_window_returns_means_and_starts_again(trainer):
    window = LossWindow(trainer)
    add(window, 1.0, 3.0)
    window.read()
    add(window, 5.0)
    event = window.close()
    assert event.losses == {"ce": 3.0, "kd": 2.0}
    assert event.update_seconds >= event.data_seconds >= 0
    add(window, 7.0)
    assert window.close().losses["ce"] == 7.0


def test_a_long_window_is_read_before_it_fills_the_memory(trainer, monkeypatch):
    monkeypatch.setattr(loop, "MAX_PENDING_LOSSES", 3)
    window = LossWindow(trainer)
    add(window, 1.0, 1.0)
    with pytest.raises(NotFinite, match="iteration 2"):
        add(window, NAN)
