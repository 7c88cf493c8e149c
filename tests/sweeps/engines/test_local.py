import os

import pytest

from nacre.sweeps import carry
from nacre.sweeps.carry import RunTask
from nacre.sweeps.engines import local
from nacre.sweeps.engines.local import Local, visible_gpus
from nacre.utils import system
from nacre.utils.claim import take
from nacre.utils.system import usable_cores


class Process:
    """A run that ends with a code when it is told to."""

    def __init__(self, task):
        self.task, self.code = task, None
        self.env = {**task.environment}

    def poll(self):
        return self.code

    def terminate(self):
        self.code = 130


@pytest.fixture
def task(tmp_path, monkeypatch):
    monkeypatch.setattr(carry, "_start", Process)

    def make(name):
        return RunTask(("run",), tmp_path / name, tmp_path, tmp_path / name / "metrics.json")

    return make


def test_each_run_has_a_gpu_of_its_own_and_a_share_of_the_cores(task):
    engine = Local(gpus=["0", "GPU-5a", "2"])
    assert engine.capacity == 3
    handles = [engine.begin(task(f"run-{at}"), None) for at in range(3)]
    given = [handle.carrier.process.env["CUDA_VISIBLE_DEVICES"] for handle in handles]
    assert given == ["0", "GPU-5a", "2"]
    assert {handle.carrier.task.cores for handle in handles} == {max(1, usable_cores() // 3)}
    handles[1].carrier.process.code = 1
    assert handles[1].poll().end == "failed"
    after = engine.begin(task("run-3"), None)
    assert after.carrier.process.env["CUDA_VISIBLE_DEVICES"] == "GPU-5a", "the one that is free"


def test_more_runs_than_gpus_share_them(task):
    engine = Local(4, gpus=["0", "1"])
    handles = [engine.begin(task(f"run-{at}"), None) for at in range(4)]
    given = [handle.carrier.process.env["CUDA_VISIBLE_DEVICES"] for handle in handles]
    assert given == ["0", "1", "0", "1"]
    assert handles[0].carrier.task.cores == max(1, usable_cores() // 4)


def test_without_gpus_there_is_one_run_at_a_time_and_nothing_is_hidden(task):
    engine = Local(gpus=[])
    assert engine.capacity == 1
    assert "CUDA_VISIBLE_DEVICES" not in engine.begin(task("run"), None).carrier.process.env


def test_gpus_that_are_hidden_from_the_grid_stay_hidden(monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3, 5")
    assert visible_gpus() == ["3", "5"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert visible_gpus() == []


def test_a_run_that_somebody_else_claims_first_is_left_to_them(task):
    first, second = Local(1, gpus=[]), Local(1, gpus=[])
    assert first.begin(task("run"), None) is not None
    assert second.begin(task("run"), None) is None
    assert not second.places


def test_a_run_uses_its_share_of_the_cores(monkeypatch):
    monkeypatch.setenv(system.CORES, "1")
    assert usable_cores() == 1
    monkeypatch.setenv(system.CORES, "100000")
    assert usable_cores() <= (os.cpu_count() or 1)


@pytest.mark.parametrize(("said", "threads"), [(None, "2"), ("1", "1")])
def test_a_run_has_threads_for_its_cores_unless_a_user_says_fewer(task, monkeypatch, said, threads):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    if said:
        monkeypatch.setenv("OMP_NUM_THREADS", said)
    monkeypatch.setattr(local, "usable_cores", lambda: 2)
    handle = Local(1, gpus=[]).begin(task("run"), None)
    assert carry.environment_of(handle.carrier.task)["OMP_NUM_THREADS"] == threads


def test_a_run_is_not_begun_while_its_last_process_still_saves(task, monkeypatch):
    monkeypatch.setattr(carry, "is_locked", lambda path: True)
    handle = Local(1, gpus=[]).begin(task("run"), None)
    assert handle.carrier.process is None
    assert handle.poll() is None
    monkeypatch.setattr(carry, "is_locked", lambda path: False)
    assert handle.poll() is None
    assert handle.carrier.process is not None


def test_a_run_that_another_machine_took_over_is_ended_here(task, tmp_path):
    handle = Local(1, gpus=[]).begin(task("run"), None)
    killed = []
    handle.carrier.process.kill = lambda: killed.append(True)
    handle.carrier.process.wait = lambda: -9
    assert take(tmp_path / "run", after=1) is not None
    assert handle.poll().end == "elsewhere"
    assert killed
