"""The wiring to Ray, with one that runs tasks in threads; the real one: benchmarks/ray_grid.py."""

import sys
import threading
from types import SimpleNamespace

import pytest

from nacre.errors import NacreError
from nacre.sweeps import carry, launch
from nacre.sweeps.engines import open_engine
from nacre.sweeps.grid import check_grid, make_jobs
from nacre.sweeps.launch import marked, run_grid
from tiny_runs import TINY

VALUES = {key: value for key, value in TINY.items() if key != "scenario"}
GRID = {"scenarios": ["scenes/4-4/overlapped"], "methods": ["ft", "joint"], "config": VALUES}


class RayError(Exception):
    """Ray's own errors are kinds of this one."""


class Task(threading.Thread):
    """A task of Ray: a thread, or one that its machine took with it."""

    def __init__(self, ray, function, *given):
        super().__init__(daemon=True)
        self.ray, self.function, self.given = ray, function, given
        self.result, self.error = None, None
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
        self.options, self.tasks, self.cancelled, self.losses = {}, [], [], 0
        self.is_there = True

    def init(self, address, **more):
        if not self.is_there:
            raise ConnectionError(f"Could not find any running Ray instance at {address}\nmore")

    def cluster_resources(self):
        return {"CPU": 8.0, "GPU": 2.0}

    def remote(self, **options):
        self.options = options

        def wrap(function):
            def submit(*given):
                self.tasks.append(Task(self, function, *given))
                return self.tasks[-1]

            return SimpleNamespace(remote=submit)

        return wrap

    def wait(self, tasks, timeout):
        return [task for task in tasks if not task.is_alive()], []

    def get(self, task):
        if task.error is not None:
            raise task.error
        return task.result

    def cancel(self, task):
        self.cancelled.append(task)

    def shutdown(self):
        self.is_there = False


class Process:
    """A run that is done at the second look; or goes on until it is told to stop."""

    goes_on = False

    def __init__(self, task):
        self.task, self.left, self.code = task, 2, None

    def poll(self):
        self.left -= 1
        if self.code is None and not self.goes_on and self.left < 0:
            self.code = 0
            self.task.done.parent.mkdir(parents=True, exist_ok=True)
            self.task.done.write_text("{}")
        return self.code

    def terminate(self):
        self.code = 130


@pytest.fixture
def ray(monkeypatch):
    fake = FakeRay()
    monkeypatch.setitem(sys.modules, "ray", fake)
    monkeypatch.setattr(carry, "_start", Process)
    monkeypatch.setattr(carry, "LOOK_SECONDS", 0.01)
    monkeypatch.setattr(launch, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(launch, "LOOK_SECONDS", 0.0)
    return fake


def carried_out(ray, out, grid=None, **more):
    made = check_grid(grid or GRID)
    jobs = make_jobs(made, out)
    with marked(out) as mark:
        engine = open_engine("ray", made, mark, out)
        finished = run_grid(jobs, engine, mark=mark, **more)
    return finished, jobs


def test_runs_are_tasks_with_a_gpu_a_core_and_retries(ray, tmp_path):
    finished, jobs = carried_out(ray, tmp_path)
    assert finished
    assert [job.state for job in jobs] == ["done", "done"]
    assert ray.options == {"num_gpus": 1, "num_cpus": 1, "max_retries": 3}
    assert not ray.is_there, "it parted from the cluster"
    assert not list(tmp_path.rglob("*claim*"))


def test_what_ray_gives_up_is_handed_in_again_a_few_times(ray, tmp_path):
    ray.losses = 2
    _, jobs = carried_out(ray, tmp_path)
    assert [job.state for job in jobs] == ["done", "done"]
    assert len(ray.tasks) == 4
    ray.is_there, ray.losses = True, 10
    _, jobs = carried_out(ray, tmp_path / "again", {**GRID, "methods": ["ft"]})
    assert jobs[0].state == "failed"
    assert jobs[0].problem == "Ray could not carry it out: The worker died unexpectedly"


def test_tasks_save_and_end_when_the_grid_stops(ray, tmp_path, monkeypatch):
    monkeypatch.setattr(Process, "goes_on", True)

    def all_run(asked=[0]):  # noqa: B006
        asked[0] += 1
        return asked[0] > 3 and len(list(tmp_path.rglob("*-1.claim-1"))) == 2

    finished, jobs = carried_out(ray, tmp_path, should_stop=all_run)
    assert not finished
    assert [job.state for job in jobs] == ["waiting", "waiting"]
    assert all(not task.is_alive() for task in ray.tasks)
    assert [task.result.end for task in ray.tasks] == ["ended early"] * 2
    assert len(ray.cancelled) == 2


def test_without_a_cluster_it_says_how_to_make_one(ray, tmp_path):
    ray.is_there = False
    with (
        marked(tmp_path) as mark,
        pytest.raises(NacreError, match=r"there is no Ray cluster here .*`ray start --head`"),
    ):
        open_engine("ray", check_grid(GRID), mark, tmp_path)


def test_without_ray_it_names_the_extra(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with (
        marked(tmp_path) as mark,
        pytest.raises(NacreError, match=r"pip install .*\[ray\]"),
    ):
        open_engine("ray", check_grid(GRID), mark, tmp_path)
