"""Commands that learn: a run, a grid of runs, a search for a weight, the demo."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nacre.cli.app import (
    app,
    command_to_go_on,
    echo,
    is_main_process,
    make_console,
    until_interrupted,
)
from nacre.cli.options import (
    ConfigOptions,
    Preset,
    Profile,
    Root,
    Set,
    config_values,
    takes_config,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from nacre.sweeps.grid import Job


@app.command(epilog="Example:  nacre demo --out my-demo --seed 2")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the runs.")] = Path(
        "nacre-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the world, the weights, the order.")] = 1,
) -> None:
    """Learn generated scenes in three steps with ft, lwf, mib and joint; make a page."""
    from nacre.report.results.aggregate import load_results
    from nacre.report.tables.cells import steps_table
    from nacre.sweeps.demo import ABOUT, run_demo, write_demo_page
    from nacre.terminal.grid import GridDisplay
    from nacre.terminal.tables import print_table
    from nacre.utils.signals import StopSignal

    console = make_console()
    console.print(ABOUT)
    with StopSignal() as stop, GridDisplay(console) as display:
        runs = until_interrupted(
            lambda: run_demo(out, seed, should_stop=stop, show=display),
            command_to_go_on("demo", "--out", str(out), "--seed", str(seed)),
        )
    for results in load_results(runs):
        print_table(console, steps_table(results))
    page = write_demo_page(runs, out)
    console.print("The page with pictures:", str(page), soft_wrap=True)


@app.command(
    epilog="Examples:  nacre run scenes/4-2-2/overlapped --method mib --preset demo;  "
    "nacre run voc/15-5/overlapped --root VOC2012 --preset paper;  "
    "nacre run --out RUN  goes on with a run"
)
@takes_config
def run(
    options: ConfigOptions,
    out: Annotated[Path | None, typer.Option(help="The run's folder; made if need be.")] = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write RUN-tensorboard too (needs the extra).")
    ] = False,
    profile: Profile = None,
) -> None:
    """Learn all steps of a scenario with one method, or go on with a run."""
    from nacre.utils.malloc import keep_freed_memory

    keep_freed_memory()
    from nacre.runs.folder import default_folder
    from nacre.runs.profile import Profiler
    from nacre.runs.run import run_scenario
    from nacre.runs.tensorboard import TensorBoard
    from nacre.terminal.progress import RunDisplay
    from nacre.training.events import Observer
    from nacre.utils.signals import StopSignal

    config = options.resolve(_saved_config(out, options))
    folder = out or default_folder(config)
    console = make_console()
    with StopSignal() as stop, RunDisplay(console) as display:
        observers: list[Observer] = [display]
        if tensorboard and is_main_process():
            observers.append(TensorBoard(folder.with_name(f"{folder.name}-tensorboard")))
        if profile and is_main_process():
            observers.append(Profiler(profile, folder.with_name(f"{folder.name}-profile")))
        summary = until_interrupted(
            lambda: run_scenario(
                config, folder, base=options.base, observers=observers, should_stop=stop
            ),
            command_to_go_on("run", "--out", str(folder)),
        )
    if is_main_process():
        _print_steps(console, folder, summary)


@app.command(
    epilog="Example:  nacre tune voc/15-5/overlapped --method mib --root VOC2012 --preset paper "
    "--base runs/mib  then  nacre run --config …/tuned.yaml"
)
@takes_config
def tune(
    options: ConfigOptions,
    out: Annotated[Path | None, typer.Option(help="Folder for the trials and tuned.yaml.")] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="A learning rate for fine-tuning to choose from; may be repeated."),
    ] = None,
    full: Annotated[bool, typer.Option("--full", help="Try every weight of the grid.")] = False,
) -> None:
    """Choose a method's weight on held-out images of the first incremental step."""
    from nacre.utils.malloc import keep_freed_memory

    keep_freed_memory()
    from nacre.runs.folder import default_folder
    from nacre.sweeps.tune.tune import tune as search
    from nacre.terminal.tune import TuneDisplay
    from nacre.utils.signals import StopSignal

    config = options.resolve()
    run_folder = default_folder(config)
    folder = out or run_folder.with_name(f"tune-{run_folder.name}")
    console = make_console()
    with StopSignal() as stop, TuneDisplay(console) as display:
        tuning = until_interrupted(
            lambda: search(
                config,
                folder,
                base=options.base,
                rates=rate or (),
                full=full,
                observers=[display.observe],
                should_stop=stop,
                show=display,
            ),
            "the same command",
        )
    console.print(
        f"weight {tuning.weight:g}; config for nacre run: {tuning.config}", soft_wrap=True
    )


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
    jobs: Annotated[int | None, typer.Option(min=1, help="Runs at a time.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for the runs and the page.")] = Path(
        "runs/grid"
    ),
) -> None:
    """Run methods x scenarios x seeds, share what they learn alike, end in a report."""
    from nacre.sweeps.grid import make_jobs
    from nacre.sweeps.launch import run_grid
    from nacre.terminal.grid import GridDisplay
    from nacre.utils.lock import locked
    from nacre.utils.signals import StopSignal

    lists = {"scenarios": scenarios, "methods": methods, "seeds": seeds}
    content = {key: text.split(",") for key, text in lists.items() if text is not None}
    made = _grid(file, {**content, "preset": preset, "jobs": jobs}, root, set_ or [])
    runs = make_jobs(made, out)
    console = make_console()
    with locked(out, "grid"), StopSignal() as stop, GridDisplay(console) as display:
        finished = until_interrupted(
            lambda: run_grid(runs, made.jobs, should_stop=stop, show=display), "the same command"
        )
    if not finished:
        echo("interrupted; saved. The same command goes on.", err=True)
        sys.exit(130)
    _report_grid(console, runs, out)


def _saved_config(out: Path | None, options: ConfigOptions) -> Path | None:
    """Return the config of a folder that is to go on, where nothing says what else to learn.

    What is said beside it lies over it, and is refused if it differs.
    """
    if out is None or options.scenario or options.preset:
        return None
    path = out / "config.yaml"
    return path if path.exists() else None


def _grid(file: Path | None, given: dict[str, Any], root: Path | None, sets: list[str]) -> Any:
    """Put a grid together from its file and the options, which lie over it."""
    from nacre.sweeps.grid import check_grid, read_grid
    from nacre.training.config import deep_merge, parse_assignment

    content = read_grid(file).model_dump() if file else {}
    content |= {key: value for key, value in given.items() if value is not None}
    values = deep_merge(content.get("config", {}), config_values(root=root))
    for text in sets:
        values = deep_merge(values, parse_assignment(text))
    return check_grid(content | {"config": values})


def _report_grid(console: "Console", jobs: "Sequence[Job]", out: Path) -> None:
    """Say which runs failed, and make a page of the others."""
    from nacre.report.page.page import write_report
    from nacre.sweeps.launch import failure

    for job in jobs:
        if job.state == "failed":
            echo(f"failed: {failure(job)}", err=True)
    done = [job.folder.path for job in jobs if job.state == "done"]
    if done:
        console.print("report:", str(write_report(done, out)), soft_wrap=True)
    if len(done) < len(jobs):
        sys.exit(1)


def _print_steps(console: "Console", folder: Path, summary: dict[str, Any]) -> None:
    from nacre.terminal.progress import one_line

    last = summary["mean_iou_by_step"][-1]
    console.print(f"after the last step: {one_line(last)}")
    console.print(f"models, metrics and events: {folder}", soft_wrap=True)
