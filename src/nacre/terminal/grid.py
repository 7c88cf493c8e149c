"""The live table of a grid: how far each run is, and what it has reached."""

import time
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nacre.sweeps.grid import Job, State
from nacre.sweeps.progress import GridProgress
from nacre.terminal.progress import LINE_SECONDS, Display, one_line

STYLES = {"waiting": "dim", "running": "bold", "done": "", "failed": "red"}
DRAW_SECONDS = 5.0
_ORDER: tuple[State, ...] = ("running", "failed", "waiting", "done")
_AROUND = 8
"""Lines of a terminal that are not rows of the table."""


class GridDisplay(Display):
    """Shows the runs of a grid; a table on a terminal, a line a change elsewhere."""

    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, auto_refresh=False)
        super().__init__(console, self.live)
        self.progress = GridProgress()
        self.began = self.last_line = time.monotonic()
        self.drawn = float("-inf")
        self.done_before: float | None = None
        self.states: dict[str, str] = {}

    def __call__(self, jobs: Sequence[Job]) -> None:
        """Show how far the runs are: at once what changed, the rest now and then."""
        if self.done_before is None:
            self.done_before = self._done(jobs)
        changed = [job for job in jobs if self.states.get(job.name, "waiting") != job.state]
        self.states = {job.name: job.state for job in jobs}
        now = time.monotonic()
        if self.console.is_terminal:
            if changed or now - self.drawn >= DRAW_SECONDS:
                self.drawn = now
                self.live.update(self.table(jobs), refresh=True)
            return
        for job in changed:
            self.console.print(f"{job.name}: {job.state}{self._reached(job)}", highlight=False)
        if now - self.last_line > LINE_SECONDS:
            self.last_line = now
            self.console.print(self._left(jobs), highlight=False)

    def table(self, jobs: Sequence[Job], rows: int | None = None) -> Table:
        """Return the table of the runs, with the time left in its title.

        Args:
            jobs: The runs.
            rows: How many are shown, those that are worked on first; by default as many as fit
                on the terminal.
        """
        rows = max(4, self.console.height - _AROUND) if rows is None else rows
        shown = jobs
        if len(jobs) > rows:
            shown = sorted(jobs, key=lambda job: _ORDER.index(job.state))[:rows]
        table = Table(title=f"{len(jobs)} runs, {self._left(jobs)}", title_justify="left")
        for title in ("run", "state"):
            table.add_column(title)
        table.add_column("iterations", justify="right")
        table.add_column("mIoU without background")
        for job in shown:
            done, total = self.progress.iterations(job), sum(job.to_learn)
            row = (job.name, job.state, f"{done:,}/{total:,}")
            table.add_row(*row, self._reached(job).strip(" :"), style=STYLES[job.state])
        if len(jobs) > len(shown):
            counts = Counter(job.state for job in jobs)
            table.caption = ", ".join(f"{counts[one]} {one}" for one in _ORDER if counts[one])
        return table

    def _left(self, jobs: Sequence[Job]) -> str:
        total = sum(sum(job.to_learn) for job in jobs)
        done = self._done(jobs)
        gained = 0 if self.done_before is None else done - self.done_before
        spent = time.monotonic() - self.began
        if gained <= 0 or done >= total:
            return f"{done / max(total, 1):.0%} done"
        return f"{done / total:.0%} done, about {spent * (total - done) / gained / 60:.0f} min left"

    def _done(self, jobs: Sequence[Job]) -> int:
        """Return how many updates the runs are past."""
        return sum(self.progress.iterations(job) for job in jobs)

    def _reached(self, job: Job) -> str:
        """Return the means after the last step that was tested."""
        reached = self.progress.reached(job)
        if reached is None:
            return ""
        means = one_line(reached[1]).removeprefix("mIoU without background: ")
        return f": step {reached[0]}, {means}"
