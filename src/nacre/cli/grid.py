"""The command that executes several runs, on this machine or on a cluster, and its live table."""

import sys
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console
from rich.live import Live
from rich.table import Table

from nacre.cli import app
from nacre.cli.app import argument, flag, option
from nacre.errors import NacreError, unknown_name
from nacre.terminal import LINE_SECONDS, Display, one_line

if TYPE_CHECKING:
    from nacre.sweeps.engines import Engine
    from nacre.sweeps.grid import GridConfig, Job, State

STYLES = {"waiting": "dim", "running": "bold", "done": "", "failed": "red"}
DRAW_SECONDS = 5.0
_ORDER: "tuple[State, ...]" = ("running", "failed", "waiting", "done")
_OTHER_LINES = 8
"""Lines of a terminal that are not rows of the table."""


@app.command(
    "grid",
    "nacre grid grid.yaml --out runs/grid",
    "nacre grid --scenarios scenes/4-2-2/overlapped --methods ft,lwf,mib --seeds 1,2,3 "
    "--preset demo --out runs/grid",
    "nacre grid grid.yaml --out runs/grid --engine slurm",
    "nacre grid grid.yaml --out runs/grid --status",
)
def grid(
    file: Annotated[Path | None, argument("GRID", "YAML file of a grid.")] = None,
    scenarios: Annotated[str | None, option("NAMES", "Comma-separated scenarios.")] = None,
    methods: Annotated[str | None, option("NAMES", "Comma-separated methods.")] = None,
    seeds: Annotated[str | None, option("NUMBERS", "Comma-separated seeds. Default: 1.")] = None,
    preset: app.Preset = None,
    set_: app.Set = None,
    root: app.Root = None,
    jobs: Annotated[
        int | None, option("NUMBER", "Runs at a time. Default: one per GPU, or one.", min=1)
    ] = None,
    out: Annotated[Path, option("FOLDER", "Folder for the runs and the page.")] = Path("runs/grid"),
    engine: Annotated[str, option("local|slurm|ray", "Where to run.")] = "local",
    gpus_per_run: Annotated[
        int | None, option("NUMBER", "GPUs per run. Default: one, if any.", min=0)
    ] = None,
    cache: app.Cache = None,
    cancel: Annotated[
        bool, flag("--cancel", "Cancel the jobs that --engine slurm submitted.")
    ] = False,
    status: Annotated[bool, flag("--status", "Show the status of all runs and exit.")] = False,
    json: Annotated[
        bool, flag("--json", "Print the runs as JSON, at the end or with --status.")
    ] = False,
) -> None:
    """Run every combination of methods, scenarios and seeds, and write a report."""
    from nacre.sweeps.engines import ENGINES
    from nacre.sweeps.grid import check_weights, find_status, make_jobs

    if engine not in ENGINES:
        raise unknown_name("engine", engine, ENGINES)
    lists = {"scenarios": scenarios, "methods": methods, "seeds": seeds}
    content: dict[str, Any] = {
        key: app.split_names(text) for key, text in lists.items() if text is not None
    }
    content |= {"preset": preset, "jobs": jobs, "gpus_per_run": gpus_per_run}
    made = _read_grid(file, content, root, set_ or [])
    runs = make_jobs(made, out, cache)
    app.show_config(made.model_dump(mode="json", exclude_none=True))
    if status:
        find_status(runs)
        _print(runs, json)
        return
    if cancel:
        _cancel(runs, made, out, engine)
        return
    check_weights(runs)
    console = app.make_console()
    console.quiet = console.quiet or json
    if not _run(runs, made, out, engine, console):
        count = sum(job.submitted is not None for job in runs)
        what = f"{count} submitted jobs continue (--cancel cancels them)" if count else "saved"
        app.echo(f"interrupted; {what}. The same command resumes the grid.", err=True)
        sys.exit(130)
    _finish(runs, out, json, console)


def _read_grid(
    file: Path | None, given: dict[str, Any], root: Path | None, sets: list[str]
) -> "GridConfig":
    """Return a grid from its file and the options, which lie over it."""
    from nacre.sweeps.grid import check_grid, read_grid
    from nacre.training.config import deep_merge, parse_assignment

    content = read_grid(file).model_dump() if file else {}
    content |= {key: value for key, value in given.items() if value is not None}
    missing = [key for key in ("methods", "scenarios") if key not in content]
    if missing:
        named = " and ".join(f"--{key}" for key in missing)
        raise NacreError(f"a grid needs {named}, or a grid file that has them (nacre grid --help)")
    values = deep_merge(content.get("config", {}), app.data_section(root))
    for text in sets:
        values = deep_merge(values, parse_assignment(text))
    return check_grid(content | {"config": values})


