import sys

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nacre.errors import NacreError
from nacre.runs.run import run_scenario
from nacre.runs.trackers import TRACKERS, TensorBoard, run_id, tracking
from nacre.training.events import RunBegan, StepTested, Trained, read_events
from tiny_runs import tiny_config

BEGAN = RunBegan("s", "mib", 1, "cpu", 1, "float32", "none", [7, 5, 3])


def test_tensorboard_has_what_the_events_have(tmp_path):
    out = tmp_path / "run"
    track = TensorBoard(out)
    run_scenario(tiny_config(), out, observers=[track])
    track.close()
    board = EventAccumulator(str(tmp_path / "run-tensorboard"))
    board.Reload()
    events = read_events(out / "events.jsonl")
    trained = [event for event in events if isinstance(event, Trained)]
    shown = board.Scalars("loss/ce")
    assert [one.value for one in shown] == pytest.approx(
        [event.losses["ce"] for event in trained], rel=1e-5
    )
    assert [one.step for one in shown] == list(range(1, len(trained) + 1))
    means = [event.mean_iou for event in events if isinstance(event, StepTested)]
    assert [one.value for one in board.Scalars("miou/all_without_background")] == pytest.approx(
        [mean["all_without_background"] for mean in means], rel=1e-5
    )


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_a_missing_tracker_names_its_extra(tmp_path, monkeypatch, name):
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(NacreError, match=rf"pip install .*\[{name}\]"):
        TRACKERS[name](tmp_path)


def test_an_unknown_tracker_is_a_sentence(tmp_path):
    with pytest.raises(NacreError, match="unknown tracker 'wandd'"), tracking(tmp_path, ["wandd"]):
        pass


class Package:
    """A package that records every call of its functions."""

    def __init__(self):
        self.calls = []

    def __getattr__(self, name):
        def call(*values, **more):
            self.calls.append((name, values, more))

        return call


def tracked(monkeypatch, name, run):
    """Return a tracker's calls of its package in the middle of a run."""
    package = Package()
    monkeypatch.setitem(sys.modules, name, package)
    track = TRACKERS[name](run)
    track(BEGAN)
    track(Trained(1, 2, 0.1, {"ce": 1.5}, 10.0))
    track(StepTested(1, {"all": 0.5, "old": None}))
    track.close()
    return package.calls


VALUES = {"loss/ce": 1.5, "lr": 0.1, "images per second": 10.0}
MEANS = {"miou/all": 0.5, "step": 1}


def test_wandb_resumes_the_run_of_a_folder(tmp_path, monkeypatch):
    run = tmp_path / "run"
    init, define, first, second, finish = tracked(monkeypatch, "wandb", run)
    assert (init[0], init[2]["id"], init[2]["resume"]) == ("init", run_id(run), "allow")
    assert init[2]["config"]["method"] == "mib"
    assert define == ("define_metric", ("*",), {"step_metric": "iteration"})
    assert first == ("log", ({**VALUES, "iteration": 9},), {})
    assert second == ("log", ({**MEANS, "iteration": 12},), {})
    assert finish[0] == "finish"


def test_trackio_gets_the_same(tmp_path, monkeypatch):
    init, first, second, finish = tracked(monkeypatch, "trackio", tmp_path / "run")
    assert init[2]["name"].startswith("run-")
    assert init[2]["resume"] == "allow"
    assert first == ("log", (VALUES,), {"step": 9})
    assert second == ("log", (MEANS,), {"step": 12})
    assert finish[0] == "finish"
