"""A run of a grid as a process, on whatever machine an engine puts it.

Only the lock of the run's folder says that somebody works there. A run goes on from its folder
wherever it is begun again, so an engine only starts processes and tells how they ended.
"""

import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, NamedTuple

from nacre.utils.io import is_locked
from nacre.utils.signals import PARENT
from nacre.utils.system import CORES

GPUS = "CUDA_VISIBLE_DEVICES"
LOOK_SECONDS = 0.5
_STOPPED = 130
"""The exit code of a run that was told to stop and has saved."""

# torchrun is told of its parent's death, and tells its processes; they have torchrun as parent.
_TORCHRUN = (
    "from nacre.utils.signals import exit_with_parent; exit_with_parent(); "
    "from torch.distributed.run import main; main()"
)


class Ended(NamedTuple):
    """How an attempt at a run ended.

    Attributes:
        state: `lost` where a signal or its machine ended it: it may be tried again.
        problem: Why it is not done.
    """

    state: Literal["done", "failed", "lost"]
    problem: str | None = None


@dataclass(frozen=True)
class Task:
    """A run as any machine that shares the folders can carry it out.

    Attributes:
        arguments: Of the command `nacre`.
        folder: The run's folder; its log is beside it.
        work_folder: Where the command is meant to be given, if the machine has such a folder.
        processes: How many learn together, with a GPU each.
        cores: Its share of the machine's cores; all of them if not given.
        gpus: The GPUs that it may use, as CUDA names them; what the engine gives if None.
    """

    arguments: tuple[str, ...]
    folder: Path
    work_folder: Path
    processes: int = 1
    cores: int | None = None
    gpus: tuple[str, ...] | None = None

    @property
    def log(self) -> Path:
        """The file of its output."""
        return log_of(self.folder)

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
            # Runs side by side must not fight for cores; a user may allow them still fewer.
            cores = str(max(1, self.cores // self.processes))
            env = {"OMP_NUM_THREADS": cores, **env, CORES: cores}
        return env

    def ended(self, code: int) -> Ended:
        """Say how an attempt ended by the exit code of its process."""
        if code == 0 and (self.folder / "metrics.json").exists():
            return Ended("done")
        if code < 0:
            name = signal.Signals(-code).name
            return Ended("lost", f"ended by {name}; the same command goes on")
        if code == _STOPPED:
            return Ended("lost", "told to stop; the same command goes on")
        # torchrun has one code for whatever ended one of its processes.
        problem = f"{last_line(self.log)} (see {self.log})"
        return Ended("failed", problem) if self.processes == 1 else Ended("lost", problem)


def log_of(folder: Path) -> Path:
    """Return the file of the output of the run in a folder."""
    return folder.parent / f"{folder.name}.log"


def last_line(log: Path) -> str:
    """Return the last line that a run printed, which is its error if it failed."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "no output"


def start(task: Task) -> "subprocess.Popen[bytes]":
    """Start the process of a run, in a group of its own."""
    with task.log.open("ab") as log:
        return subprocess.Popen(
            task.command(),
            stdout=log,
            stderr=subprocess.STDOUT,
            env=task.environment(),
            cwd=task.work_folder if task.work_folder.is_dir() else None,
            start_new_session=True,
        )


class RunHere:
    """A run that a cluster has this machine carry out: calling it takes as long as the run."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.process: subprocess.Popen[bytes] | None = None

    def __call__(self) -> Ended:
        """Carry the run out; return how it ended."""
        # A process whose engine died may still be saving.
        while is_locked(self.task.folder):
            time.sleep(LOOK_SECONDS)
        self.process = start(self.task)
        try:
            while (code := self.process.poll()) is None:
                time.sleep(LOOK_SECONDS)
        finally:
            self.stop()
        return self.task.ended(code)

    def stop(self) -> None:
        """Have the run save, and wait for that."""
        if self.process is not None:
            if self.process.poll() is None:
                self.process.terminate()
            self.process.wait()
