"""Engines that execute a grid's runs: processes of this machine, jobs of SLURM, tasks of Ray.

An engine is submit, poll and cancel. A run resumes from its folder wherever it is started again,
so an engine only starts processes and reports how they ended; the lock of the run's folder says
where one is at work. SLURM goes through submitit (the extra ``slurm``), Ray needs the extra
``ray``.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from nacre.errors import NacreError
from nacre.utils.io import is_locked
from nacre.utils.signals import PARENT
from nacre.utils.system import CORES, import_extra, join_cluster, usable_cores

ENGINES = ("local", "slurm", "ray")
GPUS = "CUDA_VISIBLE_DEVICES"
POLL_SECONDS = 0.5
_STOPPED = 130
"""The exit code of a run that was asked to stop and has saved."""
_UNLIMITED = 1 << 30

# torchrun ends with its parent, and its processes with torchrun.
_TORCHRUN = (
    "from nacre.utils.signals import exit_with_parent; exit_with_parent(); "
    "from torch.distributed.run import main; main()"
)


class Ended(NamedTuple):
    """The end of an attempt at a run.

    Attributes:
        state: `lost` if a signal or its machine ended it: it may be submitted again.
        problem: Why it is not done.
    """

    state: Literal["done", "failed", "lost"]
    problem: str | None = None


@dataclass(frozen=True)
class Task:
    """A run as any machine that shares the folders can execute it.

    Attributes:
        arguments: Arguments of the command `nacre`.
        folder: The run's folder; its log is next to it.
        work_folder: Where to give the command, if the machine has that folder.
        processes: Number of processes, with a GPU each.
        cores: Its number of the machine's cores; all of them if None.
        gpus: Its GPUs by CUDA's names; those of the engine if None.
    """

    arguments: tuple[str, ...]
    folder: Path
    work_folder: Path
    processes: int = 1
    cores: int | None = None
    gpus: tuple[str, ...] | None = None

    def command(self) -> list[str]:
        """Return the command line of its process."""
        if self.processes == 1:
            return [sys.executable, "-m", "nacre", *self.arguments]
        several = ["--standalone", f"--nproc-per-node={self.processes}", "-m", "nacre"]
        return [sys.executable, "-c", _TORCHRUN, *several, *self.arguments]

    def environment(self) -> dict[str, str]:
        """Return the variables of its process, which ends with this one."""
        env = {**os.environ, PARENT: str(os.getpid())}
        if self.gpus is not None:
            env[GPUS] = ",".join(self.gpus)
        if self.cores is not None:
            # Runs side by side must not compete for cores; a user may allow them still fewer.
            cores = str(max(1, self.cores // self.processes))
            env = {"OMP_NUM_THREADS": cores, **env, CORES: cores}
        return env

    def ended(self, code: int) -> Ended:
        """Return how an attempt ended, by the exit code of its process."""
        if code == 0 and (self.folder / "metrics.json").exists():
            return Ended("done")
        if code < 0:
            name = signal.Signals(-code).name
            return Ended("lost", f"ended by {name}; the same command resumes it")
        if code == _STOPPED:
            return Ended("lost", "asked to stop; the same command resumes it")
        log = log_of(self.folder)
        # torchrun has one code for whatever ended one of its processes.
        return Ended("failed" if self.processes == 1 else "lost", f"{last_line(log)} (see {log})")


def log_of(folder: Path) -> Path:
    """Return the file with the output of the run in a folder."""
    return folder.parent / f"{folder.name}.log"


def last_line(log: Path) -> str:
    """Return the last line that a run printed: its error, if it failed."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "no output"


def start(task: Task) -> "subprocess.Popen[bytes]":
    """Start the process of a run, in a process group of its own."""
    with log_of(task.folder).open("ab") as log:
        return subprocess.Popen(
            task.command(),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=task.environment(),
            cwd=task.work_folder if task.work_folder.is_dir() else None,
            start_new_session=True,
        )


class RemoteRun:
    """A run on a machine of a cluster: calling it takes as long as the run."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> Ended:
        """Execute the run; return how it ended."""
        # A process whose engine died may still be saving.
        while is_locked(self.task.folder):
            time.sleep(POLL_SECONDS)
        self.process = start(self.task)
        try:
            while (code := self.process.poll()) is None:
                time.sleep(POLL_SECONDS)
        finally:
            self.stop()
        return self.task.ended(code)

    def stop(self) -> None:
        """Make the run save, and wait for that."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.terminate()
            self.process.wait()

    def __getstate__(self) -> dict[str, Any]:
        """Return what is sent to the machine."""
        return {"task": self.task, "process": None}

    def checkpoint(self) -> Any:
        """Save before SLURM ends this job; return what submitit queues again."""
        self.stop()
        return import_extra("submitit", "slurm").helpers.DelayedSubmission(RemoteRun(self.task))


