"""Events: what happens in a run, as typed values that any number of observers receive.

The trainer and the methods know nothing of files, bars or dashboards. An observer is a function
of one event. In a run's ``events.jsonl`` an event is a line of JSON: its kind under ``event``, its
fields and the time; transient events, which are there for progress bars, are not written.
"""

from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass
from functools import lru_cache
from typing import Any, ClassVar

from pydantic import TypeAdapter, ValidationError


@dataclass(frozen=True)
class Event:
    """Something that happened."""

    kind: ClassVar[str]
    is_transient: ClassVar[bool] = False

    def to_dict(self) -> dict[str, Any]:
        """Return the event as plain data."""
        return {"event": self.kind, **asdict(self)}


@dataclass(frozen=True)
class RunBegan(Event):
    """A run began, or goes on."""

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
    """A step is there already; `taken_from` is the cache that it was taken from, if it was."""

    kind = "skipped"
    step: int
    iterations: int
    taken_from: str | None = None


@dataclass(frozen=True)
class StepAwaited(Event):
    """A step is being learned by another run, which this one waits for."""

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

    `update_seconds` is the time of an update with all there is to it, `data_seconds` the part of it
    in which the trainer waited for images.
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
    """A model of a step is saved before its first update, so many seconds after the start."""

    kind = "usable"
    step: int
    seconds: float
    path: str


@dataclass(frozen=True)
class StepJudged(Event):
    """Images decided whether the updates of a step are kept.

    `before` and `after` are mean IoUs without the updates and with them, `classes` those in which
    the updated part has a say.
    """

    kind = "judged"
    step: int
    before: float
    after: float
    kept: bool
    classes: list[str]


@dataclass(frozen=True)
class OptionsChosen(Event):
    """Held-out images decided how the model sees images.

    `before` and `after` are mean IoUs on them with neither option and with those chosen.
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
    """So many images more were tested."""

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


EVENTS: dict[str, type[Event]] = {
    kind.kind: kind
    for kind in (
        RunBegan,
        StepSkipped,
        StepAwaited,
        StepBegan,
        Iterated,
        Trained,
        Saved,
        StepUsable,
        StepJudged,
        OptionsChosen,
        StepLearned,
        ImagesTested,
        StepTested,
    )
}

Observer = Callable[[Event], None]


def from_dict(content: dict[str, Any]) -> Event | None:
    """Return the event that `to_dict` wrote; None for one that this version does not know."""
    kind = EVENTS.get(str(content.get("event", "")))
    if kind is None:
        return None
    try:
        return _adapter(kind.kind).validate_python(content)
    except ValidationError:
        return None


@lru_cache
def _adapter(kind: str) -> TypeAdapter[Event]:
    return TypeAdapter(EVENTS[kind])


class Recorder:
    """Passes events on to observers."""

    def __init__(self, observers: Iterable[Observer] = ()) -> None:
        self.observers = list(observers)

    def __call__(self, event: Event) -> None:
        """Report an event."""
        for observer in self.observers:
            observer(event)
