"""Engines that execute a grid's runs: processes of this machine, jobs of SLURM, tasks of Ray.

An engine can submit, poll and cancel. A run resumes from its folder wherever it is started, so an
engine only starts processes and reports how they ended. The lock of a run's folder shows whether a
process is running there. SLURM needs submitit (the extra ``slurm``), Ray needs the extra ``ray``.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

from nacre.errors import NacreError
from nacre.utils.io import is_locked
from nacre.utils.signals import PARENT
from nacre.utils.system import CORES, import_extra, join_cluster, usable_cores

ENGINES = ("local", "slurm", "ray")
POLL_SECONDS = 0.5
_GPUS = "CUDA_VISIBLE_DEVICES"
_INTERRUPTED = 130
"""Exit code of a run that was interrupted and has saved."""
_UNLIMITED = 1 << 30

_SLURM_DEFAULTS = {"job_name": "nacre", "time": 24 * 60}
_MAX_TIMEOUTS = 1000
_SACCT_SECONDS = 30

# torchrun exits with its parent, and its processes with torchrun.
_TORCHRUN = (
    "from nacre.utils.signals import exit_with_parent; exit_with_parent(); "
    "from torch.distributed.run import main; main()"
)


class Ended(NamedTuple):
    """The end of an attempt at a run.

    Attributes:
        state: `lost` if a signal or the machine ended it; it may be submitted again.
        problem: Reason why it is not done.
    """

    state: Literal["done", "failed", "lost"]
    problem: str | None = None


@dataclass(frozen=True)
class Task:
    """A run that any machine with access to its folders can execute.

    Attributes:
        arguments: Arguments of the command `nacre`.
        folder: Folder of the run; its log is next to it.
        work_folder: Working folder of the command, if it exists on the machine.
        processes: Number of processes; each has a GPU.
        cores: Number of cores; None for all of the machine.
        gpus: CUDA's names of its GPUs; None for those that the engine assigns.
    """

    arguments: tuple[str, ...]
    folder: Path
    work_folder: Path
    processes: int = 1
    cores: int | None = None
    gpus: tuple[str, ...] | None = None

    def command(self) -> list[str]:
        """Return the command line."""
        if self.processes == 1:
            return [sys.executable, "-m", "nacre", *self.arguments]
        torchrun = ["--standalone", f"--nproc-per-node={self.processes}", "-m", "nacre"]
        return [sys.executable, "-c", _TORCHRUN, *torchrun, *self.arguments]

    def environment(self) -> dict[str, str]:
        """Return the environment variables; they make the process exit with this one."""
        env = {**os.environ, PARENT: str(os.getpid())}
        if self.gpus is not None:
            env[_GPUS] = ",".join(self.gpus)
        if self.cores is not None:
            # Runs side by side must not compete for cores. The user may allow fewer threads.
            cores = str(max(1, self.cores // self.processes))
            env = {"OMP_NUM_THREADS": cores, **env, CORES: cores}
        return env

    def ended(self, code: int) -> Ended:
        """Return how an attempt ended, given the exit code of its process."""
        if code == 0 and (self.folder / "metrics.json").exists():
            return Ended("done")
        if code < 0:
            name = signal.Signals(-code).name
            return Ended("lost", f"ended by {name}; the same command resumes it")
        if code == _INTERRUPTED:
            return Ended("lost", "interrupted; the same command resumes it")
        log = log_of(self.folder)
        # torchrun has one exit code for errors and for killed processes.
        return Ended("failed" if self.processes == 1 else "lost", f"{last_line(log)} (see {log})")


def log_of(folder: Path) -> Path:
    """Return the log file of the run in a folder."""
    return folder.parent / f"{folder.name}.log"


def last_line(log: Path) -> str:
    """Return the last line of a log: the error, if the run failed."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "no output"


def start(task: Task) -> "subprocess.Popen[bytes]":
    """Start the process of a run in its own process group."""
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
    """A run on a machine of a cluster; calling it takes as long as the run."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> Ended:
        """Execute the run; return how it ended."""
        # The process of an earlier attempt may still be saving.
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
        """Ask the run to save, and wait until it has ended."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.terminate()
            self.process.wait()

    def __getstate__(self) -> dict[str, Any]:
        """Return the state that is sent to the machine."""
        return {"task": self.task, "process": None}

    def checkpoint(self) -> Any:
        """Save before SLURM ends this job; return the job that submitit queues next."""
        self.stop()
        return import_extra("submitit", "slurm").helpers.DelayedSubmission(RemoteRun(self.task))


class Engine(Protocol):
    """Executes runs.

    Attributes:
        survives: True if submitted runs continue after the grid's process has ended.
        capacity: Maximum number of runs at a time.
    """

    survives: bool
    capacity: int

    def submit(self, task: Task) -> str:
        """Submit a run; return the engine's name for it."""

    def poll(self, name: str) -> Ended | None:
        """Return how a run ended; None if it has not."""

    def cancel(self, name: str) -> None:
        """Ask a run to save and exit; do not wait for it."""


