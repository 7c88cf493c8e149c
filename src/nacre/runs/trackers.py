"""Trackers of experiments: observers that show the events of a run in another program.

They show losses, learning rate and speed by iteration, counted over all steps, and mean IoUs after
each step. Each needs a package of its own, an extra of the same name. A resumed run continues in
its tracker, which identifies it by the path of its folder.
"""

import contextlib
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any

from nacre.errors import unknown_name
from nacre.training.events import Event, Observer, RunBegan, StepTested, Trained
from nacre.utils.system import import_extra

PROJECT = "nacre"
Values = dict[str, float]


class Tracker(ABC):
    """The common part of all trackers."""

    def __init__(self, run: Path) -> None:
        self.run = run
        self.iterations: list[int] = []

    def __call__(self, event: Event) -> None:
        """Show an event that has figures."""
        if isinstance(event, RunBegan):
            self.iterations = event.iterations
            self.begin(asdict(event))
        elif isinstance(event, Trained):
            values = {f"loss/{name}": value for name, value in event.losses.items()}
            for name in ("lr", "images_per_second", "update_seconds", "data_seconds"):
                value = getattr(event, name)
                if value is not None:
                    values[name.replace("_", " ")] = value
            self.log(values, self._iterations_of(event.step) + event.iteration)
        elif isinstance(event, StepTested):
            means = {f"miou/{k}": v for k, v in event.mean_iou.items() if v is not None}
            self.log({**means, "step": event.step}, self._iterations_of(event.step + 1))

    def begin(self, about: dict[str, Any]) -> None:
        """Begin or resume the run."""

    @abstractmethod
    def log(self, values: Values, iteration: int) -> None:
        """Show values at an iteration."""

    @abstractmethod
    def close(self) -> None:
        """Write what is pending."""

    def _iterations_of(self, steps: int) -> int:
        # Not counted from event to event: a step may have been learned before this start.
        return sum(self.iterations[:steps])


class TensorBoard(Tracker):
    """A folder RUN-tensorboard, written by torch's own writer."""

    def __init__(self, run: Path) -> None:
        super().__init__(run)
        module = import_extra("torch.utils.tensorboard", "tensorboard", package="tensorboard")
        self.writer = module.SummaryWriter(str(run.with_name(f"{run.name}-tensorboard")))

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

    def begin(self, about: dict[str, Any]) -> None:
        """Begin or resume the run."""
        name, identity = self.run.name, run_id(self.run)
        self.api.init(project=PROJECT, name=name, id=identity, resume="allow", config=about)
        # Updates that are made again after a stop have smaller iterations than the last ones.
        self.api.define_metric("*", step_metric="iteration")

    def log(self, values: Values, iteration: int) -> None:
        """Log values with their iteration, which is the axis."""
        self.api.log({**values, "iteration": iteration})

    def close(self) -> None:
        """Send what is pending."""
        self.api.finish()


class Trackio(Wandb):
    """A run of Trackio, which has wandb's interface but identifies a run by its name."""

    package = "trackio"

    def begin(self, about: dict[str, Any]) -> None:
        """Begin or resume the run."""
        name = f"{self.run.name}-{run_id(self.run)}"
        self.api.init(project=PROJECT, name=name, resume="allow", config=about)

    def log(self, values: Values, iteration: int) -> None:
        """Log values at an iteration."""
        self.api.log(values, step=iteration)


TRACKERS: dict[str, type[Tracker]] = {
    "tensorboard": TensorBoard,
    "wandb": Wandb,
    "trackio": Trackio,
}


def run_id(run: Path) -> str:
    """Return the identity of a run in its tracker, which follows from its folder."""
    return hashlib.sha256(str(run.absolute()).encode()).hexdigest()[:16]


@contextlib.contextmanager
def tracking(run: Path, names: Iterable[str]) -> Iterator[list[Observer]]:
    """Yield the trackers of these names, and close them at the end."""
    with contextlib.ExitStack() as at_end:
        trackers: list[Observer] = []
        for name in names:
            if name not in TRACKERS:
                raise unknown_name("tracker", name, TRACKERS)
            tracker = TRACKERS[name](run)
            at_end.callback(tracker.close)
            trackers.append(tracker)
        yield trackers
