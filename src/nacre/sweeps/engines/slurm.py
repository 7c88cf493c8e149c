"""Runs as jobs of SLURM, through submitit.

A job that is preempted, or at the end of its time, saves and is queued again; the run goes on from
its folder. Needs the package ``submitit`` (the extra ``slurm``).
"""

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from nacre.errors import NacreError
from nacre.sweeps.carry import CarryOut, GridMark, Outcome, RunTask
from nacre.utils.claim import Claim, Seen
from nacre.utils.packages import need

if TYPE_CHECKING:  # a task on another machine needs no torch of its own
    from nacre.sweeps.grid import GridConfig

_STOP_SECONDS = 120.0
_DEFAULTS = {"job_name": "nacre", "time": 24 * 60, "gpus_per_node": 1}
_MOST_TIMEOUTS = 1000
_ASK_SECONDS = 30


class Slurm:
    """Hands runs to SLURM."""

    begins_at_once = False

    def __init__(self, grid: "GridConfig", mark: Claim, out: Path) -> None:
        submitit = need("submitit", "slurm")
        self.cores = grid.slurm.get("cpus_per_task")
        self.capacity = 1 << 30 if grid.jobs is None else grid.jobs
        self.mark = GridMark(mark.place.absolute(), mark.note.token)
        folder = (out / "slurm").absolute()
        try:
            self.executor = submitit.SlurmExecutor(folder, max_num_timeout=_MOST_TIMEOUTS)
        except RuntimeError as error:
            raise NacreError(f"--on slurm: {error}") from error
        # How it stands with a job that left no result is asked for more often than every 10 min.
        self.executor.job_class.watcher.delay_s = _ASK_SECONDS
        # No GPU is asked for by not asking: some clusters refuse a request of 0.
        means = {key: value for key, value in {**_DEFAULTS, **grid.slurm}.items() if value != 0}
        try:
            self.executor.update_parameters(**means)
        except (ValueError, TypeError) as error:
            raise NacreError(f"slurm: {' '.join(str(error).split())[:600]}") from error
        self.handles: list[SlurmHandle] = []

    def begin(self, task: RunTask, seen: Seen | None) -> "SlurmHandle":
        """Hand a run in; SLURM begins it where there is room."""
        job = SlurmJob(replace(task, cores=self.cores, grid=self.mark))
        try:
            handle = SlurmHandle(self.executor.submit(job), task)
        except Exception as error:  # submitit's own errors of a failed sbatch
            raise NacreError(f"SLURM refused the job: {' '.join(str(error).split())}") from error
        self.handles.append(handle)
        return handle

    def close(self) -> None:
        """Take back what SLURM has not begun."""
        for handle in self.handles:
            handle.stop()


class SlurmJob(CarryOut):
    """A run as submitit sees it: it can save, and be begun again."""

    def __getstate__(self) -> RunTask:
        """Return what is sent to the machine."""
        return self.task

    def __setstate__(self, task: RunTask) -> None:
        self.__init__(task)  # type: ignore[misc]

    def checkpoint(self) -> Any:
        """Save before SLURM ends this job, and say what is to be queued again."""
        self.stop()
        return need("submitit", "slurm").helpers.DelayedSubmission(SlurmJob(self.task))


class SlurmHandle:
    """A run that is a job."""

    def __init__(self, job: Any, task: RunTask) -> None:
        self.job, self.task = job, task

    def poll(self) -> Outcome | None:
        """Return how the job ended, once it has."""
        if not self.job.done():
            return None
        try:
            outcome: Outcome = self.job.result()
            return outcome
        except Exception as error:  # whatever ended the job, by submitit's word
            reason = str(error).strip().splitlines()[-1]
            return Outcome("ended early", f"SLURM's job {self.job.job_id} ended: {reason}")

    def stop(self) -> None:
        """Take the job back if it waits; one that runs sees that the grid is gone, and saves."""
        if not self.job.done() and self.job.state != "RUNNING":
            self.job.cancel(check=False)

    def wait(self) -> Outcome:
        """Wait until the job has ended."""
        until = time.monotonic() + _STOP_SECONDS
        while (outcome := self.poll()) is None:
            if time.monotonic() > until:
                return Outcome("ended early", "it did not end in time")
            time.sleep(0.5)
        return outcome
