"""The commands that execute several runs, grid and demo, and the live table of a grid."""

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
from nacre.cli.results import print_table
from nacre.errors import NacreError, unknown_name
from nacre.terminal import LINE_SECONDS, Display, format_means

if TYPE_CHECKING:
    from nacre.sweeps.grid import GridConfig, Job, State

STYLES = {"waiting": "dim", "running": "bold", "done": "", "failed": "red"}
DRAW_SECONDS = 5.0
_ORDER: "tuple[State, ...]" = ("running", "failed", "waiting", "done")
_OTHER_LINES = 8
"""Lines of a terminal that are not rows of the table."""

DEMO_METHODS = ("ft", "lwf", "mib", "joint")
DEMO_IMAGES = 800
"""Number of training images of the demo."""
DEMO_TITLE = "nacre demo: three steps on generated scenes"
ABOUT_DEMO = """\
Eight classes of generated things are learned in three steps: four, then two, then two.
In each step only the new classes are labeled; all else is marked background.
ft forgets, lwf distills, mib models the background, joint has all labels at once."""


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
    config = _read_grid(file, content, root, set_ or [])
    runs = make_jobs(config, out, cache)
    app.show_config(config.model_dump(mode="json", exclude_none=True))
    if status:
        find_status(runs)
        _print(runs, json)
        return
    if cancel:
        _cancel(runs, config, out, engine)
        return
    check_weights(runs)
    console = app.make_console()
    console.quiet = console.quiet or json
    _execute(runs, config, out, engine, console)
    _finish(runs, out, json, console)


@app.command("demo", "nacre demo --out my-demo --seed 2")
def demo(
    out: Annotated[Path, option("FOLDER", "Folder for the page and the runs.")] = Path(
        "nacre-demo"
    ),
    seed: Annotated[int, option("NUMBER", "Random seed for scenes, weights and order.", min=0)] = 1,
) -> None:
    """Train on generated scenes in three steps with ft, lwf, mib and joint; write a page."""
    from nacre.report.page import write_report
    from nacre.report.results import load_results
    from nacre.report.tables import steps_table
    from nacre.sweeps.grid import GridConfig, make_jobs
    from nacre.utils.system import usable_cores

    config = GridConfig(
        scenarios=("scenes/4-2-2/overlapped",),
        methods=DEMO_METHODS,
        seeds=(seed,),
        preset="demo",
        config={"data": {"seed": seed, "train": DEMO_IMAGES}},
        # Runs side by side with a core each are faster than one after another with all cores.
        jobs=min(len(DEMO_METHODS), usable_cores()),
    )
    app.show_config(config.model_dump(mode="json", exclude_none=True))
    console = app.make_console()
    console.print(ABOUT_DEMO)
    runs = make_jobs(config, out / "runs")
    _execute(runs, config, out, "local", console)
    for job in runs:
        if job.state == "failed":
            raise NacreError(f"failed: {job.name}: {job.problem}")
    folders = [job.folder.path for job in runs]
    for results in load_results(folders):
        print_table(console, steps_table(results))
    page = write_report(folders, out, title=DEMO_TITLE)
    console.print("The page with images:", str(page), soft_wrap=True)


def _read_grid(
    file: Path | None, options: dict[str, Any], root: Path | None, sets: list[str]
) -> "GridConfig":
    """Return a grid from its file and the options, which override the file."""
    from nacre.sweeps.grid import check_grid, read_grid
    from nacre.training.config import deep_merge, parse_assignment

    content = read_grid(file).model_dump() if file else {}
    content |= {key: value for key, value in options.items() if value is not None}
    missing = [key for key in ("methods", "scenarios") if key not in content]
    if missing:
        names = " and ".join(f"--{key}" for key in missing)
        raise NacreError(f"a grid needs {names}, or a grid file that has them (nacre grid --help)")
    values = deep_merge(content.get("config", {}), app.data_section(root))
    for text in sets:
        values = deep_merge(values, parse_assignment(text))
    return check_grid(content | {"config": values})


def _cancel(runs: "list[Job]", config: "GridConfig", out: Path, engine: str) -> None:
    """Cancel the jobs that an earlier command submitted."""
    from nacre.sweeps.grid import cancel_submitted, open_engine
    from nacre.utils.io import locked

    if engine != "slurm":
        raise NacreError(
            f"--cancel: no jobs of --engine {engine} survive its command; give --engine slurm"
        )
    with locked(out, "grid"):  # a running grid would submit them again
        count = cancel_submitted(runs, open_engine(engine, config, out))
    app.echo(f"{count} jobs canceled")


