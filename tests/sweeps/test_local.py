"""Runs as processes of this machine: their GPUs, cores and command lines."""

import os
import subprocess
import sys

import pytest

from nacre.errors import NacreError
from nacre.runs.records import Starts
from nacre.sweeps import engines
from nacre.sweeps.engines import Local, RemoteRun, Task, visible_gpus
from nacre.sweeps.grid import check_grid, make_jobs
from nacre.sweeps.launch import run_grid
from nacre.utils import system
from nacre.utils.system import usable_cores
from tiny_runs import TINY


class Process:
    """A run that ends with a code when it is told to."""

    def __init__(self, task):
        self.task, self.code = task, None

    def poll(self):
        return self.code

    def terminate(self):
        self.code = 130


@pytest.fixture
def make(tmp_path, monkeypatch):
    monkeypatch.setattr(engines, "start", Process)
    return lambda name: Task(("run",), tmp_path / name, tmp_path)


def started(engine):
    return {place: given for place, (given, _) in engine.places.items()}


def test_each_run_has_a_gpu_of_its_own_and_a_share_of_the_cores(make):
    engine = Local(gpus=["0", "GPU-5a", "2"])
    assert engine.capacity == 3
    names = [engine.submit(make(f"run-{at}")) for at in range(3)]
    assert [given.gpus for given in started(engine).values()] == [("0",), ("GPU-5a",), ("2",)]
    assert {given.cores for given in started(engine).values()} == {max(1, usable_cores() // 3)}
    engine.places[1][1].code = 2
    assert engine.poll(names[1]).state == "failed"
    again = engine.submit(make("run-3"))
    assert started(engine)[int(again)].gpus == ("GPU-5a",), "the one that is free"


def test_a_run_may_have_several_gpus_and_a_process_for_each(make):
    engine = Local(gpus=["0", "1", "2", "3", "4"], gpus_per_run=2)
    assert engine.capacity == 2
    for at in range(2):
        engine.submit(make(f"run-{at}"))
    assert [one.gpus for one in started(engine).values()] == [("0", "1"), ("2", "3")]
    first = started(engine)[0]
    assert first.environment()["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert "--nproc-per-node=2" in first.command()


def test_more_gpus_than_there_are_is_a_sentence():
    with pytest.raises(NacreError, match="--gpus-per-run 2: this machine has 1 visible GPUs"):
        Local(gpus=["0"], gpus_per_run=2)


def test_more_runs_than_gpus_share_them(make):
    engine = Local(4, gpus=["0", "1"])
    for at in range(4):
        engine.submit(make(f"run-{at}"))
    assert [one.gpus for one in started(engine).values()] == [("0",), ("1",), ("0",), ("1",)]


def test_a_run_without_gpus_sees_none(make):
    engine = Local(gpus=["0", "1"], gpus_per_run=0)
    engine.submit(make("run"))
    assert started(engine)[0].environment()["CUDA_VISIBLE_DEVICES"] == ""


def test_without_gpus_there_is_one_run_at_a_time_and_nothing_is_hidden(make, monkeypatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    engine = Local(gpus=[])
    assert engine.capacity == 1
    engine.submit(make("run"))
    assert "CUDA_VISIBLE_DEVICES" not in started(engine)[0].environment()


def test_gpus_that_are_hidden_from_the_grid_stay_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert visible_gpus() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


def test_a_run_uses_its_share_of_the_cores(monkeypatch):
    monkeypatch.setenv(system.CORES, "1")
    assert usable_cores() == 1
    monkeypatch.setenv(system.CORES, "100000")
    assert usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(("said", "threads"), [(None, "2"), ("1", "1")])
def test_a_run_has_threads_for_its_cores_unless_a_user_says_fewer(make, monkeypatch, said, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr(engines, "usable_cores", lambda: 2)
    engine = Local(1, gpus=[])
    engine.submit(make("run"))
    assert started(engine)[0].environment()["OMP_NUM_THREADS"] == threads


def test_the_processes_of_a_run_divide_its_cores(tmp_path, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    given = Task(("run",), tmp_path / "run", tmp_path, processes=2, cores=6)
    assert given.environment()["OMP_NUM_THREADS"] == "3"


def test_a_run_on_a_cluster_does_not_begin_while_its_last_process_still_saves(
    tmp_path, monkeypatch
):
    looks = iter([True, True, False])
    monkeypatch.setattr(engines, "is_locked", lambda path: next(looks))
    monkeypatch.setattr(engines, "POLL_SECONDS", 0.0)
    begun = []

    def start(given):
        begun.append(next(looks, "free"))
        return subprocess.Popen([sys.executable, "-c", "raise SystemExit(2)"])

    monkeypatch.setattr(engines, "start", start)
    assert RemoteRun(Task(("run",), tmp_path / "run", tmp_path))().state == "failed"
    assert begun == ["free"]


@pytest.mark.slow
def test_a_run_with_two_gpus_learns_in_two_processes(tmp_path, monkeypatch):
    """The devices are assigned by name; the processes themselves learn on the CPU."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,1")
    values = {key: value for key, value in TINY.items() if key != "scenario"}
    values["train"] = {**values["train"], "device": "cpu"}
    grid = {"scenarios": ["scenes/4-4/overlapped"], "methods": ["ft"], "config": values}
    (job,) = make_jobs(check_grid(grid), tmp_path / "grid")
    assert run_grid([job], Local(gpus_per_run=2))
    assert job.state == "done", job.problem
    start = Starts.load(job.folder.starts).starts[0].plain()
    assert start["processes"] == 2
    assert start["device"] == "cpu"
