"""Runs on this machine, so many at a time: each with a GPU, if there are any, and cores."""

import os
from collections.abc import Sequence
from dataclasses import replace

from nacre.sweeps.carry import Carrier, Outcome, RunTask, begin
from nacre.utils.claim import Seen
from nacre.utils.system import usable_cores

GPUS = "CUDA_VISIBLE_DEVICES"


class Local:
    """Starts processes on this machine.

    Args:
        jobs: How many at a time; one per GPU by default, one where there is none.
        gpus: What may be used, as CUDA names them; all that are visible by default.
    """

    begins_at_once = True

    def __init__(self, jobs: int | None = None, gpus: Sequence[str] | None = None) -> None:
        self.gpus = visible_gpus() if gpus is None else list(gpus)
        self.capacity = jobs or max(1, len(self.gpus))
        self.cores = max(1, usable_cores() // self.capacity)
        self.places: dict[int, Carrier] = {}

    def begin(self, task: RunTask, seen: Seen | None) -> "LocalHandle | None":
        """Start a run in the first free place; a GPU serves every so many places."""
        place = next(one for one in range(self.capacity) if one not in self.places)
        environment = dict(task.environment)
        if self.gpus:
            environment[GPUS] = self.gpus[place % len(self.gpus)]
        carrier = begin(replace(task, cores=self.cores, environment=environment), seen)
        if carrier is None:
            return None
        self.places[place] = carrier
        carrier.poll()
        return LocalHandle(self, place, carrier)

    def close(self) -> None:
        """Have what still runs save what it has."""
        for carrier in self.places.values():
            carrier.stop()


class LocalHandle:
    """A run in one of the places of this machine."""

    def __init__(self, engine: Local, place: int, carrier: Carrier) -> None:
        self.engine, self.place, self.carrier = engine, place, carrier

    def poll(self) -> Outcome | None:
        """Return how the run ended, once it has; its place is free then."""
        outcome = self.carrier.poll()
        if outcome is not None:
            self.engine.places.pop(self.place, None)
        return outcome

    def stop(self) -> None:
        """Have the run save what it has."""
        self.carrier.stop()

    def wait(self) -> Outcome:
        """Wait until the run has saved and ended."""
        outcome = self.carrier.wait()
        self.engine.places.pop(self.place, None)
        return outcome


def visible_gpus() -> list[str]:
    """Return the GPUs that may be used, as CUDA names them."""
    given = os.environ.get(GPUS)
    if given is not None:
        return [name.strip() for name in given.split(",") if name.strip() not in ("", "-1")]
    import torch

    return [str(number) for number in range(torch.cuda.device_count())]
