"""Observers of a run: the file of its events, and trackers of experiments.

The events of a run are a file of JSON lines, which a run that goes on cuts back and continues.
Trackers show losses, learning rate and speed by iteration, counted on over the steps, and mean
IoUs after each step. Each is a package that only its users need (an extra of the same name). A run
that goes on goes on in its tracker too: it is known there by the path of its folder.
"""

import contextlib
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from nacre.errors import NacreError, unknown_name
from nacre.training.events import (
    Event,
    Observer,
    RunBegan,
    StepLearned,
    StepTested,
    Trained,
    from_dict,
)
from nacre.utils.io import parse_json, read_bytes, save_text
from nacre.utils.system import import_extra

PROJECT = "nacre"
Values = dict[str, float]
_MAX_BYTES = 1 << 30


@dataclass(frozen=True)
class Position:
    """The position of a run: what is before it stays, what is behind it is done again.

    Attributes:
        step: The step that is worked on.
        iteration: Updates of it that are saved.
        is_learned: Whether only its testing is left.
    """

    step: int
    iteration: int = 0
    is_learned: bool = False

    def is_past(self, event: dict[str, Any]) -> bool:
        """Return whether an event belongs to what stays."""
        step = event.get("step")
        if not isinstance(step, int) or step < self.step:
            return True
        if step > self.step or event.get("event") == StepTested.kind:
            return False
        if self.is_learned:
            return True
        if not self.iteration or event.get("event") == StepLearned.kind:
            return False
        return int(event.get("iteration", 0)) <= self.iteration


class EventFile:
    """Writes events as lines of JSON."""

    def __init__(self, path: Path, position: Position) -> None:
        self.path = path
        kept = [line for line, event in _lines(path) if position.is_past(event)]
        content = "".join(f"{line}\n" for line in kept)
        if not path.exists() or path.read_bytes() != content.encode():
            save_text(path, content)

    def __call__(self, event: Event) -> None:
        """Append an event."""
        if event.is_transient:
            return
        line = json.dumps({"time": round(time.time(), 3), **event.to_dict()}, default=str)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise NacreError(f"could not write {self.path}: {error.strerror}") from error


def read_events(path: Path) -> list[Event]:
    """Read the events of a run; lines that a killed run left unfinished are passed over."""
    events = (from_dict(content) for _, content in _lines(path))
    return [event for event in events if event is not None]


def read_event(line: str) -> Event | None:
    """Return the event of a line; None if it holds none that this version knows."""
    content = _parse(line)
    return None if content is None else from_dict(content)


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.exists():
        return
    text = read_bytes(path, "the events", _MAX_BYTES).decode(errors="replace")
    for line in text.split("\n"):
        content = _parse(line)
        if content is not None:
            yield line, content


def _parse(line: str) -> dict[str, Any] | None:
    try:
        content = parse_json(line)
    except ValueError:
        return None
    return content if isinstance(content, dict) else None


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
