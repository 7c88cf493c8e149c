"""Events: what happens in a run, as typed values for any number of observers, and their file.

The trainer and the methods know nothing of files, progress bars or dashboards. An observer is a
function of one event. In a run's ``events.jsonl`` an event is a line of JSON: its kind under
``event``, its fields and the time. Transient events are for progress bars and are not written.
"""

import json
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError

from nacre.errors import NacreError
from nacre.utils.io import parse_json, read_bytes, save_text

MAX_EVENT_FILE_BYTES = 1 << 30


@dataclass(frozen=True)
class Event:
    """An event of a run."""

    kind: ClassVar[str]
    is_transient: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return {"event": self.kind, **asdict(self)}


@dataclass(frozen=True)
class RunBegan(Event):
    """A run begins or resumes."""

    kind = "run"
    scenario: str
    method: str
    seed: int
    device: str
    processes: int
    precision: str
    weights: str
    iterations: list[int]


@dataclass(frozen=True)
class StepSkipped(Event):
    """A step is learned already, perhaps in the cache `taken_from`."""

    kind = "skipped"
    step: int
    iterations: int
    taken_from: str | None = None


@dataclass(frozen=True)
class StepAwaited(Event):
    """The run waits for another run that learns a step."""

    kind = "awaited"
    is_transient = True
    step: int


@dataclass(frozen=True)
class StepBegan(Event):
    """A step begins at its iteration `first`: 0, or where it was interrupted."""

    kind = "begin"
    step: int
    classes: list[str]
    images: int
    iterations: int
    first: int


@dataclass(frozen=True)
class Iterated(Event):
    """An update was made."""

    kind = "iteration"
    is_transient = True
    step: int
    iteration: int


@dataclass(frozen=True)
class Trained(Event):
    """Means over the updates since the last such event.

    `update_seconds` is the time of a whole update, `data_seconds` the time it waits for images.
    """

    kind = "train"
    step: int
    iteration: int
    lr: float
    losses: dict[str, float]
    images_per_second: float
    update_seconds: float | None = None
    data_seconds: float | None = None


@dataclass(frozen=True)
class Saved(Event):
    """The state in the middle of a step was saved."""

    kind = "saved"
    step: int
    iteration: int


@dataclass(frozen=True)
class StepUsable(Event):
    """A usable model of a step was saved before its first update, `seconds` after the start."""

    kind = "usable"
    step: int
    seconds: float
    path: str


@dataclass(frozen=True)
class StepJudged(Event):
    """Held-out images decided whether the updates of a step are kept.

    `before` and `after` are mean IoUs without and with the updates, `classes` those that the
    updated decoder scores.
    """

    kind = "judged"
    step: int
    before: float
    after: float
    kept: bool
    classes: list[str]


@dataclass(frozen=True)
class OptionsChosen(Event):
    """Held-out images decided on the prediction options.

    `before` and `after` are their mean IoUs with neither option and with the chosen ones.
    """

    kind = "chosen"
    step: int
    mirror: bool
    edges: bool
    before: float
    after: float


@dataclass(frozen=True)
class StepLearned(Event):
    """The last update of a step was made."""

    kind = "learned"
    step: int
    seconds: float
    peak_memory_bytes: int | None


@dataclass(frozen=True)
class ImagesTested(Event):
    """A batch of `images` was tested, `of` a total."""

    kind = "tested"
    is_transient = True
    step: int
    images: int
    of: int


@dataclass(frozen=True)
class StepTested(Event):
    """A step is finished: its mean IoUs."""

    kind = "end"
    step: int
    mean_iou: dict[str, float | None]


EVENTS: dict[str, type[Event]] = {event.kind: event for event in Event.__subclasses__()}

Observer = Callable[[Event], None]


class Recorder:
    """An observer that passes events on to others."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers = list(observers)

    def __call__(self, event: Event) -> None:
        """Pass an event on."""
        for observer in self.observers:
            observer(event)


@dataclass(frozen=True)
class Position:
    """The position of a run: events before it stay, later ones happen again.

    Attributes:
        step: The step in progress.
        iteration: Its saved updates.
        is_learned: True if only its tests are left.
    """

    step: int
    iteration: int = 0
    is_learned: bool = False

    def is_past(self, event: dict[str, Any]) -> bool:
        """Return True if an event stays."""
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
    """An observer that appends events to a file, which a resumed run first cuts back."""

    def __init__(self, path: Path, position: Position) -> None:
        self.path = path
        kept = [line for line, event in _read_lines(path) if position.is_past(event)]
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
    """Read the events of a run, without lines that a killed run left unfinished."""
    events = (_from_dict(content) for _, content in _read_lines(path))
    return [event for event in events if event is not None]


def read_event(line: str) -> Event | None:
    """Return the event of a line; None if this version knows none like it."""
    content = _parse(line)
    return None if content is None else _from_dict(content)


def _read_lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.exists():
        return
    text = read_bytes(path, "the events", MAX_EVENT_FILE_BYTES).decode(errors="replace")
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


def _from_dict(content: dict[str, Any]) -> Event | None:
    kind = str(content.get("event", ""))
    try:
        return _adapter(kind).validate_python(content) if kind in EVENTS else None
    except ValidationError:
        return None


@lru_cache
def _adapter(kind: str) -> TypeAdapter[Event]:
    return TypeAdapter(EVENTS[kind])
