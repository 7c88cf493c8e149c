"""Runs as tasks of a Ray cluster, with a core and, if there are any, a GPU each.

Ray finds a machine for each. When a machine or the process of a task dies, Ray begins the task
again elsewhere, and the run goes on from its folder. Needs the package ``ray`` (the extra of the
same name).
"""

import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from nacre.errors import NacreError
from nacre.sweeps.carry import RETRIES, CarryOut, GridMark, Outcome, RunTask
from nacre.utils.claim import Claim, Seen
from nacre.utils.packages import need

if TYPE_CHECKING:  # a task on another machine needs no torch of its own
    from nacre.sweeps.grid import GridConfig

_STOP_SECONDS = 120.0


class Ray:
    """Hands runs to a Ray cluster that is there."""

    begins_at_once = False

    def __init__(self, grid: "GridConfig", mark: Claim) -> None:
        self.ray = need("ray", "ray")
        try:
            self.ray.init(address="auto", log_to_driver=False, logging_level="ERROR")
        except (ConnectionError, ValueError, RuntimeError) as error:
            reason = str(error).splitlines()[0]
            raise NacreError(
                f"--on ray: there is no Ray cluster here ({reason}); `ray start --head` makes one "
                "of this machine, RAY_ADDRESS names another"
            ) from error
        there = self.ray.cluster_resources()
        gpus = min(1, int(there.get("GPU", 0)))
        self.capacity = 1 << 30 if grid.jobs is None else grid.jobs
        self.mark = GridMark(mark.place.absolute(), mark.note.token)
        means = {"num_gpus": gpus, "num_cpus": 1, "max_retries": RETRIES}
        self.function = self.ray.remote(**means)(_carry_out)

    def begin(self, task: RunTask, seen: Seen | None) -> "RayHandle":
        """Hand a run in; Ray begins it where there is room."""
        task = replace(task, cores=1, grid=self.mark)
        return RayHandle(self.ray, self.function.remote(task))

    def close(self) -> None:
        """Part from the cluster, which ends what this grid still has there."""
        self.ray.shutdown()


def _carry_out(task: RunTask) -> Outcome:
    return CarryOut(task)()


class RayHandle:
    """A run that is a task."""

    def __init__(self, ray: Any, task: Any) -> None:
        self.ray, self.task = ray, task

    def poll(self) -> Outcome | None:
        """Return how the task ended, once it has."""
        ready, _ = self.ray.wait([self.task], timeout=0)
        if not ready:
            return None
        try:
            outcome: Outcome = self.ray.get(self.task)
            return outcome
        except self.ray.exceptions.RayError as error:
            last = str(error).strip().splitlines()[-1]
            return Outcome("ended early", f"Ray could not carry it out: {last}")

    def stop(self) -> None:
        """Have the run save what it has."""
        self.ray.cancel(self.task)

    def wait(self) -> Outcome:
        """Wait until the task has ended."""
        until = time.monotonic() + _STOP_SECONDS
        while (outcome := self.poll()) is None:
            if time.monotonic() > until:
                return Outcome("ended early", "it did not end in time")
            time.sleep(0.1)
        return outcome