class Engine(Protocol):
    """Executes runs.

    Attributes:
        survives: True if submitted runs continue when the grid's process ends.
        capacity: The number of runs at a time.
    """

    survives: bool
    capacity: int

    def submit(self, task: Task) -> str:
        """Take a run; return the engine's name for it."""

    def poll(self, name: str) -> Ended | None:
        """Return how a run ended; None if it has not."""

    def cancel(self, name: str) -> None:
        """Ask a run to save and end, without waiting for it."""


class Local:
    """Processes of this machine, each with its own GPUs and part of the cores.

    Args:
        jobs: Number of runs at a time; by default as many as there are GPUs for, at least one.
        gpus_per_run: GPUs of a run, with a process for each; one by default, if there are any.
        gpus: The GPUs to use, by CUDA's names; by default all that are visible.
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
                f"--gpus-per-run {self.each}: this machine has {len(self.gpus)} visible GPUs; give "
                "a smaller number, or another --engine"
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
            gpus=gpus if self.gpus else None,  # without any there is nothing to hide
        )
        self.places[place] = task, start(task)
        return str(place)

    def poll(self, name: str) -> Ended | None:
        """Return how a run ended and free its place; None if it has not."""
        task, process = self.places[int(name)]
        code = process.poll()
        if code is None:
            return None
        del self.places[int(name)]
        return task.ended(code)

    def cancel(self, name: str) -> None:
        """Ask a run to save and end."""
        self.places[int(name)][1].terminate()


def visible_gpus() -> list[str]:
    """Return the GPUs of this process by CUDA's names."""
    given = os.environ.get(GPUS)
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


class Slurm:
    """Jobs of SLURM, which continue when the grid's process ends.

    A job that is preempted, or at the end of its time, saves and is queued again.

    Args:
        executor: submitit's executor, with the parameters of the jobs.
        jobs: Number of jobs at a time; all by default.
        processes: Processes of a run, with a GPU each.
        cores: Cores of a job.
    """

    survives = True

    def __init__(
        self, executor: Any, jobs: int | None, processes: int = 1, cores: int | None = None
    ) -> None:
        self.executor, self.capacity = executor, jobs or _UNLIMITED
        self.processes, self.cores = processes, cores
        self.jobs: dict[str, Any] = {}

    def submit(self, task: Task) -> str:
        """Queue a run; return the number of its job."""
        run = RemoteRun(replace(task, processes=self.processes, cores=self.cores))
        try:
            submitted = self.executor.submit(run)
        except Exception as error:  # submitit's own errors of a failed sbatch
            raise NacreError(f"SLURM refused the job: {' '.join(str(error).split())}") from error
        self.jobs[submitted.job_id] = submitted
        return str(submitted.job_id)

    def poll(self, name: str) -> Ended | None:
        """Return how a job ended; None if it has not."""
        job = self._job(name)
        if not job.done():
            return None
        try:
            ended: Ended = job.result()
            return ended
        except Exception as error:  # whatever ended the job, in submitit's words
            reason = str(error).strip().splitlines()[-1]
            return Ended("lost", f"SLURM's job {name} ended: {reason}")

    def cancel(self, name: str) -> None:
        """Cancel a job; a run that has begun saves."""
        self._job(name).cancel(check=False)

    def _job(self, name: str) -> Any:
        """Return a job, which an earlier process of the grid may have submitted."""
        if name not in self.jobs:
            self.jobs[name] = self.executor.job_class(self.executor.folder, name)
        return self.jobs[name]


class Ray:
    """Tasks of a Ray cluster, with a core per process and a GPU if there are any.

    Args:
        jobs: Number of tasks at a time; by default all, and Ray places them.
        gpus_per_run: GPUs of a run, with a process for each; one by default, if there are any.
    """

    survives = False

    def __init__(self, jobs: int | None = None, gpus_per_run: int | None = None) -> None:
        self.ray = join_cluster("--engine ray")
        available = int(self.ray.cluster_resources().get("GPU", 0))
        gpus = min(1, available) if gpus_per_run is None else gpus_per_run
        self.capacity, self.processes = jobs or _UNLIMITED, max(1, gpus)
        # The grid submits again what was lost: Ray need not.
        options = {"num_gpus": gpus, "num_cpus": self.processes, "max_retries": 0}
        self.function = self.ray.remote(**options)(_execute)
        self.tasks: dict[str, Any] = {}

    def submit(self, task: Task) -> str:
        """Submit a run; Ray starts it where there is room."""
        name = str(len(self.tasks))
        task = replace(task, processes=self.processes, cores=self.processes)
        self.tasks[name] = self.function.remote(task)
        return name

    def poll(self, name: str) -> Ended | None:
        """Return how a task ended; None if it has not."""
        ready, _ = self.ray.wait([self.tasks[name]], timeout=0)
        if not ready:
            return None
        try:
            ended: Ended = self.ray.get(self.tasks[name])
            return ended
        except self.ray.exceptions.RayError as error:
            return Ended("lost", f"Ray lost it: {str(error).strip().splitlines()[-1]}")

    def cancel(self, name: str) -> None:
        """Ask a run to save and end."""
        self.ray.cancel(self.tasks[name])


def _execute(task: Task) -> Ended:
    return RemoteRun(task)()