class Local:
    """Executes runs as processes of this machine, each with its own GPUs and part of the cores.

    Args:
        jobs: Number of runs at a time. Default: as many as there are GPUs for, at least one.
        gpus_per_run: GPUs of a run, with a process for each. Default: one, if there are any.
        gpus: CUDA's names of the GPUs to use. Default: all that are visible.
    """

    survives = False

    def __init__(
        self,
        jobs: int | None = None,
        gpus_per_run: int | None = None,
        gpus: Sequence[str] | None = None,
    ) -> None:
        self.gpus = visible_gpus() if gpus is None else list(gpus)
        self.gpus_per_run = min(1, len(self.gpus)) if gpus_per_run is None else gpus_per_run
        if self.gpus_per_run > len(self.gpus):
            raise NacreError(
                f"--gpus-per-run {self.gpus_per_run}: this machine has {len(self.gpus)} visible "
                "GPUs; give a smaller number, or another --engine"
            )
        self.capacity = jobs or max(1, len(self.gpus) // max(1, self.gpus_per_run))
        self.cores = max(1, usable_cores() // self.capacity)
        self.slots: dict[int, tuple[Task, subprocess.Popen[bytes]]] = {}

    def submit(self, task: Task) -> str:
        """Start a run in the first free slot; if there are more slots than GPUs, they share."""
        slot = next(i for i in range(self.capacity) if i not in self.slots)
        first = slot * self.gpus_per_run
        gpus = tuple(self.gpus[(first + i) % len(self.gpus)] for i in range(self.gpus_per_run))
        task = replace(
            task,
            processes=max(1, self.gpus_per_run),
            cores=self.cores,
            gpus=gpus if self.gpus else None,
        )
        self.slots[slot] = task, start(task)
        return str(slot)

    def poll(self, name: str) -> Ended | None:
        """Return how a run ended, and free its slot; None if it has not ended."""
        task, process = self.slots[int(name)]
        code = process.poll()
        if code is None:
            return None
        del self.slots[int(name)]
        return task.ended(code)

    def cancel(self, name: str) -> None:
        """Ask a run to save and exit."""
        self.slots[int(name)][1].terminate()


def visible_gpus() -> list[str]:
    """Return CUDA's names of the GPUs that this process may use."""
    names = os.environ.get(_GPUS)
    if names is not None:
        return [name.strip() for name in names.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]


class Slurm:
    """Executes runs as jobs of SLURM, which continue after the grid's process has ended.

    A job that is preempted or out of time saves and is queued again.

    Args:
        executor: submitit's executor with the parameters of the jobs.
        jobs: Number of jobs at a time. Default: all.
        processes: Processes of a run; each has a GPU.
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
        except Exception as error:  # submitit has its own errors for a failed sbatch
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
        except Exception as error:  # submitit raises what ended the job
            reason = str(error).strip().splitlines()[-1]
            return Ended("lost", f"SLURM's job {name} ended: {reason}")

    def cancel(self, name: str) -> None:
        """Cancel a job; a run that has begun saves."""
        self._job(name).cancel(check=False)

    def _job(self, name: str) -> Any:
        """Return a job, even if an earlier process of the grid submitted it."""
        if name not in self.jobs:
            self.jobs[name] = self.executor.job_class(self.executor.folder, name)
        return self.jobs[name]


def open_slurm(
    folder: Path, jobs: int | None, gpus_per_run: int | None, parameters: Mapping[str, Any]
) -> Slurm:
    """Open the engine of SLURM.

    Args:
        folder: Folder of submitit's files.
        jobs: Number of jobs at a time. Default: all.
        gpus_per_run: GPUs of a run, with a process for each. Default: one.
        parameters: Parameters of submitit's executor.
    """
    submitit = import_extra("submitit", "slurm")
    try:
        executor = submitit.SlurmExecutor(folder.absolute(), max_num_timeout=_MAX_TIMEOUTS)
    except RuntimeError as error:
        raise NacreError(f"--engine slurm: {error}") from error
    # By default submitit asks only every ten minutes about a job that left no result.
    executor.job_class.watcher = type(executor.job_class.watcher)(_SACCT_SECONDS)
    gpus = 1 if gpus_per_run is None else gpus_per_run
    # Some clusters refuse a request for 0 GPUs, so the option is left out then.
    requested = {"gpus_per_node": gpus} if gpus else {}
    try:
        executor.update_parameters(**{**_SLURM_DEFAULTS, **requested, **parameters})
    except (ValueError, TypeError) as error:
        raise NacreError(f"slurm: {' '.join(str(error).split())[:600]}") from error
    return Slurm(executor, jobs, max(1, gpus), parameters.get("cpus_per_task"))


class Ray:
    """Executes runs as tasks of a Ray cluster, with a core per process and a GPU if there are any.

    Args:
        jobs: Number of tasks at a time. Default: all; Ray places them.
        gpus_per_run: GPUs of a run, with a process for each. Default: one, if there are any.
    """

    survives = False

    def __init__(self, jobs: int | None = None, gpus_per_run: int | None = None) -> None:
        self.ray = join_cluster("--engine ray")
        available = int(self.ray.cluster_resources().get("GPU", 0))
        gpus = min(1, available) if gpus_per_run is None else gpus_per_run
        self.capacity, self.processes = jobs or _UNLIMITED, max(1, gpus)
        # The grid submits lost runs again, so Ray must not.
        options = {"num_gpus": gpus, "num_cpus": self.processes, "max_retries": 0}
        self.function = self.ray.remote(**options)(_execute)
        self.tasks: dict[str, Any] = {}

    def submit(self, task: Task) -> str:
        """Submit a run; Ray chooses the machine."""
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
        """Ask a run to save and exit."""
        self.ray.cancel(self.tasks[name])


def _execute(task: Task) -> Ended:
    return RemoteRun(task)()
