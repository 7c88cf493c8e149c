"""What carries out the runs of a grid: processes of this machine, jobs of SLURM, tasks of Ray.

An engine is submit, poll and cancel. SLURM goes through submitit (the extra ``slurm``), Ray needs
the extra ``ray``.
"""

import os
import subprocess
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nacre.errors import NacreError, unknown_name
from nacre.sweeps.task import GPUS, Ended, RunHere, Task, start
from nacre.utils.system import import_extra, join_cluster, usable_cores

if TYPE_CHECKING:  # a machine that only carries out a run needs nothing else of the grid
    from nacre.sweeps.grid import GridConfig

_ALL = 1 << 30
_SLURM_DEFAULTS = {"job_name": "nacre", "time": 24 * 60}
_MOST_TIMEOUTS = 1000
_ASK_SECONDS = 30


class Engine(Protocol):
    """Carries out runs.

    Attributes:
        survives: Whether what was submitted goes on when the grid's process ends.
        capacity: How many runs it takes at a time; those above wait with the grid.
    """

    survives: bool
    capacity: int

    def submit(self, task: Task) -> str:
        """Take a run; return the name by which the engine knows it."""

    def poll(self, name: str) -> Ended | None:
        """Return how a run ended; None if it has not."""

    def cancel(self, name: str) -> None:
        """Have a run save what it has, without waiting for that."""


