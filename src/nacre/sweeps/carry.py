"""Carrying out one run of a grid on this machine: claim it, start its process, see it end.

The grid's own machine does this, a task of Ray or SLURM does it elsewhere, and so does a worker
that somebody started by hand. Nobody else needs to know where a run is: its claim says who works
on it, its folder how far it is, and it goes on from there wherever it is begun again.
"""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from nacre.utils.claim import Claim, Seen, Watch, read_claim, remove_claims, take
from nacre.utils.lock import is_locked
from nacre.utils.signals import PARENT
from nacre.utils.system import CORES

LOOK_SECONDS = 0.5
RETRIES = 3
"""New attempts at a run that a signal or a dying machine ended."""
_MOOD_SECONDS = 15.0
_STOPPED = 130
"""How a run ends that was told to stop and has saved."""

End = Literal["done", "failed", "ended early", "elsewhere"]


class Outcome(NamedTuple):
    """How an attempt at a run ended: by itself, by an error, by a signal; or others have it."""

    end: End
    problem: str | None = None


class GridMark(NamedTuple):
    """The claim of a grid that is being carried out: where it lies, and what tells it apart."""

    place: Path
    token: str


@dataclass(frozen=True)
class RunTask:
    """A run as any machine that shares the folders can carry it out.

    Attributes:
        arguments: Of the command `nacre`.
        folder: The run's folder; the claim and the log lie beside it.
        work_folder: Where the command is meant to be given, if the machine has such a folder.
        done: The file that is there when the run is done.
        cores: Its share of the machine.
        environment: Variables for its process.
        grid: With which it ends; None where the grid starts the process itself.
    """

    arguments: tuple[str, ...]
    folder: Path
    work_folder: Path
    done: Path
    cores: int | None = None
    environment: Mapping[str, str] = field(default_factory=dict)
    grid: GridMark | None = None

    @property
    def log(self) -> Path:
        """Where its output goes."""
        return log_of(self.folder)


def log_of(folder: Path) -> Path:
    """Return where the output of the run in a folder goes."""
    return folder.parent / f"{folder.name}.log"


class Carrier:
    """A run that this process carries out; it begins as soon as nobody else works on it."""

    def __init__(self, task: RunTask, claim: Claim) -> None:
        self.task, self.claim = task, claim
        self.process: subprocess.Popen[bytes] | None = None
        self.was_stopped = False
        self.ended: Outcome | None = None

    def poll(self) -> Outcome | None:
        """Go on with it; return how it ended, once it has."""
        if self.ended is None:
            self.claim.beat()
            self.ended = self._begin() if self.process is None else self._look(self.process)
        return self.ended

    def stop(self) -> None:
        """Have the run save what it has, without waiting for that."""
        self.was_stopped = True
        if self.process is not None and self.process.poll() is None:
            self.process.terminate()

    def wait(self) -> Outcome:
        """Wait until a run that was stopped has ended."""
        while (outcome := self.poll()) is None:
            time.sleep(0.05)
        return outcome

    def _begin(self) -> Outcome | None:
        if self.was_stopped:
            return self._conclude(Outcome("ended early"))
        if self.task.done.exists():
            return self._conclude(Outcome("done"))
        # A process that lost its carrier may still be saving.
        if not is_locked(self.task.folder):
            try:
                self.process = _start(self.task)
            except OSError as error:
                return self._conclude(Outcome("failed", f"could not be started: {error}"))
        return None

    def _look(self, process: subprocess.Popen[bytes]) -> Outcome | None:
        code = process.poll()
        if code is not None:
            return self._conclude(self._outcome(code))
        if self.claim.is_lost:  # this machine slept, say, and another one has the run now
            process.kill()
            process.wait()
            return Outcome("elsewhere")
        return None

    def _outcome(self, code: int) -> Outcome:
        if code == 0 and self.task.done.exists():
            return Outcome("done")
        if code < 0:
            name = signal.Signals(-code).name
            return Outcome("ended early", f"ended by {name}; the same command goes on")
        if code == _STOPPED:
            return Outcome("ended early", "told to stop; the same command goes on")
        return Outcome("failed", f"{last_line(self.task.log)} (see {self.task.log})")

    def _conclude(self, outcome: Outcome) -> Outcome:
        if outcome.end == "done":
            remove_claims(self.claim.place)
        else:
            self.claim.release("failed" if outcome.end == "failed" else "free", outcome.problem)
        return outcome


def begin(task: RunTask, seen: Seen | None) -> Carrier | None:
    """Claim a run whose claim was seen free, dead or not at all; None if another was faster."""
    claim = take(task.folder, seen.number if seen else 0)
    return Carrier(task, claim) if claim else None


class CarryOut:
    """Carries a run out to its end, as a task on some machine of a cluster."""

    def __init__(self, task: RunTask) -> None:
        self.task = task
        self.watch = Watch()
        self.carrier: Carrier | None = None
        self.other: Seen | None = None
        self.grid_seen = time.monotonic()

    def __call__(self) -> Outcome:
        """Carry the run out; return how it ended."""
        try:
            while True:
                if not self._grid_lives():
                    return self.stop() or Outcome("ended early", "its grid ended")
                outcome = self._go_on()
                if outcome is not None:
                    return outcome
                time.sleep(LOOK_SECONDS)
        finally:
            self.stop()

    def _go_on(self) -> Outcome | None:
        if self.carrier is not None:
            return self.carrier.poll()
        if self.task.done.exists():
            return Outcome("done")
        # An attempt before this one may have died with its machine: its claim must first grow old.
        seen = read_claim(self.task.folder)
        if seen is not None and self.watch.is_alive(seen):
            before, self.other = self.other, seen
            return Outcome("elsewhere") if before not in (None, seen) else None
        self.carrier = begin(self.task, seen)
        return None

    def stop(self) -> Outcome | None:
        """Have the run save what it has, and wait for that; return how it ended if it ran."""
        carrier, self.carrier = self.carrier, None
        if carrier is None or carrier.ended is not None:
            return None
        carrier.stop()
        return carrier.wait()

    def _grid_lives(self) -> bool:
        mark = self.task.grid
        if mark is None:
            return True
        seen = read_claim(mark.place)
        if seen is None:  # which may be the file system's mood
            return time.monotonic() - self.grid_seen < _MOOD_SECONDS
        self.grid_seen = time.monotonic()
        return seen.note.token == mark.token and self.watch.is_alive(seen)


def _start(task: RunTask) -> subprocess.Popen[bytes]:
    """Start a run's process, which ends with this one."""
    with task.log.open("ab") as log:
        return subprocess.Popen(
            [sys.executable, "-m", "nacre", *task.arguments],
            stdout=log,
            stderr=subprocess.STDOUT,
            env=environment_of(task),
            cwd=task.work_folder if task.work_folder.is_dir() else None,
            start_new_session=True,
        )


def environment_of(task: RunTask) -> dict[str, str]:
    """Return the variables that a run's process sees."""
    env = {**os.environ, **task.environment, PARENT: str(os.getpid())}
    if task.cores is not None:
        # Runs side by side must not fight for the same cores; a user may allow them still less.
        env = {"OMP_NUM_THREADS": str(task.cores), **env, CORES: str(task.cores)}
    return env


def last_line(log: Path) -> str:
    """Return the last line that a run printed, which is its error if it failed."""
    try:
        lines = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    except OSError:
        lines = []
    return lines[-1] if lines else "no output"
