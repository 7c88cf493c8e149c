"""SLURM through submitit, with stand-ins for SLURM's commands."""

import importlib.util
import json
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from nacre.cli.app import program
from nacre.errors import NacreError
from nacre.runs.run import run_scenario
from nacre.sweeps import grid as grids
from nacre.sweeps.engines import Ended, RemoteRun, Slurm, Task
from nacre.sweeps.grid import cancel_submitted, check_grid, make_jobs, open_engine, run_grid
from stand_in_runs import Process
from tiny_runs import TINY, set_options

if importlib.util.find_spec("submitit") is None:
    pytest.skip(
        "submitit is not installed, the extra slurm",
        allow_module_level=True,
    )
if sys.platform != "linux":
    pytest.skip("SLURM is Linux's", allow_module_level=True)

VALUES = {key: value for key, value in TINY.items() if key != "scenario"}
GRID = {"scenarios": ["scenes/4-4/overlapped"], "methods": ["ft"], "config": VALUES}


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Put SLURM's commands into the path; return the folder of their state."""
    spec = importlib.util.spec_from_file_location(
        "fake_slurm", Path(__file__).with_name("fake_slurm.py")
    )
    fake = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fake)
    fake.install(tmp_path / "bin")
    state = tmp_path / "state"
    state.mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv("FAKE_SLURM", str(state))
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, sys.path)))
    return state


def stop_after(count):
    asked = iter([False] * count)
    return lambda: next(asked, True)