class Local:
    """Processes of this machine, each with its own GPUs and share of the cores.

    Args:
        jobs: How many at a time; as many as there are GPUs for by default, at least one.
        gpus_per_run: How many GPUs each has, with a process for each; one if there are any.
        gpus: Those that may be used, as CUDA names them; all that are visible by default.
    """

    survives = False

    def __init__(
        self,
        jobs: int | None = None,
        gpus_per_run: int | None = None,
        gpus: Sequence[str] | None = None,
    ) -> None:
        self.gpus = visible_gpus() if gpus is None else list(gpus)
        self.each = min(1, len(self.gpus)) if gpus_per_run is None else gpus_per_run
        if self.each > len(self.gpus):
            raise NacreError(
                f"--gpus-per-run {self.each}: this machine shows {len(self.gpus)} GPUs; give a "
                "smaller number, or another engine by --on"
            )
        self.capacity = jobs or max(1, len(self.gpus) // max(1, self.each))
        self.cores = max(1, usable_cores() // self.capacity)
        self.places: dict[int, tuple[Task, subprocess.Popen[bytes]]] = {}

    def submit(self, task: Task) -> str:
        """Start a run in the first free place; with more places than GPUs they share them."""
        place = next(one for one in range(self.capacity) if one not in self.places)
        first = place * self.each
        gpus = tuple(self.gpus[(first + i) % len(self.gpus)] for i in range(self.each))
        task = replace(
            task,
            processes=max(1, self.each),
            cores=self.cores,
            gpus=gpus if self.gpus else None,  # where there are none nothing has to be hidden
        )
        self.places[place] = task, start(task)
        return str(place)

    def poll(self, name: str) -> Ended | None:
        """Return how a run ended, once it has; its place is free then."""
        task, process = self.places[int(name)]
        code = process.poll()
        if code is None:
            return None
        del self.places[int(name)]
        return task.ended(code)

    def cancel(self, name: str) -> None:
        """Have a run save what it has."""
        self.places[int(name)][1].terminate()


def visible_gpus() -> list[str]:
    """Return the GPUs that may be used, as CUDA names them."""
    given = os.environ.get(GPUS)
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


class Slurm:
    """Jobs of SLURM, which go on when the grid's process ends.

    A job that is preempted, or at the end of its time, saves and is queued again.

    Args:
        executor: submitit's, with the parameters of the jobs.
        jobs: How many at a time; all by default.
        processes: How many processes a run has, with a GPU each.
        cores: The cores of a job.
    """

    survives = True

    def __init__(
        self, executor: Any, jobs: int | None, processes: int = 1, cores: int | None = None
    ) -> None:
        self.executor, self.capacity = executor, jobs or _ALL
        self.processes, self.cores = processes, cores
        self.jobs: dict[str, Any] = {}

    def submit(self, task: Task) -> str:
        """Queue a run; return the number of its job."""
        job = SlurmRun(replace(task, processes=self.processes, cores=self.cores))
        try:
            submitted = self.executor.submit(job)
        except Exception as error:  # submitit's own errors of a failed sbatch
            raise NacreError(f"SLURM refused the job: {' '.join(str(error).split())}") from error
        self.jobs[submitted.job_id] = submitted
        return str(submitted.job_id)

    def poll(self, name: str) -> Ended | None:
        """Return how a job ended, once it has."""
        job = self._job(name)
        if not job.done():
            return None
        try:
            ended: Ended = job.result()
            return ended
        except Exception as error:  # whatever ended the job, by submitit's word
            reason = str(error).strip().splitlines()[-1]
            return Ended("lost", f"SLURM's job {name} ended: {reason}")

    def cancel(self, name: str) -> None:
        """Take a job back; a run that has begun saves."""
        self._job(name).cancel(check=False)

    def _job(self, name: str) -> Any:
        """Return a job, which an earlier process of the grid may have submitted."""
        if name not in self.jobs:
            self.jobs[name] = self.executor.job_class(self.executor.folder, name)
        return self.jobs[name]


class SlurmRun(RunHere):
    """A run as submitit sees it: it can save, and be queued again."""

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to the machine."""
        return {"task": self.task, "process": None}

    def checkpoint(self) -> Any:
        """Save before SLURM ends this job, and return what is to be queued again."""
        self.stop()
        return import_extra("submitit", "slurm").helpers.DelayedSubmission(SlurmRun(self.task))


def open_slurm(grid: "GridConfig", out: Path) -> Slurm:
    """Return SLURM as an engine, with the parameters that a grid gives for its jobs."""
    submitit = import_extra("submitit", "slurm")
    try:
        executor = submitit.SlurmExecutor(
            (out / "slurm").absolute(), max_num_timeout=_MOST_TIMEOUTS
        )
    except RuntimeError as error:
        raise NacreError(f"--on slurm: {error}") from error
    # By default submitit asks only every ten minutes about a job that left no result.
    executor.job_class.watcher.delay_s = _ASK_SECONDS
    gpus = 1 if grid.gpus_per_run is None else grid.gpus_per_run
    # No GPU is asked for by not asking: some clusters refuse a request of 0.
    asked = {"gpus_per_node": gpus} if gpus else {}
    try:
        executor.update_parameters(**{**_SLURM_DEFAULTS, **asked, **grid.slurm})
    except (ValueError, TypeError) as error:
        raise NacreError(f"slurm: {' '.join(str(error).split())[:600]}") from error
    return Slurm(executor, grid.jobs, max(1, gpus), grid.slurm.get("cpus_per_task"))


class Ray:
    """Tasks of a Ray cluster, with a core for each process and a GPU if there are any.

    Args:
        jobs: How many at a time; all by default, for which Ray finds room.
        gpus_per_run: How many GPUs each has, with a process for each; one if there are any.
    """

    survives = False

    def __init__(self, jobs: int | None = None, gpus_per_run: int | None = None) -> None:
        self.ray = join_cluster("--on ray")
        there = int(self.ray.cluster_resources().get("GPU", 0))
        gpus = min(1, there) if gpus_per_run is None else gpus_per_run
        self.capacity, self.processes = jobs or _ALL, max(1, gpus)
        # The grid submits again what was lost: Ray need not.
        means = {"num_gpus": gpus, "num_cpus": self.processes, "max_retries": 0}
        self.function = self.ray.remote(**means)(_run_here)
        self.tasks: dict[str, Any] = {}

    def submit(self, task: Task) -> str:
        """Hand a run in; Ray begins it where there is room."""
        name = str(len(self.tasks))
        given = replace(task, processes=self.processes, cores=self.processes)
        self.tasks[name] = self.function.remote(given)
        return name

    def poll(self, name: str) -> Ended | None:
        """Return how a task ended, once it has."""
        ready, _ = self.ray.wait([self.tasks[name]], timeout=0)
        if not ready:
            return None
        try:
            ended: Ended = self.ray.get(self.tasks[name])
            return ended
        except self.ray.exceptions.RayError as error:
            return Ended("lost", f"Ray lost it: {str(error).strip().splitlines()[-1]}")

    def cancel(self, name: str) -> None:
        """Have a run save what it has."""
        self.ray.cancel(self.tasks[name])


def _run_here(task: Task) -> Ended:
    return RunHere(task)()


ENGINES = ("local", "slurm", "ray")


def open_engine(name: str, grid: "GridConfig", out: Path) -> Engine:
    """Return the engine of a name for a grid.

    Args:
        name: One of `ENGINES`.
        grid: The runs, and what each may use.
        out: The grid's folder.
    """
    if name == "ray":
        return Ray(grid.jobs, grid.gpus_per_run)
    if name == "slurm":
        return open_slurm(grid, out)
    if name == "local":
        return Local(grid.jobs, grid.gpus_per_run)
    raise unknown_name("engine", name, ENGINES)
