"""Commands that learn: a run, a search for a weight, the demo."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nacre.cli.app import (
    app,
    command_to_go_on,
    is_main_process,
    make_console,
    until_interrupted,
)
from nacre.cli.options import ConfigOptions, Track, takes_config

if TYPE_CHECKING:
    from rich.console import Console

    from nacre.training.config import RunConfig


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
    "nacre run voc/15-5/overlapped --root VOC2012 --preset paper --set model.weights=imagenet;  "
    "nacre run voc/15-5/overlapped --root VOC2012 --dry-run;  nacre run --out RUN  goes on with it"
)
@takes_config
def run(
    options: ConfigOptions,
    out: Annotated[Path | None, typer.Option(help="The run's folder; made if need be.")] = None,
    track: Track = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Show steps, method and network; learn nothing.")
    ] = False,
) -> None:
    """Learn all steps of a scenario with one method, or go on with a run."""
    from nacre.utils.system import keep_freed_memory

    keep_freed_memory()
    from nacre.runs.folder import default_folder
    from nacre.runs.run import run_scenario
    from nacre.runs.trackers import tracking
    from nacre.terminal.progress import RunDisplay
    from nacre.utils.signals import StopSignal

    config = options.resolve(_saved_config(out, options))
    console = make_console()
    if dry_run:
        _print_plan(console, config)
        return
    folder = out or default_folder(config)
    trackers = track or () if is_main_process() else ()
    with (
        StopSignal() as stop,
        RunDisplay(console) as display,
        tracking(folder, trackers) as observers,
    ):
        summary = until_interrupted(
            lambda: run_scenario(
                config,
                folder,
                cache=options.cache,
                observers=[display, *observers],
                should_stop=stop,
            ),
            command_to_go_on("run", "--out", str(folder)),
        )
    if is_main_process():
        _print_steps(console, folder, summary)


@app.command(
    epilog="Example:  nacre tune voc/15-5/overlapped --method mib --root VOC2012 --preset paper "
    "--set model.weights=imagenet  then  nacre run --config …/tuned.yaml --cache …/steps"
)
@takes_config
def tune(
    options: ConfigOptions,
    out: Annotated[Path | None, typer.Option(help="Folder for the trials and tuned.yaml.")] = None,
    rate: Annotated[
        list[float] | None,
        typer.Option(help="A learning rate for fine-tuning to choose from; may be repeated."),
    ] = None,
) -> None:
    """Choose a method's weight on held-out images of the first incremental step."""
    from nacre.utils.system import keep_freed_memory

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
                cache=options.cache,
                rates=rate or (),
                observers=[display.observe],
                should_stop=stop,
                show=display,
            ),
            "the same command",
        )
    console.print(
        f"weight {tuning.weight:g}; config for nacre run: {tuning.config}", soft_wrap=True
    )


def _saved_config(out: Path | None, options: ConfigOptions) -> Path | None:
    """Return the config of a folder that is to go on, where nothing says what else to learn.

    What is said beside it lies over it, and is refused if it differs.
    """
    if out is None or options.scenario or options.preset:
        return None
    path = out / "config.yaml"
    return path if path.exists() else None


def _print_plan(console: "Console", config: "RunConfig") -> None:
    """Print what a run would learn from, and with which method and network."""
    from nacre.methods import find_method
    from nacre.runs.scenario_data import open_scenario, step_sampler
    from nacre.scenarios.plan import make_plan
    from nacre.terminal.plan import recipe_table, render_plan

    data = open_scenario(config)
    method = find_method(config.method.name)(config.method, data.scenario.classes.growth(0))
    config = config.model_copy(update={"model": method.network_config(config.model)})
    images = data.image_lists
    console.print(render_plan(data.scenario, make_plan(data.scenario, data.train_index, images)))
    updates = [step_sampler(config, len(one), step).iterations for step, one in enumerate(images)]
    channels = len(data.scenario.classes.channels(len(images) - 1))
    console.print(recipe_table(config, updates, _count_parameters(config, channels)))


def _count_parameters(config: "RunConfig", channels: int) -> dict[str, int]:
    """Return the parameters of each part of a run's last network; no weights are loaded."""
    import torch

    from nacre.models.build import build_network, is_own_network

    # Other libraries' networks compute while they are built, which needs real tensors.
    own = is_own_network(config.model.model_dump(mode="json"))
    with torch.device("meta" if own else "cpu"):
        network = build_network(config.model, channels, config.images.crop_size, load=False)
    return {
        name: sum(value.numel() for value in part.parameters())
        for name, part in network.named_children()
    }


def _print_steps(console: "Console", folder: Path, summary: dict[str, Any]) -> None:
    from nacre.terminal.progress import one_line

    last = summary["mean_iou_by_step"][-1]
    console.print(f"after the last step: {one_line(last)}")
    console.print(f"models, metrics and events: {folder}", soft_wrap=True)
