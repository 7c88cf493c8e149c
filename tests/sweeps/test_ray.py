"""The engine of Ray, with a stand-in for Ray, and on a real cluster of two nodes."""

import importlib.util
import json
import os
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from nacre.cli.app import program
from nacre.errors import NacreError
from nacre.sweeps import engines
from nacre.sweeps.engines import Ended, Ray, RemoteRun, Task
from nacre.sweeps.grid import check_grid, open_engine
from ray_nodes import PATIENT, Nodes
from stand_in_runs import stand_in
from tiny_runs import TINY, set_options

VALUES = {key: value for key, value in TINY.items() if key != "scenario"}
GRID = {"scenarios": ["scenes/4-4/overlapped"], "methods": ["ft", "joint"], "config": VALUES}


class RayError(Exception):
    """The base class of Ray's errors."""


class FakeRay:
    """The part of Ray that the engine uses; the tasks in `results` have ended."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self):
        self.options, self.tasks, self.results, self.canceled = {}, [], {}, []
        self.is_running = True

    def init(self, address, **more):
        if not self.is_running:
            raise ConnectionError(f"Could not find any running Ray instance at {address}\nmore")

    def cluster_resources(self):
        return {"CPU": 8.0, "GPU": 4.0}

    def remote(self, **options):
        self.options = options
        return lambda function: SimpleNamespace(remote=self.submit)

    def submit(self, task):
        self.tasks.append(task)
        return task

    def wait(self, tasks, timeout):
        return [task for task in tasks if task in self.results], []

    def get(self, task):
        if isinstance(self.results[task], Exception):
            raise self.results[task]
        return self.results[task]

    def cancel(self, task):
        self.canceled.append(task)


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    return fake


@pytest.mark.parametrize(("wanted", "gpus", "processes"), [(None, 1, 1), (2, 2, 2), (0, 0, 1)])
def test_runs_are_tasks_with_gpus_and_a_core_for_each_process(
    ray, tmp_path, wanted, gpus, processes
):
    engine = open_engine("ray", check_grid({**GRID, "gpus_per_run": wanted}), tmp_path)
    assert ray.options == {"num_gpus": gpus, "num_cpus": processes, "max_retries": 0}
    engine.submit(Task(("run",), tmp_path / "run", tmp_path))
    assert (ray.tasks[0].processes, ray.tasks[0].cores) == (processes, processes)


def test_a_task_is_polled_canceled_and_lost(ray, tmp_path):
    engine = Ray()
    names = [engine.submit(Task(("run",), tmp_path / str(i), tmp_path)) for i in range(2)]
    assert [engine.poll(name) for name in names] == [None, None]
    engine.cancel(names[1])
    assert ray.canceled == [ray.tasks[1]]
    done = Ended("done")
    ray.results[ray.tasks[0]] = done
    ray.results[ray.tasks[1]] = RayError("The node died.\nThe worker died unexpectedly")
    assert engine.poll(names[0]) == done
    assert engine.poll(names[1]) == Ended("lost", "Ray lost it: The worker died unexpectedly")


def test_a_canceled_run_saves_before_its_task_ends(tmp_path, monkeypatch):
    """Ray interrupts a task by an exception."""
    started = stand_in(monkeypatch)

    def interrupt(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(engines.time, "sleep", interrupt)
    with pytest.raises(KeyboardInterrupt):
        RemoteRun(Task(("run",), tmp_path / "run", tmp_path))()
    assert started[0].code == 130


def test_what_ray_prints_does_not_get_into_the_json(ray, tmp_path, monkeypatch):
    """Ray reports the death of a node on stdout."""

    def wait(tasks, timeout):
        print("(raylet) The node died")
        ray.results = dict.fromkeys(tasks, Ended("failed", "an error"))
        return tasks, []

    monkeypatch.setattr(ray, "wait", wait)
    words = ["grid", *OPTIONS, "--methods", "ft", "--out", str(tmp_path), "--engine", "ray"]
    done = CliRunner().invoke(program, [*words, "--json"])
    (run,) = json.loads(done.stdout)
    assert run["state"] == "failed"
    assert "(raylet)" in done.stderr


def test_without_a_cluster_it_says_how_to_make_one(ray):
    ray.is_running = False
    with pytest.raises(NacreError, match=r"there is no Ray cluster here .*`ray start --head`"):
        Ray()


OPTIONS = ["--scenarios", "scenes/4-4/overlapped", "--methods", "ft,mib,lwf-mc,joint"]
OPTIONS += [*set_options(VALUES), "--set", "train.epochs=30"]


def grid(out, *more, **env):
    command = [sys.executable, "-m", "nacre", "grid", "--out", str(out), "--json", *OPTIONS, *more]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, **env})


@pytest.mark.nightly
@pytest.mark.timeout(3000)
@pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="needs the extra ray")
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux tells a child of its parent's end")
def test_a_grid_on_ray_loses_one_of_two_nodes_and_ends_with_the_same_figures(tmp_path):
    """Compare with the same grid on this machine alone."""
    whole, out = tmp_path / "whole", tmp_path / "ray"
    said, _ = grid(whole).communicate()
    assert [run["state"] for run in json.loads(said)] == ["done"] * 4
    nodes, driver = Nodes(), None
    try:
        nodes.start()
        second = nodes.start()
        driver = grid(out, "--engine", "ray", RAY_ADDRESS=nodes.address, **PATIENT)
        await_two_that_learn(out, driver)
        nodes.kill(second)
        said, _ = driver.communicate(timeout=2400)
    finally:
        nodes.close()
        if driver is not None and driver.poll() is None:
            driver.kill()
    runs = json.loads(said)
    assert [run["state"] for run in runs] == ["done"] * 4
    starts = [len(json.loads(path.read_text())["starts"]) for path in out.rglob("run.json")]
    assert sum(starts) > 4, "what the node had was begun again"
    metrics = sorted(whole.glob("scenes*/*/**/metrics.json"))
    assert len(metrics) == 11
    for path in metrics:
        assert path.read_bytes() == (out / path.relative_to(whole)).read_bytes()


def await_two_that_learn(out: Path, driver) -> None:
    until = time.monotonic() + 900
    while True:
        events = [path.read_text() for path in out.rglob("events.jsonl")]
        done = len(list(out.glob("scenes*/*/metrics.json")))
        if sum('"train"' in text for text in events) - done >= 2:
            return
        assert driver.poll() is None, driver.stdout.read()
        assert time.monotonic() < until
        time.sleep(0.05)
