"""Events: what happens in a run, as named values that any number of observers receive.

The trainer and the methods know nothing of files, bars or dashboards. An observer is a function
of one event, a plain dictionary with its kind under ``event``:

    run       scenario, method, seed, iterations in all, device, precision and its reason
    skipped   step, iterations, taken_from: the run whose step 0 this is, if it is another's
    begin     step, classes, images, iterations, first iteration
    train     step, iteration, lr, losses by name, seconds, images a second
    iteration step, iteration (every one; for progress bars, not written to the file)
    tested    step, images so far (for progress bars, not written to the file)
    end       step, mean IoUs, seconds
    saved     step, iteration
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from nacre.errors import NacreError

Event = dict[str, Any]
Observer = Callable[[Event], None]

TRANSIENT = {"iteration", "tested"}


class Recorder:
    """Passes events on to observers."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers = list(observers)

    def __call__(self, event: str, **values: Any) -> None:
        """Report an event."""
        content = {"event": event, **values}
        for observer in self.observers:
            observer(content)


class EventFile:
    """Writes events as lines of JSON; a run that goes on cuts off what it will write again."""

    def __init__(self, path: Path, keep: int | None = None) -> None:
        self.path = path
        path.touch()
        # Without a checkpoint, a step that was begun begins anew.
        keep = _end_of_last_step(path) if keep is None else keep
        os.truncate(path, min(keep, path.stat().st_size))

    def __call__(self, event: Event) -> None:
        """Append an event."""
        if event["event"] in TRANSIENT:
            return
        line = json.dumps({"time": round(time.time(), 3), **event}, default=str)
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")
        except OSError as error:
            raise NacreError(f"could not write {self.path}: {error.strerror}") from error

    @property
    def size(self) -> int:
        """How long the file is: what a checkpoint must remember to cut off the rest later."""
        return self.path.stat().st_size


def _end_of_last_step(path: Path) -> int:
    """Return the position after the last line that ends a step."""
    position = kept = 0
    for line in path.read_bytes().splitlines(keepends=True):
        position += len(line)
        if b'"event": "end"' in line:
            kept = position
    return kept


def read_events(path: Path) -> list[Event]:
    """Read the events of a run."""
    lines = path.read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines if line]
