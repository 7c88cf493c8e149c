"""Runs as processes of this machine: their GPUs, cores and command lines."""

import subprocess
import sys

import pytest

from nacre.errors import NacreError
from nacre.runs.records import Starts
from nacre.sweeps import engines
from nacre.sweeps.engines import Local, RemoteRun, Task, visible_gpus
from nacre.sweeps.grid import check_grid, make_jobs, run_grid
from nacre.utils.system import usable_cores
from stand_in_runs import stand_in
from tiny_runs import TINY


@pytest.fixture
def make(tmp_path, monkeypatch):
    stand_in(monkeypatch)
    return lambda name: Task(("run",), tmp_path / name, tmp_path)


def started(engine):
    return {place: given for place, (given, _) in engine.slots.items()}


@pytest.mark.parametrize(
    ("gpus", "options", "used"),
    [
        (["0", "GPU-5a", "2"], {}, ["0", "GPU-5a", "2"]),
        (["0", "1", "2", "3", "4"], {"gpus_per_run": 2}, ["0,1", "2,3"]),
        (["0", "1"], {"jobs": 4}, ["0", "1", "0", "1"]),
        (["0", "1"], {"gpus_per_run": 0}, ["", ""]),
        ([], {}, [None]),
    ],
    ids=["one each", "two each", "shared", "hidden", "none there"],
)
def test_runs_have_gpus_and_an_equal_part_of_the_cores(make, monkeypatch, gpus, options, used):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    engine = Local(gpus=gpus, **options)
    assert engine.capacity == len(used)
    for at in range(len(used)):
        engine.submit(make(f"run-{at}"))
    tasks = list(started(engine).values())
    assert [task.environment().get("CUDA_VISIBLE_DEVICES") for task in tasks] == used
    assert {task.cores for task in tasks} == {max(1, usable_cores() // len(used))}
    wanted = options.get("gpus_per_run", 1)
    assert all((f"--nproc-per-node={wanted}" in task.command()) == (wanted > 1) for task in tasks)


def test_a_run_that_ended_frees_its_place_and_its_gpu(make):
    engine = Local(gpus=["0", "1", "2"])
    names = [engine.submit(make(f"run-{at}")) for at in range(3)]
    engine.slots[1][1].code = 2
    assert engine.poll(names[1]).state == "failed"
    again = engine.submit(make("run-3"))
    assert started(engine)[int(again)].gpus == ("1",)


def test_more_gpus_than_there_are_is_a_sentence():
    with pytest.raises(NacreError, match="--gpus-per-run 2: this machine has 1 visible GPUs"):
        Local(gpus=["0"], gpus_per_run=2)


@pytest.mark.parametrize(("given", "found"), [("3, 5", ["3", "5"]), ("", []), ("-1", [])])
def test_gpus_that_are_hidden_from_the_grid_stay_hidden(monkeypatch, given, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", given)
    assert visible_gpus() == found


@pytest.mark.parametrize(
    ("cores", "processes", "given", "threads"),
    [(2, 1, None, "2"), (2, 1, "1", "1"), (6, 2, None, "3")],
)
def test_a_process_has_threads_for_its_cores_unless_a_user_says_fewer(
    tmp_path, monkeypatch, cores, processes, given, threads
):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if given:
        monkeypatch.setenv("OMP_NUM_THREADS", given)
    task = Task(("run",), tmp_path / "run", tmp_path, processes=processes, cores=cores)
    assert task.environment()["OMP_NUM_THREADS"] == threads


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
