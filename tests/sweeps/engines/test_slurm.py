"""SLURM through submitit, with commands of SLURM that do the least (fake_slurm.py)."""

import importlib.util
import os
import pickle
import signal
import sys
import time
from pathlib import Path

import pytest

from nacre.errors import NacreError
from nacre.runs.run import run_scenario
from nacre.sweeps import carry, launch
from nacre.sweeps.carry import RunTask
from nacre.sweeps.engines import open_engine
from nacre.sweeps.grid import check_grid, make_jobs
from nacre.sweeps.launch import marked, run_grid, task_of
from tiny_runs import TINY

if importlib.util.find_spec("submitit") is None:
    pytest.skip(
        "submitit is not installed, the extra slurm",
        allow_module_level=True,
    )
if sys.platform != "linux":
    pytest.skip("SLURM is Linux's", allow_module_level=True)

from nacre.sweeps.engines.slurm import SlurmJob

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


def test_jobs_ask_for_what_the_grid_says_and_are_taken_back_when_it_stops(
    slurm, tmp_path, monkeypatch
):
    monkeypatch.setenv("FAKE_SLURM_HOLDS", "1")
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.0)
    means = {"partition": "gpu", "time": 90, "qos": "low", "cpus_per_task": 6, "gpus_per_node": 2}
    grid = check_grid({**GRID, "methods": ["ft", "joint"], "slurm": means})
    jobs = make_jobs(grid, tmp_path / "grid")
    asked = iter([False, False])
    with marked(tmp_path / "grid") as mark:
        engine = open_engine("slurm", grid, mark, tmp_path / "grid")
        engine_stop = lambda: next(asked, True)  # noqa: E731
        monkeypatch.setattr("nacre.sweeps.engines.slurm._STOP_SECONDS", 0.0)
        assert not run_grid(jobs, engine, mark=mark, should_stop=engine_stop)
    scripts = sorted(slurm.glob("*.sh"))
    assert len(scripts) == 2
    text = scripts[0].read_text()
    for wanted in ("partition=gpu", "time=90", "qos=low", "cpus-per-task=6", "gpus-per-node=2"):
        assert f"#SBATCH --{wanted}\n" in text
    assert "#SBATCH --signal=USR2@" in text
    assert {path.stem for path in slurm.glob("*.cancelled")} == {"1", "2"}


def test_parameters_that_submitit_does_not_know_are_a_sentence(slurm, tmp_path):
    grid = check_grid({**GRID, "slurm": {"partitoin": "gpu"}})
    with marked(tmp_path) as mark, pytest.raises(NacreError, match="partitoin"):
        open_engine("slurm", grid, mark, tmp_path)


def test_without_slurm_it_says_so(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with marked(tmp_path) as mark, pytest.raises(NacreError, match="are you indeed on a slurm"):
        open_engine("slurm", check_grid(GRID), mark, tmp_path)


class Process:
    """A run that goes on until it is told to stop."""

    def __init__(self, task):
        self.code = None

    def poll(self):
        return self.code

    def terminate(self):
        self.code = 130


def test_a_job_that_must_go_has_its_run_save_and_can_be_sent_again(tmp_path, monkeypatch):
    monkeypatch.setattr(carry, "_start", Process)
    run = tmp_path / "run"
    job = SlurmJob(RunTask(("run",), run, tmp_path, run / "metrics.json"))
    while job.carrier is None or job.carrier.process is None:
        job._go_on()
    process = job.carrier.process
    again = job.checkpoint()
    assert process.code == 130
    sent = pickle.loads(pickle.dumps(again.function))
    assert sent.task == job.task
    assert sent.carrier is None
    sent._go_on()
    assert sent.carrier is not None, "the claim is free"
    sent.stop()


@pytest.mark.nightly
def test_a_preempted_job_is_queued_again_and_ends_as_if_nothing_had_been(slurm, tmp_path):
    values = {**VALUES, "train": {**VALUES["train"], "epochs": 40}}
    grid = check_grid({**GRID, "slurm": {"gpus_per_node": 0}, "config": values})
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

    with marked(tmp_path / "grid") as mark:
        engine = open_engine("slurm", grid, mark, tmp_path / "grid")
        assert run_grid([job], engine, mark=mark, show=preempt)
    assert preempted
    log = (slurm / "1.log").read_text()
    assert job.state == "done", job.problem or log
    assert len((slurm / "1.starts").read_text().splitlines()) == 2, log
    assert "Requeued job 1" in log
    run_scenario(job.config, tmp_path / "whole")
    assert job.folder.metrics.read_bytes() == (tmp_path / "whole" / "metrics.json").read_bytes()
    assert task_of(job).done.exists()
