import os
import subprocess
import sys

import pytest
from typer.testing import CliRunner

from nacre.cli.app import app
from nacre.errors import NacreError
from nacre.runs.run import run_scenario
from nacre.sweeps import carry, launch
from nacre.sweeps import grid as grids
from nacre.sweeps.engines.local import Local
from nacre.sweeps.grid import check_grid, make_jobs
from nacre.sweeps.launch import failure, run_grid
from nacre.utils.lock import locked
from nacre.utils.signals import PARENT
from tiny_runs import TINY, tiny_config

VALUES = {key: value for key, value in TINY.items() if key != "scenario"}
SCENARIO = "scenes/4-4/overlapped"


def jobs_of(out, methods=("ft", "mib"), **more):
    grid = {"scenarios": [SCENARIO], "methods": methods, "config": VALUES, **more}
    return make_jobs(check_grid(grid), out)


class Process:
    """A run that goes on until it is told to stop."""

    started: list = []

    def __init__(self, task):
        self.task, self.code = task, None
        self.started.append(self)

    def poll(self):
        return self.code

    def terminate(self):
        self.code = 130


@pytest.fixture
def started(monkeypatch):
    monkeypatch.setattr(carry, "_start", Process)
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.0)
    monkeypatch.setattr(launch, "LOOK_SECONDS", 0.0)
    monkeypatch.setattr(Process, "started", [])
    return Process.started


def stop_after(count):
    asked = iter([False] * count)
    return lambda: next(asked, True)


def test_a_folder_with_another_config_is_not_taken_for_the_grids_own(tmp_path, started):
    ft, mib = jobs_of(tmp_path)
    assert mib.base is ft
    other = tiny_config(scenario=SCENARIO, method="ft", train={"lr": 0.2})
    run_scenario(other, ft.folder.path)
    assert not run_grid([ft, mib], Local(2), should_stop=stop_after(1))
    assert ft.state == "failed"
    assert "holds a run with another config (train.lr: 0.2 -> 0.05)" in failure(ft)
    assert mib.base is None, "another's step 0 is not for it"
    assert [process.task.folder for process in started] == [mib.folder.path]


def test_a_run_in_whose_folder_somebody_works_is_waited_for(tmp_path, started):
    (ft,) = jobs_of(tmp_path, ["ft"])
    with locked(ft.folder.path, "run"):
        run_grid([ft], Local(1), should_stop=stop_after(3))
        assert not started
    run_grid([ft], Local(1), should_stop=stop_after(3))
    assert [process.task.folder for process in started] == [ft.folder.path]


def test_a_run_that_somebody_finished_meanwhile_is_done(tmp_path, started):
    (ft,) = jobs_of(tmp_path, ["ft"])
    run_scenario(ft.config, ft.folder.path)
    assert run_grid([ft], Local(1))
    assert ft.state == "done"
    assert not started


def test_runs_are_told_to_save_when_the_grid_is_ended_at_once(tmp_path, started):
    def impatient(jobs):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_grid(jobs_of(tmp_path), Local(2), show=impatient)
    assert started
    assert all(process.code == 130 for process in started)


def test_a_run_that_cannot_be_started_fails_with_a_sentence(tmp_path, monkeypatch):
    def full(task):
        raise OSError(28, "No space left on device", str(task.log))

    monkeypatch.setattr(carry, "_start", full)
    (ft,) = jobs_of(tmp_path, ["ft"])
    assert run_grid([ft], Local(1))
    assert "could not be started: [Errno 28] No space left on device" in failure(ft)


def test_two_grids_do_not_work_in_one_folder(tmp_path):
    with locked(tmp_path, "grid"):
        options = ["--scenarios", SCENARIO, "--methods", "ft", "--out", str(tmp_path)]
        sets = ["data.train=48", "data.val=12", "data.size=32", "train.batch_size=2"]
        values = [part for value in sets for part in ("--set", value)]
        done = CliRunner().invoke(app, ["grid", *options, *values])
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
from nacre.utils.signals import StopSignal, obey_parent
obey_parent()
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
