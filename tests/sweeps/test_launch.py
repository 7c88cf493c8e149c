import json
import os
import subprocess
import sys
import time

import pytest
from typer.testing import CliRunner

from nacre.cli.app import program
from nacre.errors import NacreError
from nacre.runs.run import run_scenario
from nacre.sweeps import engines
from nacre.sweeps import grid as grids
from nacre.sweeps.engines import Local
from nacre.sweeps.grid import check_grid, make_jobs, run_grid
from nacre.utils.io import locked
from nacre.utils.signals import PARENT
from stand_in_runs import Process, stand_in
from tiny_runs import TINY, set_options, tiny_config

VALUES = {key: value for key, value in TINY.items() if key != "scenario"}
SCENARIO = "scenes/4-4/overlapped"


def jobs_of(out, methods=("ft", "mib"), **more):
    grid = {"scenarios": [SCENARIO], "methods": methods, "config": VALUES, **more}
    return make_jobs(check_grid(grid), out)


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr(grids, "POLL_SECONDS", 0.0)
    return stand_in(monkeypatch)


def stop_after(count):
    asked = iter([False] * count)
    return lambda: next(asked, True)


def test_a_folder_with_another_config_is_not_taken_for_the_grids_own(tmp_path, started):
    ft, mib = jobs_of(tmp_path)
    assert mib.first is ft
    other = tiny_config(scenario=SCENARIO, method="ft", train={"lr": 0.2})
    run_scenario(other, ft.folder.path)
    assert not run_grid([ft, mib], Local(2), should_stop=stop_after(1))
    assert ft.state == "failed"
    assert "holds a run with another config (train.lr: 0.2 -> 0.05)" in ft.problem
    assert [process.task.folder for process in started] == [mib.folder.path]


def test_a_grid_whose_runs_are_all_refused_ends_like_every_refusal(tmp_path):
    (ft,) = jobs_of(tmp_path, ["ft"])
    run_scenario(tiny_config(scenario=SCENARIO, method="ft", train={"lr": 0.2}), ft.folder.path)
    words = ["--scenarios", SCENARIO, "--methods", "ft", *set_options(VALUES)]
    done = CliRunner().invoke(program, ["grid", *words, "--out", str(tmp_path)])
    assert done.exit_code == 2, done.output
    assert "holds a run with another config" in done.stderr


def test_runs_wait_until_another_has_learned_their_step_0(tmp_path, started):
    ft, mib = jobs_of(tmp_path)
    begun = []

    def look(jobs):
        begun.append(len(started))
        if len(begun) == 3:
            ft.folder.step_metrics(0).parent.mkdir(parents=True)
            ft.folder.step_metrics(0).touch()

    assert not run_grid([ft, mib], Local(2), show=look, should_stop=stop_after(5))
    assert begun == [1, 1, 1, 2, 2]
    assert all("--cache" in process.task.arguments for process in started)


def test_a_run_in_whose_folder_somebody_works_is_waited_for(tmp_path, started):
    (ft,) = jobs_of(tmp_path, ["ft"])
    with locked(ft.folder.path, "run"):
        run_grid([ft], Local(1), should_stop=stop_after(3))
        assert not started
        grids.find_status([ft])
        assert ft.state == "running"
    ft.state = "waiting"
    run_grid([ft], Local(1), should_stop=stop_after(3))
    assert [process.task.folder for process in started] == [ft.folder.path]


