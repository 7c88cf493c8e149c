import sys

from nacre.runs.event_file import EventFile, Position
from nacre.sweeps.progress import _Tail
from nacre.training.events import Saved, StepBegan, StepLearned, Trained


def test_a_look_reads_what_was_added_and_says_how_far_each_step_is(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = _Tail(path)
    assert tail.look() == {0: 0}
    write = EventFile(path, Position(0))
    write(StepBegan(0, ["cat"], 8, 20, 0))
    write(Trained(0, 10, 0.1, {"ce": 1.0}, 5.0))
    assert tail.look() == {0: 10}
    write(StepLearned(0, 3.0, None))
    write(Saved(1, 3))
    write(StepBegan(1, ["dog"], 8, 20, 4))
    assert tail.look() == {0: sys.maxsize, 1: 4}
    with path.open("a") as file:
        file.write('{"event": "train", "step": 1, "iteration"')
    assert tail.look() == {0: sys.maxsize, 1: 4}


def test_lines_that_are_no_events_are_passed_over(tmp_path):
    path = tmp_path / "events.jsonl"
    path.write_text('"train"\n[1, "begin"]\n{"event": "train", "step": "x"}\n{"train"\n')
    assert _Tail(path).look() == {0: 0}


def test_a_file_that_was_cut_back_is_read_anew(tmp_path):
    path = tmp_path / "events.jsonl"
    tail = _Tail(path)
    write = EventFile(path, Position(0))
    write(StepBegan(0, ["cat"], 8, 20, 0))
    for iteration in (10, 20):
        write(Trained(0, iteration, 0.1, {"ce": 1.0}, 5.0))
    assert tail.look() == {0: 20}
    EventFile(path, Position(0, 10))
    assert tail.look() == {0: 10}