def test_jobs_ask_for_what_the_grid_says_and_stay_when_it_stops(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SLURM_HOLDS", "1")
    monkeypatch.setattr(grids, "POLL_SECONDS", 0.0)
    means = {"partition": "gpu", "time": 90, "qos": "low", "cpus_per_task": 6}
    values = {**GRID, "methods": ["ft", "joint"], "gpus_per_run": 2, "slurm": means}
    grid, out = check_grid(values), tmp_path / "grid"
    engine = open_engine("slurm", grid, out)
    assert not run_grid(make_jobs(grid, out), engine, should_stop=stop_after(2))
    scripts = sorted(slurm.glob("*.sh"))
    assert len(scripts) == 2
    text = scripts[0].read_text()
    for wanted in ("partition=gpu", "time=90", "qos=low", "cpus-per-task=6", "gpus-per-node=2"):
        assert f"#SBATCH --{wanted}\n" in text
    assert "#SBATCH --signal=USR2@" in text
    assert not list(slurm.glob("*.canceled"))

    again, engine = make_jobs(grid, out), open_engine("slurm", grid, out)
    assert not run_grid(again, engine, should_stop=stop_after(2))
    assert [job.submitted for job in again] == ["1", "2"], "found, and not submitted again"
    assert len(list(slurm.glob("*.sh"))) == 2
    assert cancel_submitted(make_jobs(grid, out), engine) == 2
    assert {path.stem for path in slurm.glob("*.canceled")} == {"1", "2"}
    assert not list(out.rglob("*.job"))


def test_only_jobs_that_survive_their_command_can_be_taken_back(tmp_path):
    done = CliRunner().invoke(program, ["grid", *OPTIONS, "--out", str(tmp_path), "--cancel"])
    assert "--cancel: no jobs of --engine local survive its command" in str(done.exception)


def test_a_run_without_gpus_asks_for_none(slurm, tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_SLURM_HOLDS", "1")
    grid = check_grid({**GRID, "gpus_per_run": 0})
    engine = open_engine("slurm", grid, tmp_path / "grid")
    assert not run_grid(make_jobs(grid, tmp_path / "grid"), engine, should_stop=stop_after(1))
    assert "--gpus" not in (slurm / "1.sh").read_text()


def test_slurm_is_asked_every_half_minute_even_about_old_jobs(slurm, tmp_path, monkeypatch):
    watcher = open_engine("slurm", check_grid(GRID), tmp_path).executor.job_class.watcher
    watcher.register_job("1")
    clock = time.time()
    for passed, calls in ((7200, 1), (7215, 1), (7231, 2)):
        monkeypatch.setattr("submitit.core.core._time.time", lambda now=clock + passed: now)
        watcher.get_info("1")
        assert watcher.num_calls == calls


def test_a_job_that_left_no_result_is_lost(tmp_path):
    class Killed:
        job_id = "7"

        def done(self):
            return True

        def result(self):
            raise RuntimeError("Job 7 has not produced any output\nState: NODE_FAIL")

    engine = Slurm(SimpleNamespace(submit=lambda run: Killed()), 1)
    name = engine.submit(Task(("run",), tmp_path / "run", tmp_path))
    assert engine.poll(name) == Ended("lost", "SLURM's job 7 ended: State: NODE_FAIL")


def test_parameters_that_submitit_does_not_know_are_a_sentence(slurm, tmp_path):
    grid = check_grid({**GRID, "slurm": {"partitoin": "gpu"}})
    with pytest.raises(NacreError, match="partitoin"):
        open_engine("slurm", grid, tmp_path)


def test_without_slurm_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NacreError, match="are you indeed on a slurm"):
        open_engine("slurm", check_grid(GRID), tmp_path)


def test_a_job_that_must_go_has_its_run_save_and_can_be_sent_again(tmp_path):
    job = RemoteRun(Task(("run",), tmp_path / "run", tmp_path))
    job.process = process = Process()
    again = job.checkpoint()
    assert process.code == 130
    sent = pickle.loads(pickle.dumps(again.function))
    assert (sent.task, sent.process) == (job.task, None)


OPTIONS = ["--scenarios", "scenes/4-4/overlapped", "--methods", "ft", "--gpus-per-run", "0"]
OPTIONS += [*set_options(VALUES), "--set", "train.epochs=12"]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_a_submitted_job_survives_its_launcher_and_the_same_command_finds_it(slurm, tmp_path):
    out = tmp_path / "grid"
    command = [
        sys.executable,
        "-m",
        "nacre",
        "grid",
        "--engine",
        "slurm",
        "--out",
        str(out),
        "--json",
    ]
    launcher = subprocess.Popen([*command, *OPTIONS], stdout=subprocess.DEVNULL)
    await_training(out / "scenes_4-4_overlapped" / "ft-1" / "events.jsonl")
    launcher.kill()
    launcher.wait()
    again = subprocess.run([*command, *OPTIONS], capture_output=True, text=True, check=True)
    (run,) = json.loads(again.stdout)
    assert run["state"] == "done"
    assert (out / "scenes_4-4_overlapped" / "ft-1.job").exists() is False
    assert len((slurm / "1.starts").read_text().splitlines()) == 1, "it never stopped"
    assert len(list(slurm.glob("*.sh"))) == 1, "it was not submitted twice"
    starts = json.loads((Path(run["folder"]) / "run.json").read_text())["starts"]
    assert len(starts) == 1


def await_training(events):
    until = time.monotonic() + 600
    while not (events.exists() and events.read_text().count('"train"') > 3):
        assert time.monotonic() < until
        time.sleep(0.05)


@pytest.mark.nightly
def test_a_preempted_job_is_queued_again_and_ends_as_if_nothing_had_been(slurm, tmp_path):
    values = {**VALUES, "train": {**VALUES["train"], "epochs": 40}}
    grid = check_grid({**GRID, "gpus_per_run": 0, "config": values})
    (job,) = make_jobs(grid, tmp_path / "grid")
    preempted = []

    def preempt(jobs):
        events = job.folder.events
        if preempted or not (events.exists() and events.read_text().count('"train"') > 3):
            return
        task = int((slurm / "1.task").read_text())
        below = Path(f"/proc/{task}/task/{task}/children").read_text().split()
        # SLURM warns every process of a job.
        for process in [*map(int, below), task]:
            os.kill(process, signal.SIGUSR2)
        preempted.append(time.monotonic())

    assert run_grid([job], open_engine("slurm", grid, tmp_path / "grid"), show=preempt)
    assert preempted
    log = (slurm / "1.log").read_text()
    assert job.state == "done", job.problem or log
    assert len((slurm / "1.starts").read_text().splitlines()) == 2, log
    assert "Requeued job 1" in log
    run_scenario(job.config, tmp_path / "whole")
    assert job.folder.metrics.read_bytes() == (tmp_path / "whole" / "metrics.json").read_bytes()
