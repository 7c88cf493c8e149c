import builtins

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from nacre.errors import NacreError
from nacre.runs.event_file import read_events
from nacre.runs.run import run_scenario
from nacre.runs.tensorboard import TensorBoard
from nacre.training.events import RunBegan, StepBegan, StepSkipped, StepTested, Trained
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


def test_iterations_are_counted_on_after_a_step_that_was_only_tested(tmp_path):
    board = TensorBoard(tmp_path / "board")
    board(RunBegan("s", "mib", 1, "cpu", 1, "float32", "none", [7, 5, 3]))
    board(StepSkipped(0, 7))
    board(StepTested(1, {"all": 0.5}))  # learnt before this start
    board(StepBegan(2, ["a"], 6, 3, 0))
    board(Trained(2, 3, 0.1, {"ce": 1.0}, 10.0))
    board.writer.flush()
    found = EventAccumulator(str(tmp_path / "board"))
    found.Reload()
    assert [one.step for one in found.Scalars("loss/ce")] == [7 + 5 + 3]


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    original = builtins.__import__

    def without(name, *rest, **more):
        if name.startswith("torch.utils.tensorboard"):
            raise ImportError(name)
        return original(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(NacreError, match=r"pip install 'nacre\[tensorboard\]'"):
        TensorBoard(tmp_path)
