"""The live table of a grid: how far each run is, and what it has reached."""

import time
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nacre.runs.event_file import read_events
from nacre.runs.records import StepMetrics, read_record
from nacre.sweeps.grid import Job
from nacre.terminal.progress import LINE_SECONDS, Display, one_line
from nacre.training.events import Trained

STYLES = {"waiting": "dim", "running": "bold", "done": "", "failed": "red"}


class GridDisplay(Display):
    """Shows the runs of a grid; a table on a terminal, a line a change elsewhere."""

    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, refresh_per_second=2)
        super().__init__(console, self.live)
        self.began = self.last_line = time.monotonic()
        self.done_before: float | None = None
        self.states: dict[str, str] = {}

    def __call__(self, jobs: Sequence[Job]) -> None:
        """Show how far the runs are."""
        if self.console.is_terminal:
            self.live.update(self.table(jobs))
            return
        for job in jobs:
            if self.states.get(job.name) != job.state and job.state != "waiting":
                self.console.print(f"{job.name}: {job.state}{_reached(job)}", highlight=False)
            self.states[job.name] = job.state
        if time.monotonic() - self.last_line > LINE_SECONDS:
            self.last_line = time.monotonic()
            self.console.print(self._left(jobs), highlight=False)

    def table(self, jobs: Sequence[Job]) -> Table:
        """Return the table of all runs, with the time left in its title."""
        table = Table(title=f"{len(jobs)} runs, {self._left(jobs)}", title_justify="left")
        table.add_column("run")
        table.add_column("state")
        table.add_column("iterations", justify="right")
        table.add_column("mIoU without background")
        for job in jobs:
            row = (job.name, job.state, f"{_iterations(job):,}/{sum(job.to_learn):,}")
            table.add_row(*row, _reached(job).strip(" :"), style=STYLES[job.state])
        return table

    def _left(self, jobs: Sequence[Job]) -> str:
        total = sum(sum(job.to_learn) for job in jobs)
        done = sum(_iterations(job) for job in jobs)
        if self.done_before is None:
            self.done_before = done
        gained, spent = done - self.done_before, time.monotonic() - self.began
        if gained <= 0 or done >= total:
            return f"{done / max(total, 1):.0%} done"
        return f"{done / total:.0%} done, about {spent * (total - done) / gained / 60:.0f} min left"


def _iterations(job: Job) -> int:
    """Return how many of its own updates a run is past."""
    if job.state == "done":
        return sum(job.to_learn)
    finished = [step for step in range(len(job.to_learn)) if job.folder.model(step).exists()]
    past = sum(job.to_learn[step] for step in finished)
    return past + _in_step(job.folder.events, len(finished))


def _in_step(events: Path, step: int) -> int:
    if not events.exists():
        return 0
    reached = [
        event.iteration
        for event in read_events(events)
        if isinstance(event, Trained) and event.step == step
    ]
    return max(reached, default=0)


def _reached(job: Job) -> str:
    """Return the means after the last step that was tested."""
    for step in reversed(range(len(job.iterations))):
        path = job.folder.step_metrics(step)
        if path.exists():
            means = one_line(read_record(StepMetrics, path)["mean_iou"])
            return f": step {step}, {means.removeprefix('mIoU without background: ')}"
    return ""
