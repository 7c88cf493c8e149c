import pytest

from nacre.sweeps.grid import count_updates
from nacre.training.events import EventFile, Position, Saved, StepBegan, StepLearned, Trained

TO_LEARN = (20, 30)


def test_the_last_event_says_how_many_updates_were_made(tmp_path):
    path = tmp_path / "events.jsonl"
    assert count_updates(path, TO_LEARN) is None
    write = EventFile(path, Position(0))
    counts = []
    for event in (
        StepBegan(0, ["cat"], 8, 20, 0),
        Trained(0, 10, 0.1, {"ce": 1.0}, 5.0),
        StepLearned(0, 3.0, None),
        Saved(1, 3),
        StepBegan(1, ["dog"], 8, 20, 4),
    ):
        write(event)
        counts.append(count_updates(path, TO_LEARN))
    assert counts == [0, 10, 20, 23, 24]
    with path.open("a") as file:
        file.write('{"event": "train", "step": 1, "iteration"')
    assert count_updates(path, TO_LEARN) == 24
    assert count_updates(path, (0, 30)) == 4, "step 0 was taken"
    EventFile(path, Position(0, 10))  # the run was cut back
    assert count_updates(path, TO_LEARN) == 10


@pytest.mark.parametrize("line", ['"train"', '[1, "begin"]', '{"train"', '{"event": "train"}'])
def test_lines_that_are_not_events_are_skipped(tmp_path, line):
    path = tmp_path / "events.jsonl"
    path.write_text(line + "\n")
    assert count_updates(path, TO_LEARN) is None
