"""How many updates the runs of a grid are past, without reading anything twice.

What is done is known, what waits has its models counted once, and of the events of a run that is
worked on only what was added since the last look is read.
"""

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from nacre.runs.records import StepMetrics, read_record
from nacre.sweeps.grid import Job
from nacre.training.events import StepBegan, StepLearned, Trained, from_dict
from nacre.utils.io import parse_json

_MOST_BYTES = 1 << 22
"""Of events read at a look; the rest is read at the next one."""


_KINDS = tuple(f'"{event.kind}"'.encode() for event in (StepBegan, Trained, StepLearned))
"""What stands in the lines that say how far a run is; the others are not even parsed."""


class _Tail:
    """The events of a run as far as they were read: how far it is in each step."""

    def __init__(self, path: Path) -> None:
        self.path, self.read, self.reached = path, 0, {0: 0}

    def look(self) -> dict[int, int]:
        try:
            with self.path.open("rb") as file:
                if os.fstat(file.fileno()).st_size < self.read:  # cut back by a run that goes on
                    self.read, self.reached = 0, {0: 0}
                file.seek(self.read)
                whole, newline, _ = file.read(_MOST_BYTES).rpartition(b"\n")
        except OSError:
            return self.reached
        self.read += len(whole) + len(newline)
        for line in whole.splitlines():
            if any(kind in line for kind in _KINDS):
                self._note(line)
        return self.reached

    def _note(self, line: bytes) -> None:
        try:
            content = parse_json(line.decode(errors="replace"))
        except ValueError:
            return
        event = from_dict(content) if isinstance(content, dict) else None
        if isinstance(event, StepBegan):
            self.reached[event.step] = event.first
        elif isinstance(event, Trained):
            self.reached[event.step] = event.iteration
        elif isinstance(event, StepLearned):
            self.reached[event.step] = sys.maxsize


class GridProgress:
    """Looks at the folders of runs again and again, at as little cost as can be."""

    def __init__(self) -> None:
        self.tails: dict[str, _Tail] = {}
        self.past: dict[str, int] = {}
        self.means: dict[str, tuple[int, dict[str, Any]]] = {}

    def iterations(self, job: Job) -> int:
        """Return how many of its own updates a run is past."""
        if job.state == "done":
            return sum(job.to_learn)
        if job.state != "running" and job.name in self.past:
            return self.past[job.name]
        if job.name not in self.tails:
            self.tails[job.name] = _Tail(job.folder.events)
        reached = self.tails[job.name].look()
        own = zip(range(len(job.to_learn)), job.to_learn, strict=True)
        self.past[job.name] = sum(min(reached.get(step, 0), most) for step, most in own)
        return self.past[job.name]

    def reached(self, job: Job) -> tuple[int, dict[str, Any]] | None:
        """Return the last step of a run that was tested, and its mean IoUs."""
        known = self.means.get(job.name)
        if job.state == "waiting" or (known is not None and known[0] == len(job.iterations) - 1):
            return known
        first = known[0] + 1 if known is not None else 0
        for step in reversed(range(first, len(job.iterations))):
            path = job.folder.step_metrics(step)
            if path.exists():
                self.means[job.name] = step, read_record(StepMetrics, path)["mean_iou"]
                break
        return self.means.get(job.name)


def as_plain(jobs: Sequence[Job], progress: GridProgress) -> list[dict[str, Any]]:
    """Return the runs of a grid and how far they are as plain data."""
    return [
        {
            "run": job.name,
            "folder": str(job.folder.path),
            "state": job.state,
            "iterations": progress.iterations(job),
            "of": sum(job.to_learn),
            "tested_step": reached[0] if reached else None,
            "mean_iou": reached[1] if reached else None,
            "problem": job.problem,
        }
        for job in jobs
        for reached in (progress.reached(job),)
    ]
