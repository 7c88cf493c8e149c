"""The command that carries out several runs, on this machine or on a cluster."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nacre.cli.app import app, echo, make_console, print_json, until_interrupted
from nacre.cli.options import Cache, Preset, Root, Set, config_values, split_names

if TYPE_CHECKING:
    from rich.console import Console

    from nacre.sweeps.grid import GridConfig, Job


@app.command(
    epilog="Examples:  nacre grid grid.yaml --out runs/grid;  nacre grid --scenarios "
    "scenes/4-2-2/overlapped --methods ft,lwf,mib --seeds 1,2,3 --preset demo --out runs/grid"
)
def grid(
    file: Annotated[Path | None, typer.Argument(help="YAML file; see docs/grids.md.")] = None,
    scenarios: Annotated[str | None, typer.Option(help="Scenarios, by commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Methods, by commas.")] = None,
    seeds: Annotated[str | None, typer.Option(help="Seeds, by commas.")] = None,
    preset: Preset = None,
    set_: Set = None,
    root: Root = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="Runs at a time; one per GPU unless given.")
    ] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path(
        "runs/grid"
    ),
    on: Annotated[
        str, typer.Option(help="What carries the runs out: local, slurm or ray.")
    ] = "local",
    gpus_per_run: Annotated[
        int | None, typer.Option(min=0, help="GPUs of a run; one unless given, if there are any.")
    ] = None,
    cache: Cache = None,
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Take back the jobs that --on slurm submitted.")
    ] = False,
    list_: Annotated[
        bool, typer.Option("--list", help="Only show the runs and how far they are.")
    ] = False,
    json: Annotated[
        bool, typer.Option("--json", help="Print the runs as JSON, at the end or with --list.")
    ] = False,
) -> None:
    """Run methods x scenarios x seeds, share what they learn alike, end in a report."""
    from nacre.errors import unknown_name
    from nacre.sweeps.engines import ENGINES
    from nacre.sweeps.grid import check_weights, make_jobs
    from nacre.sweeps.launch import look

    if on not in ENGINES:
        raise unknown_name("engine", on, ENGINES)
    lists = {"scenarios": scenarios, "methods": methods, "seeds": seeds}
    content: dict[str, Any] = {
        key: split_names(text) for key, text in lists.items() if text is not None
    }
    content |= {"preset": preset, "jobs": jobs, "gpus_per_run": gpus_per_run}
    made = _grid(file, content, root, set_ or [])
    runs = make_jobs(made, out, cache)
    if list_:
        look(runs)
        _print(runs, json)
        return
    if cancel:
        _cancel(runs, made, out, on)
        return
    check_weights(runs)
    console = _console(quiet=json)
    if not _carry_out(runs, made, out, on, console):
        echo(f"interrupted; {_left(runs)}. The same command goes on.", err=True)
        sys.exit(130)
    _conclude(runs, out, json, console)


def _cancel(runs: "list[Job]", made: "GridConfig", out: Path, on: str) -> None:
    """Take back what an earlier command submitted."""
    from nacre.errors import NacreError
    from nacre.sweeps.engines import open_engine
    from nacre.sweeps.launch import cancel_submitted
    from nacre.utils.io import locked

    if on != "slurm":
        raise NacreError(f"--cancel: no jobs of --on {on} survive its command; give --on slurm")
    with locked(out, "grid"):  # a command that is at work would submit them again
        echo(f"{cancel_submitted(runs, open_engine(on, made, out))} jobs taken back")


def _left(runs: "list[Job]") -> str:
    """Say what became of the runs of a grid that was stopped."""
    count = sum(job.submitted is not None for job in runs)
    return f"{count} submitted jobs go on (--cancel takes them back)" if count else "saved"


def _carry_out(
    runs: "list[Job]", made: "GridConfig", out: Path, on: str, console: "Console"
) -> bool:
    """Carry out the runs; return False if the user stopped it."""
    from nacre.sweeps.engines import open_engine
    from nacre.sweeps.launch import run_grid
    from nacre.terminal.grid import GridDisplay
    from nacre.utils.io import locked
    from nacre.utils.signals import StopSignal

    with locked(out, "grid"):
        engine = open_engine(on, made, out)
        with StopSignal() as stop, GridDisplay(console) as display:
            return until_interrupted(
                lambda: run_grid(runs, engine, should_stop=stop, show=display),
                "the same command",
            )


def _conclude(runs: "list[Job]", out: Path, json: bool, console: "Console") -> None:
    """Tell what failed, and make the page of the rest."""
    for job in runs:
        if job.state == "failed":
            echo(f"failed: {job.name}: {job.problem}", err=True)
    done = [job.folder.path for job in runs if job.state == "done"]
    if done:
        from nacre.report.page.page import write_report

        console.print("report:", str(write_report(done, out)), soft_wrap=True)
    if json:
        _print(runs, json)
    if len(done) < len(runs):
        sys.exit(1)


def _print(runs: "list[Job]", json: bool) -> None:
    from nacre.sweeps.progress import GridProgress, as_plain
    from nacre.terminal.grid import GridDisplay

    if json:
        print_json(as_plain(runs, GridProgress()))
        return
    console = make_console()
    console.print(GridDisplay(console).table(runs, rows=len(runs)))


def _console(quiet: bool) -> "Console":
    """Return the console; where the output is JSON nothing else is printed."""
    console = make_console()
    console.quiet = console.quiet or quiet
    return console


def _grid(
    file: Path | None, given: dict[str, Any], root: Path | None, sets: list[str]
) -> "GridConfig":
    """Put a grid together from its file and the options, which lie over it."""
    from nacre.sweeps.grid import check_grid, read_grid
    from nacre.training.config import deep_merge, parse_assignment

    content = read_grid(file).model_dump() if file else {}
    content |= {key: value for key, value in given.items() if value is not None}
    values = deep_merge(content.get("config", {}), config_values(root=root))
    for text in sets:
        values = deep_merge(values, parse_assignment(text))
    return check_grid(content | {"config": values})
