"""The wiring to Ray, with one that runs tasks in threads, and a real cluster of two nodes."""

import importlib.util
import json
import os
import subprocess
import sys
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from typer.testing import CliRunner

from nacre.cli.app import program
from nacre.errors import NacreError
from nacre.sweeps import engines
from nacre.sweeps import grid as grids
from nacre.sweeps.engines import Ray
from nacre.sweeps.grid import check_grid, make_jobs, open_engine, run_grid
from ray_nodes import PATIENT, Nodes
from stand_in_runs import Process, stand_in
from tiny_runs import TINY, set_options

VALUES = {key: value for key, value in TINY.items() if key != "scenario"}
GRID = {"scenarios": ["scenes/4-4/overlapped"], "methods": ["ft", "joint"], "config": VALUES}


class RayError(Exception):
    """Ray's own errors are kinds of this one."""


class RayTask(threading.Thread):
    """A task of Ray: a thread, or one that its machine took with it."""

    def __init__(self, ray, function, *given):
        super().__init__(daemon=True)
        self.ray, self.function, self.given = ray, function, given
        self.result, self.error, self.process = None, None, None
        self.start()

    def run(self):
        if self.ray.losses:
            self.ray.losses -= 1
            self.error = RayError("The node died.\nThe worker died unexpectedly")
            return
        self.result = self.function(*self.given)


class FakeRay:
    """The part of Ray that an engine uses."""

    exceptions = SimpleNamespace(RayError=RayError)

    def __init__(self):
        self.options, self.tasks, self.losses = {}, [], 0
        self.is_there = True

    def init(self, address, **more):
        if not self.is_there:
            raise ConnectionError(f"Could not find any running Ray instance at {address}\nmore")

    def cluster_resources(self):
        return {"CPU": 8.0, "GPU": 4.0}

    def remote(self, **options):
        self.options = options

        def wrap(function):
            def submit(*given):
                self.tasks.append(RayTask(self, function, *given))
                return self.tasks[-1]

            return SimpleNamespace(remote=submit)

        return wrap

    def wait(self, tasks, timeout):
        return [one for one in tasks if not one.is_alive()], []

    def get(self, task):
        if task.error is not None:
            raise task.error
        return task.result

    def cancel(self, task):
        """Interrupt the task, which terminates its process."""
        for process in Process.started:
            if process.task.folder == task.given[0].folder:
                process.terminate()


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    stand_in(monkeypatch, usual=0)
    monkeypatch.setattr(engines, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(grids, "POLL_SECONDS", 0.01)
    return fake


def carried_out(out, grid=GRID, **more):
    jobs = make_jobs(check_grid(grid), out)
    return run_grid(jobs, Ray(), **more), jobs


def test_runs_are_tasks_with_a_gpu_and_a_core(ray, tmp_path):
    finished, jobs = carried_out(tmp_path)
    assert finished
    assert [job.state for job in jobs] == ["done", "done"]
    assert ray.options == {"num_gpus": 1, "num_cpus": 1, "max_retries": 0}


def test_a_run_may_have_several_gpus_and_a_process_for_each(ray, tmp_path):
    engine = open_engine("ray", check_grid({**GRID, "gpus_per_run": 2}), tmp_path)
    assert ray.options["num_gpus"] == 2
    (job,) = make_jobs(check_grid({**GRID, "methods": ["ft"]}), tmp_path)
    engine.submit(grids.make_task(job))
    assert "--nproc-per-node=2" in ray.tasks[0].given[0].command()


def test_what_ray_loses_is_submitted_again_a_few_times(ray, tmp_path):
    ray.losses = 2
    _, jobs = carried_out(tmp_path)
    assert [job.state for job in jobs] == ["done", "done"]
    assert len(ray.tasks) == 4
    ray.losses = 10
    _, jobs = carried_out(tmp_path / "again", {**GRID, "methods": ["ft"]})
    assert jobs[0].state == "failed"
    assert jobs[0].problem == "Ray lost it: The worker died unexpectedly"


def test_tasks_save_and_end_when_the_grid_stops(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(Process, "usual", None)
    finished, jobs = carried_out(tmp_path, should_stop=lambda: len(Process.started) == 2)
    assert not finished
    assert [job.state for job in jobs] == ["waiting", "waiting"]
    assert [one.result.state for one in ray.tasks] == ["lost"] * 2


def test_what_ray_prints_does_not_get_into_the_json(ray, tmp_path, monkeypatch):
    """Ray reports the death of a node on stdout."""

    class Failed(Process):
        def poll(self):
            print("(raylet) The node died")
            return 2

    monkeypatch.setattr(engines, "start", Failed)
    words = ["grid", *OPTIONS, "--methods", "ft", "--out", str(tmp_path), "--engine", "ray"]
    done = CliRunner().invoke(program, [*words, "--json"])
    (run,) = json.loads(done.stdout)
    assert run["state"] == "failed"
    assert "(raylet)" in done.stderr


def test_without_a_cluster_it_says_how_to_make_one(ray, tmp_path):
    ray.is_there = False
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
