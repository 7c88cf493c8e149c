import io
import warnings

from rich.console import Console

from nacre.terminal import RunDisplay, chosen_line, format_means, judged_line
from nacre.training.events import (
    ImagesTested,
    Iterated,
    OptionsChosen,
    RunBegan,
    Saved,
    StepBegan,
    StepJudged,
    StepLearned,
    StepSkipped,
    StepTested,
    Trained,
)

EVENTS = [
    RunBegan("scenes/4-4/overlapped", "mib", 1, "cpu", 1, "float32: because", "none", [4, 2]),
    StepSkipped(0, 4),
    StepBegan(1, list("abcdefgh"), images=99, iterations=2, first=1),
    Iterated(1, 2),
    Trained(1, 2, 0.1, {"ce": 0.5}, images_per_second=1.0),
    Saved(1, 2),
    StepLearned(1, 3.0, None),
    ImagesTested(1, 2, of=4),
    StepTested(1, {"all_without_background": 0.5}),
]


def shown(terminal):
    file = io.StringIO()
    console = Console(file=file, force_terminal=terminal, width=120)
    with RunDisplay(console) as display:
        for event in EVENTS:
            display(event)
        assert display.done == display.total == 1, "of six, four were skipped, one was done before"
    return file.getvalue()


def test_a_log_tells_what_happens():
    text = shown(terminal=False)
    assert "step 0: done before" in text
    assert "a, b, c, d, e, f and 2 more (99 images), resuming at iteration 1" in text
    assert "saved in step 1 at iteration 2" in text
    assert "mIoU without background: all 50.0" in text


def test_a_terminal_has_bars_with_the_time_left():
    assert "left" in shown(terminal=True)


def test_lines_with_the_time_left_where_there_is_no_terminal(monkeypatch):
    monkeypatch.setattr("nacre.terminal.LINE_SECONDS", -1)
    assert "100% of everything, about 0.0 min left" in shown(terminal=False)


def test_bars_of_a_notebook_come_without_such_lines(monkeypatch):
    monkeypatch.setattr("nacre.terminal.LINE_SECONDS", -1)
    monkeypatch.setattr("nacre.terminal.can_draw", lambda console: True)
    file = io.StringIO()
    display = RunDisplay(Console(file=file, width=120))
    for event in EVENTS:
        display(event)
    assert "min left" not in file.getvalue()


def test_the_time_left_is_not_shortened_by_what_was_taken_over(monkeypatch):
    clock = iter(range(0, 1000, 60))
    monkeypatch.setattr("nacre.terminal.time.monotonic", lambda: next(clock))
    file = io.StringIO()
    display = RunDisplay(Console(file=file, width=120))
    display(RunBegan("voc/15-5/overlapped", "mib", 1, "cpu", 1, "float32", "none", [900, 10]))
    display(StepSkipped(0, 900, taken_from="runs/steps"))
    display(StepBegan(1, ["sheep"], images=99, iterations=10, first=0))
    display(Iterated(1, 1))
    # One update, in the two minutes that the clock went on by: nine of them are left.
    assert "10% of everything, about 18.0 min left" in file.getvalue()
    assert "step 0: taken from runs/steps, not learned again" in file.getvalue()


def test_format_means_leaves_out_what_is_not_there():
    assert format_means({"new_without_background": 0.123}) == "mIoU without background: new 12.3"
    assert format_means({}) == "not tested: no test image has a known class"


def test_a_notebook_without_widgets_gets_lines_and_no_warning(monkeypatch):
    monkeypatch.setattr("nacre.terminal.find_spec", lambda name: None)
    console = Console(force_jupyter=True, file=io.StringIO())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with RunDisplay(console):
            pass


def test_updates_that_are_not_kept_are_told_with_the_rule():
    (first, later) = (judged_line(StepJudged(i, 0.601, 0.615, False, [])) for i in (0, 1))
    means = "the decoder's updates are not kept: mean IoU 61.5 with them, 60.1 without; "
    assert first == means + "they must raise it"
    rule = "after step 0 they must gain more than 2 points, as the images do not show the old "
    assert later == f"{means}{rule}classes"


def test_a_mean_that_is_higher_than_that_of_the_updates_says_why():
    chosen = OptionsChosen(1, True, False, 0.757, 0.772)
    judged = StepJudged(1, 0.601, 0.615, False, [])
    plain = "predictions use the mirrored image: mean IoU 77.2 on held-out images, 75.7 without"
    assert chosen_line(chosen) == plain
    note = " (higher than above: the ledger has counted these images by now)"
    assert chosen_line(chosen, judged) == plain + note
    assert chosen_line(chosen, StepJudged(0, 0.601, 0.615, False, [])) == plain
    assert chosen_line(chosen, StepJudged(1, 0.601, 0.8, True, ["cat"])) == plain