def _execute(
    runs: "list[Job]", config: "GridConfig", out: Path, engine: str, console: Console
) -> None:
    """Execute the runs with a live table; exit if the user stops them."""
    from nacre.sweeps.grid import open_engine, run_grid
    from nacre.utils.io import locked
    from nacre.utils.signals import StopSignal

    # Ray prints the death of a node to stdout, which --json reserves for JSON.
    with locked(out, "grid"), redirect_stdout(sys.stderr):
        opened = open_engine(engine, config, out)
        with StopSignal() as stop, GridDisplay(console) as display:
            is_complete = app.until_interrupted(
                lambda: run_grid(runs, opened, should_stop=stop, show=display), "the same command"
            )
    if not is_complete:
        count = sum(job.submitted is not None for job in runs)
        what = f"{count} submitted jobs continue (--cancel cancels them)" if count else "saved"
        app.echo(f"interrupted; {what}. The same command resumes the runs.", err=True)
        sys.exit(130)


def _finish(runs: "list[Job]", out: Path, json: bool, console: Console) -> None:
    """Print the runs that failed, and write a page about the others."""
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
        others = (job for job in runs if job.state != "done")
        sys.exit(2 if all(job.is_refused for job in others) else 1)


def _print(runs: "list[Job]", json: bool) -> None:
    from nacre.sweeps.grid import as_dict

    if json:
        app.print_json([as_dict(job) for job in runs])
        return
    console = app.make_console()
    console.print(GridDisplay(console).table(runs, rows=len(runs)))


class GridDisplay(Display):
    """Shows the runs of a grid: a table on a terminal, otherwise a line per change."""

    def __init__(self, console: Console) -> None:
        self.live = Live(console=console, auto_refresh=False)
        super().__init__(console, self.live)
        self.start_time = self.last_line = time.monotonic()
        self.last_drawing = float("-inf")
        self.done_before: int | None = None
        self.states: dict[str, str] = {}

    def __call__(self, jobs: "Sequence[Job]") -> None:
        """Show a change of state at once, and the progress now and then."""
        if self.done_before is None:
            self.done_before = _count_done(jobs)
        changed = [job for job in jobs if self.states.get(job.name, "waiting") != job.state]
        self.states = {job.name: job.state for job in jobs}
        now = time.monotonic()
        if self.console.is_terminal:
            if changed or now - self.last_drawing >= DRAW_SECONDS:
                self.last_drawing = now
                self.live.update(self.table(jobs), refresh=True)
            return
        for job in changed:
            means = _means_of(job)
            self.console.print(f"{job.name}: {job.state}{means and f': {means}'}", highlight=False)
        if now - self.last_line > LINE_SECONDS:
            self.last_line = now
            self.console.print(self._time_left(jobs), highlight=False)

    def table(self, jobs: "Sequence[Job]", rows: int | None = None) -> Table:
        """Return the table of the runs; its title contains the time left.

        Args:
            jobs: The runs.
            rows: Number of rows, running ones first. Default: as many as fit on the terminal.
        """
        from nacre.sweeps.grid import count_iterations

        rows = max(4, self.console.height - _OTHER_LINES) if rows is None else rows
        shown = jobs
        if len(jobs) > rows:
            shown = sorted(jobs, key=lambda job: _ORDER.index(job.state))[:rows]
        table = Table(title=f"{len(jobs)} runs, {self._time_left(jobs)}", title_justify="left")
        for title in ("run", "state"):
            table.add_column(title)
        table.add_column("iterations", justify="right")
        table.add_column("mIoU without background")
        for job in shown:
            counts = f"{count_iterations(job):,}/{sum(job.to_learn):,}"
            table.add_row(job.name, job.state, counts, _means_of(job), style=STYLES[job.state])
        if len(jobs) > len(shown):
            by_state = Counter(job.state for job in jobs)
            table.caption = ", ".join(f"{by_state[one]} {one}" for one in _ORDER if by_state[one])
        return table

    def _time_left(self, jobs: "Sequence[Job]") -> str:
        total = sum(sum(job.to_learn) for job in jobs)
        done = _count_done(jobs)
        gained = 0 if self.done_before is None else done - self.done_before
        spent = time.monotonic() - self.start_time
        if gained <= 0 or done >= total:
            return f"{done / max(total, 1):.0%} done"
        return f"{done / total:.0%} done, about {spent * (total - done) / gained / 60:.0f} min left"


def _count_done(jobs: "Sequence[Job]") -> int:
    """Return the number of updates that the runs have made."""
    from nacre.sweeps.grid import count_iterations

    return sum(map(count_iterations, jobs))


def _means_of(job: "Job") -> str:
    """Return the mean IoUs after the last tested step of a run."""
    from nacre.sweeps.grid import last_tested

    tested = last_tested(job)
    if tested is None:
        return ""
    means = format_means(tested[1]).removeprefix("mIoU without background: ")
    return f"step {tested[0]}, {means}"