def _cancel(runs: "list[Job]", made: "GridConfig", out: Path, name: str) -> None:
    """Cancel what an earlier command submitted."""
    from nacre.sweeps.launch import cancel_submitted, open_engine
    from nacre.utils.io import locked

    if name != "slurm":
        raise NacreError(
            f"--cancel: no jobs of --engine {name} survive its command; give --engine slurm"
        )
    with locked(out, "grid"):  # a command at work would submit them again
        app.echo(f"{cancel_submitted(runs, open_engine(name, made, out))} jobs canceled")


def _run(runs: "list[Job]", made: "GridConfig", out: Path, name: str, console: Console) -> bool:
    """Execute the runs; return False if the user stopped it."""
    from nacre.sweeps.launch import open_engine, run_grid
    from nacre.utils.io import locked
    from nacre.utils.signals import StopSignal

    # Ray prints the death of a node to stdout, which may be for JSON alone.
    with locked(out, "grid"), redirect_stdout(sys.stderr):
        engine: Engine = open_engine(name, made, out)
        with StopSignal() as stop, GridDisplay(console) as display:
            return app.until_interrupted(
                lambda: run_grid(runs, engine, should_stop=stop, show=display),
                "the same command",
            )


def _finish(runs: "list[Job]", out: Path, json: bool, console: Console) -> None:
    """Report what failed, and write the page of the rest."""
    for job in runs:
        if job.state == "failed":
            app.echo(f"failed: {job.name}: {job.problem}", err=True)
    done = [job.folder.path for job in runs if job.state == "done"]
    if done:
        from nacre.report.page import write_report

        console.print("report:", str(write_report(done, out)), soft_wrap=True)
    if json:
        _print(runs, json)
    if len(done) < len(runs):
        sys.exit(1)


def _print(runs: "list[Job]", json: bool) -> None:
    from nacre.sweeps.grid import GridProgress, as_plain

    if json:
        app.print_json(as_plain(runs, GridProgress()))
        return
    console = app.make_console()
    console.print(GridDisplay(console).table(runs, rows=len(runs)))


class GridDisplay(Display):
    """Shows the runs of a grid: a table on a terminal, a line per change elsewhere."""

    def __init__(self, console: Console) -> None:
        from nacre.sweeps.grid import GridProgress

        self.live = Live(console=console, auto_refresh=False)
        super().__init__(console, self.live)
        self.progress = GridProgress()
        self.began = self.last_line = time.monotonic()
        self.drawn = float("-inf")
        self.done_before: float | None = None
        self.states: dict[str, str] = {}

    def __call__(self, jobs: "Sequence[Job]") -> None:
        """Show the progress of the runs: a change of state at once, the rest now and then."""
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
            self.console.print(f"{job.name}: {job.state}{self._means(job)}", highlight=False)
        if now - self.last_line > LINE_SECONDS:
            self.last_line = now
            self.console.print(self._left(jobs), highlight=False)

    def table(self, jobs: "Sequence[Job]", rows: int | None = None) -> Table:
        """Return the table of the runs, with the time left in its title.

        Args:
            jobs: The runs.
            rows: Number of rows, running ones first; by default as many as fit on the terminal.
        """
        rows = max(4, self.console.height - _OTHER_LINES) if rows is None else rows
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
            table.add_row(*row, self._means(job).strip(" :"), style=STYLES[job.state])
        if len(jobs) > len(shown):
            counts = Counter(job.state for job in jobs)
            table.caption = ", ".join(f"{counts[one]} {one}" for one in _ORDER if counts[one])
        return table

    def _left(self, jobs: "Sequence[Job]") -> str:
        total = sum(sum(job.to_learn) for job in jobs)
        done = self._done(jobs)
        gained = 0 if self.done_before is None else done - self.done_before
        spent = time.monotonic() - self.began
        if gained <= 0 or done >= total:
            return f"{done / max(total, 1):.0%} done"
        return f"{done / total:.0%} done, about {spent * (total - done) / gained / 60:.0f} min left"

    def _done(self, jobs: "Sequence[Job]") -> int:
        """Return the number of updates that the runs have made."""
        return sum(self.progress.iterations(job) for job in jobs)

    def _means(self, job: "Job") -> str:
        """Return the means after the last tested step."""
        tested = self.progress.last_tested(job)
        if tested is None:
            return ""
        means = one_line(tested[1]).removeprefix("mIoU without background: ")
        return f": step {tested[0]}, {means}"
