"""Trackers of experiments: they read the events of a run and show them.

Losses, learning rate and speed by iteration, counted on over the steps; mean IoUs after each step.
Each tracker is a package that only its users need (an extra of the same name). A run that goes on
goes on in its tracker too: it is known there by the path of its folder.
"""

import contextlib
import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nacre.errors import unknown_name
from nacre.training.events import Event, Observer, RunBegan, StepTested, Trained
from nacre.utils.system import import_extra

PROJECT = "nacre"
Values = dict[str, float]


class Tracker:
    """An observer that shows the events of a run somewhere: what all trackers have in common."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.iterations: list[int] = []

    def __call__(self, event: Event) -> None:
        """Show an event that has figures."""
        if isinstance(event, RunBegan):
            self.iterations = event.iterations
            self.begin(asdict(event))
        elif isinstance(event, Trained):
            self.log(_train_values(event), self._count(event.step) + event.iteration)
        elif isinstance(event, StepTested):
            means = {f"miou/{k}": v for k, v in event.mean_iou.items() if v is not None}
            self.log({**means, "step": event.step}, self._count(event.step + 1))

    def begin(self, facts: dict[str, Any]) -> None:
        """Begin the run, or go on with it."""

    def log(self, values: Values, iteration: int) -> None:
        """Show values at an iteration."""
        raise NotImplementedError

    def close(self) -> None:
        """Write what is still to be written."""
        raise NotImplementedError

    def _count(self, steps: int) -> int:
        # Not counted up from event to event: a step may have been learned before this start.
        return sum(self.iterations[:steps])


def _train_values(event: Trained) -> Values:
    """Return all figures of an event; losses by their names."""
    values = {f"loss/{name}": value for name, value in event.losses.items()}
    for name, value in asdict(event).items():
        if isinstance(value, int | float) and name not in ("step", "iteration"):
            values[name.replace("_", " ")] = value
    return values


class TensorBoard(Tracker):
    """Writes ``RUN-tensorboard``, by torch's own writer."""

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        writer = import_extra(
            "torch.utils.tensorboard", "tensorboard", package="tensorboard"
        ).SummaryWriter
        self.writer = writer(str(run.with_name(f"{run.name}-tensorboard")))

    def log(self, values: Values, iteration: int) -> None:
        """Add scalars."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        """Write to the disk."""
        self.writer.close()


class Wandb(Tracker):
    """A run of Weights & Biases; WANDB_MODE=offline keeps it on this machine."""

    package = "wandb"

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        self.api = import_extra(self.package, self.package)

    def begin(self, facts: dict[str, Any]) -> None:
        """Begin the run, or go on with it."""
        name, identity = self.run.name, run_id(self.run)
        self.api.init(project=PROJECT, name=name, id=identity, resume="allow", config=facts)
        # Values of updates that are made again after a stop lie before the last ones.
        self.api.define_metric("*", step_metric="iteration")

    def log(self, values: Values, iteration: int) -> None:
        """Log values with their iteration, which is the axis."""
        self.api.log({**values, "iteration": iteration})

    def close(self) -> None:
        """Send what is left."""
        self.api.finish()


class Trackio(Wandb):
    """A run of Trackio, which has wandb's interface but knows a run by its name."""

    package = "trackio"

    def begin(self, facts: dict[str, Any]) -> None:
        """Begin the run, or go on with it."""
        name = f"{self.run.name}-{run_id(self.run)}"
        self.api.init(project=PROJECT, name=name, resume="allow", config=facts)

    def log(self, values: Values, iteration: int) -> None:
        """Log values at an iteration."""
        self.api.log(values, step=iteration)


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


def run_id(run: Path) -> str:
    """Return what a tracker knows a run by, wherever it goes on: its folder."""
    return hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:16]


@contextlib.contextmanager
def tracking(run: Path, names: Iterable[str]) -> Iterator[list[Observer]]:
    """Give the observers that pass the events of a run on to trackers, and end them afterwards."""
    with contextlib.ExitStack() as at_end:
        observers: list[Observer] = []
        for name in names:
            if name not in TRACKERS:
                raise unknown_name("tracker", name, TRACKERS)
            tracker = TRACKERS[name](run)
            at_end.callback(tracker.close)
            observers.append(tracker)
        yield observers
