"""Trackers of experiments: they read the events of a run and show them.

Losses, learning rate and speed by iteration, counted on over the steps; mean IoUs after each step.
Each tracker is a package that only its users need (an extra of the same name). A run that goes on
goes on in its tracker too: it is known there by the path of its folder.
"""

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Protocol

from nacre.errors import NacreError, unknown_name
from nacre.training.events import Event, Observer, RunBegan, StepTested, Trained
from nacre.utils.packages import install_line, need

PROJECT = "nacre"
Values = dict[str, float]


class Tracker(Protocol):
    """What a tracker does: begin, take values, end."""

    def begin(self, facts: dict[str, Any]) -> None:
        """Be told what the run is."""

    def log(self, values: Values, iteration: int) -> None:
        """Take values at an iteration."""

    def close(self) -> None:
        """Write what is still to be written."""


class Track:
    """An observer that passes the events of a run on to a tracker."""

    def __init__(self, tracker: Tracker) -> None:
        self.tracker = tracker
        self.iterations: list[int] = []

    def __call__(self, event: Event) -> None:
        """Pass an event on that has something to show."""
        if isinstance(event, RunBegan):
            self.iterations = event.iterations
            self.tracker.begin(asdict(event))
        elif isinstance(event, Trained):
            self.tracker.log(_train_values(event), self._count(event.step) + event.iteration)
        elif isinstance(event, StepTested):
            means = {f"miou/{k}": v for k, v in event.mean_iou.items() if v is not None}
            self.tracker.log({**means, "step": event.step}, self._count(event.step + 1))

    def close(self) -> None:
        """End the tracker's run."""
        self.tracker.close()

    def _count(self, steps: int) -> int:
        # Not counted up from event to event: a step may have been learnt before this start.
        return sum(self.iterations[:steps])


def _train_values(event: Trained) -> Values:
    """Return all figures of an event; losses by their names."""
    values = {f"loss/{name}": value for name, value in event.losses.items()}
    for name, value in asdict(event).items():
        if isinstance(value, int | float) and name not in ("step", "iteration"):
            values[name.replace("_", " ")] = value
    return values


class TensorBoard:
    """Writes ``RUN-tensorboard``, by torch's own writer."""

    def __init__(self, run: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise NacreError(
                "--track tensorboard needs a package that is not installed: "
                + install_line("tensorboard")
            ) from error
        self.writer: Any = SummaryWriter(str(run.with_name(f"{run.name}-tensorboard")))

    def begin(self, facts: dict[str, Any]) -> None:
        """Nothing: the folder's name says it."""

    def log(self, values: Values, iteration: int) -> None:
        """Add scalars."""
        for name, value in values.items():
            self.writer.add_scalar(name, value, iteration)

    def close(self) -> None:
        """Write to the disk."""
        self.writer.close()


class Wandb:
    """A run of Weights & Biases; WANDB_MODE=offline keeps it on this machine."""

    def __init__(self, run: Path) -> None:
        self.wandb, self.run = need("wandb", "wandb"), run

    def begin(self, facts: dict[str, Any]) -> None:
        """Begin the run, or go on with it."""
        self.wandb.init(
            project=PROJECT, name=self.run.name, id=run_id(self.run), resume="allow", config=facts
        )
        # Values of updates that are made again after a stop lie before the last ones.
        self.wandb.define_metric("*", step_metric="iteration")

    def log(self, values: Values, iteration: int) -> None:
        """Log values with their iteration, which is the axis."""
        self.wandb.log({**values, "iteration": iteration})

    def close(self) -> None:
        """Send what is left."""
        self.wandb.finish()


class Trackio:
    """A run of Trackio, which keeps it on this machine unless told otherwise."""

    def __init__(self, run: Path) -> None:
        self.trackio, self.run = need("trackio", "trackio"), run

    def begin(self, facts: dict[str, Any]) -> None:
        """Begin the run, or go on with it."""
        name = f"{self.run.name}-{run_id(self.run)}"
        self.trackio.init(project=PROJECT, name=name, config=facts, resume="allow")

    def log(self, values: Values, iteration: int) -> None:
        """Log values at an iteration."""
        self.trackio.log(values, step=iteration)

    def close(self) -> None:
        """Write what is left."""
        self.trackio.finish()


class MLflow:
    """A run of MLflow, wherever MLFLOW_TRACKING_URI points."""

    TAG = "nacre.run"

    def __init__(self, run: Path) -> None:
        self.mlflow, self.run = need("mlflow", "mlflow"), run

    def begin(self, facts: dict[str, Any]) -> None:
        """Begin the run, or go on with the one that has this folder's tag."""
        self.mlflow.set_experiment(PROJECT)
        tag = run_id(self.run)
        known = self.mlflow.search_runs(
            experiment_names=[PROJECT],
            filter_string=f"tags.`{self.TAG}` = '{tag}'",
            output_format="list",
        )
        if known:
            self.mlflow.start_run(run_id=known[0].info.run_id)
        else:
            self.mlflow.start_run(run_name=self.run.name, tags={self.TAG: tag})
            self.mlflow.log_params(facts)

    def log(self, values: Values, iteration: int) -> None:
        """Log values at an iteration."""
        self.mlflow.log_metrics(values, step=iteration)

    def close(self) -> None:
        """End the run."""
        self.mlflow.end_run()


TRACKERS: dict[str, Callable[[Path], Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": MLflow,
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
            track = Track(TRACKERS[name](run))
            at_end.callback(track.close)
            observers.append(track)
        yield observers
