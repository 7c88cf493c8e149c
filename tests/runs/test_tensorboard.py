import builtins

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nacre.errors import NacreError
from nacre.runs.event_file import read_events
from nacre.runs.run import run_scenario
from nacre.runs.tensorboard import TensorBoard
from nacre.training.events import StepTested, Trained
from tiny_runs import tiny_config


def test_tensorboard_has_what_the_events_have(tmp_path):
    out = tmp_path / "run"
    run_scenario(tiny_config(), out, observers=[TensorBoard(tmp_path / "board")])
    board = EventAccumulator(str(tmp_path / "board"))
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


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    original = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NacreError, match=r"pip install 'nacre\[tensorboard\]'"):
        TensorBoard(tmp_path)
