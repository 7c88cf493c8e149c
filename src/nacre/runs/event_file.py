"""The events of a run as a file of JSON lines, which a run that goes on cuts back and continues."""

import json
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nacre.errors import NacreError
from nacre.training.events import Event, StepLearned, StepTested, from_dict
from nacre.utils.io import parse_json, read_bytes, save_text

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


def _lines(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    if not path.exists():
        return
    text = read_bytes(path, "the events", _MAX_BYTES).decode(errors="replace")
    for line in text.split("\n"):
        try:
            content = parse_json(line)
        except ValueError:
            continue
        if isinstance(content, dict):
            yield line, content
