import io
import json
from pathlib import Path

import pytest
from rich.console import Console

from nacre.cli.grid import GridDisplay
from nacre.errors import NacreError
from nacre.methods import METHODS
from nacre.sweeps.engines import Local, last_line, log_of
from nacre.sweeps.grid import check_grid, count_updates, make_jobs, read_grid, run_grid
from nacre.training.config import build_config
from nacre.training.events import EventFile, Position, Saved, StepBegan, StepLearned, Trained
from tiny_runs import TINY

VALUES = {key: value for key, value in TINY.items() if key != "scenario"}
GRID = {
    "scenarios": ["scenes/4-4/overlapped", "scenes/4-2-2/overlapped"],
    "methods": ["ft", {"name": "mib", "weight": 3}],
    "config": VALUES,
}


def test_every_combination_is_a_run_and_step_0_is_shared(tmp_path):
    jobs = make_jobs(check_grid({**GRID, "methods": ["ft", "lwf", "joint"]}), tmp_path)
    assert [job.name for job in jobs[:3]] == [
        "scenes/4-4/overlapped ft 1",
        "scenes/4-4/overlapped lwf 1",
        "scenes/4-4/overlapped joint 1",
    ]
    learns_it = [job.first.name if job.first else None for job in jobs]
    first, joint = "scenes/4-4/overlapped ft 1", "scenes/4-4/overlapped joint 1"
    # The tasks 4-4 and 4-2-2 learn the same step 0, and joint training is the same in both.
    assert learns_it == [None, first, None, first, first, joint]


def test_a_variant_is_named_by_its_values_and_its_folder_by_a_plain_name(tmp_path):
    method = {"name": "ssul", "freeze": ["batch_norm"], "branches": True}
    grid = {**GRID, "scenarios": ["scenes/4-4/overlapped"], "methods": [method]}
    (job,) = make_jobs(check_grid(grid), tmp_path)
    assert job.name == "scenes/4-4/overlapped ssul,freeze=[batch_norm],branches=true 1"
    assert job.folder.path.parent == tmp_path / "scenes_4-4_overlapped"
    assert job.folder.path.name == "ssul,freeze=[batch_norm],branches=true-1"


def test_the_benches_that_are_shipped_have_every_method():
    examples = Path(__file__).parents[2] / "examples"
    grids = [read_grid(examples / name) for name in ("animals.yaml", "animals-later.yaml")]
    methods = [(grid, method) for grid in grids for method in grid.methods]
    names = {method if isinstance(method, str) else method["name"] for _, method in methods}
    assert names == set(METHODS)
    for grid, method in methods:
        for scenario in grid.scenarios:
            values = {"scenario": scenario, "method": method, "data": {"root": "VOC2012"}}
            assert build_config(preset=grid.preset, overrides=values).method.name in METHODS


@pytest.mark.slow
def test_runs_are_carried_out_skipped_and_told_when_they_fail(tmp_path):
    grid = check_grid({**GRID, "scenarios": GRID["scenarios"][:1]})
    jobs = make_jobs(grid, tmp_path)
    bad = {**VALUES, "train": {**VALUES["train"], "lr": 1e6, "epochs": 4}}
    jobs += make_jobs(
        check_grid(
            {**GRID, "scenarios": GRID["scenarios"][:1], "config": bad, "methods": ["joint"]}
        ),
        tmp_path,
    )
    console = Console(force_terminal=True, width=120, file=io.StringIO())
    with GridDisplay(console) as display:
        assert run_grid(jobs, Local(2), show=display)
    assert [job.state for job in jobs] == ["done", "done", "failed"]
    log = log_of(jobs[2].folder.path)
    assert "not a finite number" in last_line(log)
    assert jobs[2].problem == f"{last_line(log)} (see {log})"
    assert not [*tmp_path.rglob(".*"), *tmp_path.rglob("*.job")], "nothing is left"
    shared = [job.folder.model(0).read_bytes() for job in jobs[:2]]
    assert shared[0] == shared[1]
    before = jobs[1].folder.metrics.stat().st_mtime_ns
    again = make_jobs(grid, tmp_path)
    assert run_grid(again, Local(1))
    assert again[1].folder.metrics.stat().st_mtime_ns == before


def test_a_grid_from_a_file_and_its_mistakes(tmp_path):
    path = tmp_path / "grid.yaml"
    path.write_text(json.dumps({**GRID, "seeds": [1, 2]}))
    assert read_grid(path).seeds == (1, 2)
    path.write_text(json.dumps({**GRID, "sedes": [1]}))
    with pytest.raises(NacreError, match=r"sedes: unknown key \(did you mean 'seeds'\?\)"):
        read_grid(path)
    for config, key in (({"seed": 2}, "seed"), ({"method": "mib"}, "method")):
        with pytest.raises(NacreError, match=f"is not one value for all runs: .* {key}s"):
            check_grid({**GRID, "config": config})
    with pytest.raises(NacreError, match="could not read grid"):
        read_grid(tmp_path / "nothing.yaml")
    with pytest.raises(NacreError, match="twice"):
        make_jobs(check_grid({**GRID, "methods": ["ft", "ft"]}), tmp_path)


def test_the_run_that_collects_most_learns_step_0_for_the_others(tmp_path):
    methods = ["ft", "ewc", "pi", "rw", "lwf-mc", "lwf-mc-d", "joint"]
    grid = {**GRID, "scenarios": GRID["scenarios"][:1], "methods": methods}
    jobs = make_jobs(check_grid(grid), tmp_path)
    first = {job.config.method.name: job.first and job.first.config.method.name for job in jobs}
    assert first == {
        "ft": "rw", "ewc": "rw", "pi": None, "rw": None,
        "lwf-mc": None, "lwf-mc-d": "lwf-mc", "joint": None,
    }  # fmt: skip


def test_the_time_left_does_not_count_a_step_0_that_is_taken_over(tmp_path):
    jobs = make_jobs(check_grid({**GRID, "scenarios": GRID["scenarios"][:1]}), tmp_path)
    assert [job.to_learn for job in jobs] == [jobs[0].iterations, (0, *jobs[1].iterations[1:])]
    jobs[0].state = "failed"  # and left no step 0: then the other one learns its own
    assert jobs[1].to_learn == jobs[1].iterations


def test_a_run_past_its_step_0_neither_waits_for_another_nor_takes_it_over(tmp_path):
    methods = ["ft", "rw"]
    grid = {**GRID, "scenarios": GRID["scenarios"][:1], "methods": methods}
    ft, rw = make_jobs(check_grid(grid), tmp_path)
    assert ft.first is rw
    assert not ft.is_ready
    ft.folder.model(0).parent.mkdir(parents=True)
    ft.folder.model(0).touch()
    assert ft.is_ready
    assert ft.has_step_0


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