def test_runs_are_told_to_save_when_the_grid_is_ended_at_once(tmp_path, started):
    def impatient(jobs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(jobs_of(tmp_path), Local(2), show=impatient)
    assert started
    assert all(process.code == 130 for process in started)


def test_a_stopped_grid_has_its_runs_save_and_waits_for_them(tmp_path, started):
    (ft,) = jobs_of(tmp_path, ["ft"])
    engine = Local(1)
    assert not run_grid([ft], engine, should_stop=stop_after(2))
    assert started[0].code == 130
    assert not engine.slots
    assert (ft.state, ft.submitted) == ("waiting", None)


@pytest.mark.parametrize(
    ("codes", "state", "attempts", "problem"),
    [
        ([-9, -9, -9, 0], "done", 4, None),
        ([-9, -9, -9, -9], "failed", 4, "ended by SIGKILL; the same command resumes it"),
        ([2], "failed", 1, "no output"),
    ],
    ids=["killed and done", "killed too often", "an error"],
)
def test_a_run_that_is_killed_is_submitted_again_a_few_times_and_one_that_fails_is_not(
    tmp_path, started, codes, state, attempts, problem
):
    Process.codes += codes
    (job,) = jobs_of(tmp_path, methods=["ft"])
    assert run_grid([job], Local(1))
    assert (job.state, job.attempts) == (state, attempts)
    assert (job.problem or "").startswith(problem or "")


def test_a_run_that_cannot_be_started_fails_with_a_sentence(tmp_path, monkeypatch):
    def full(task):
        raise OSError(28, "No space left on device", str(task.folder))

    monkeypatch.setattr(engines, "start", full)
    (ft,) = jobs_of(tmp_path, ["ft"])
    assert run_grid([ft], Local(1))
    assert "could not be started: [Errno 28] No space left on device" in ft.problem


def test_two_grids_do_not_work_in_one_folder(tmp_path):
    with locked(tmp_path, "grid"):
        done = CliRunner().invoke(program, ["grid", *OPTIONS, "--out", str(tmp_path)])
    assert isinstance(done.exception, NacreError)
    assert "is in use: another `nacre grid` works in it" in str(done.exception)


def test_data_are_opened_once_for_all_that_learn_from_them(tmp_path, monkeypatch):
    opened = []
    original = grids.open_scenario
    monkeypatch.setattr(grids, "open_scenario", lambda one: opened.append(one) or original(one))
    jobs = jobs_of(tmp_path, ["ft", "lwf", "mib"], seeds=[1, 2])
    assert len(jobs) == 6
    assert len(opened) == 1


CHILD = """
import time
from nacre.utils.signals import StopSignal, exit_with_parent
exit_with_parent()
with StopSignal() as stop:
    stop()
    print("ready", flush=True)
    while not stop():
        time.sleep(0.01)
print("saved", flush=True)
"""
GRID = f"""
import os, subprocess, sys, time
env = {{**os.environ, {PARENT!r}: str(os.getpid())}}
subprocess.Popen([sys.executable, "-c", {CHILD!r}], env=env, start_new_session=True)
time.sleep(600)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_the_runs_of_a_killed_grid_save_and_end():
    read, write = os.pipe()
    with subprocess.Popen([sys.executable, "-c", GRID], stdout=write) as grid:
        os.close(write)
        with os.fdopen(read) as said:
            assert said.readline() == "ready\n"
            grid.kill()
            assert said.read() == "saved\n"


OPTIONS = ["--scenarios", SCENARIO, "--methods", "ft,mib", *set_options(VALUES)]
OPTIONS += ["--set", "train.epochs=12"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_killed_grid_resumes_to_the_metrics_of_an_undisturbed_one(tmp_path):
    def grid(out):
        command = [sys.executable, "-m", "nacre", "grid", "--out", str(out), "--json", *OPTIONS]
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)

    whole, out = tmp_path / "whole", tmp_path / "killed"
    undisturbed, first = grid(whole), grid(out)
    events = out / "scenes_4-4_overlapped" / "ft-1" / "events.jsonl"
    until = time.monotonic() + 600
    while not (events.exists() and events.read_text().count('"train"') > 3):
        assert time.monotonic() < until
        time.sleep(0.05)
    first.kill()
    first.communicate()
    said, _ = grid(out).communicate()
    undisturbed.communicate()
    assert undisturbed.returncode == 0
    assert [run["state"] for run in json.loads(said)] == ["done", "done"]
    metrics = sorted(whole.glob("scenes*/*/**/metrics.json"))
    assert len(metrics) == 6
    for path in metrics:
        assert path.read_bytes() == (out / path.relative_to(whole)).read_bytes()
