"""Commands that train scenarios: a run, a search for a weight, the demo."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from nacre.cli import app
from nacre.cli.app import argument, flag, option
from nacre.terminal import RunDisplay, one_line

if TYPE_CHECKING:
    from nacre.training.config import RunConfig

Scenario = Annotated[
    str | None,
    argument("SCENARIO", "data/task/setup, a name from `nacre plan`, or a .yaml file."),
]
MethodName = Annotated[
    str | None,
    option(
        "NAME",
        "Training method (see `nacre methods`). Default: duo on pretrained weights; mib without "
        "them and under the presets of the paper.",
    ),
]


@dataclass(frozen=True)
class RunOptions(app.ConfigOptions):
    """The options that a run and a search share."""

    root: app.Root = None
    cache: app.Cache = None

    def resolve(
        self, scenario: str | None, method: str | None, out: Path | None = None
    ) -> "RunConfig":
        """Return the config of a run, `out`'s own without a scenario; end here if it is shown."""
        from nacre.training.config import build_config

        named = {"name": method} if method else None
        values = {"scenario": scenario, "method": named, **app.data_section(self.root)}
        config = build_config(**self.sources(values, None if scenario else out))
        app.show_config(config.to_dict())
        return config


@app.command(
    "run",
    "nacre run scenes/4-2-2/overlapped --method mib --preset demo",
    "nacre run voc/15-5/overlapped --root VOC2012 --preset paper --set model.weights=imagenet",
    "nacre run voc/15-5/overlapped --root VOC2012 --dry-run",
    "nacre run --out RUN  resumes it",
)
def run(
    scenario: Scenario = None,
    method: MethodName = None,
    *,
    given: RunOptions,
    out: Annotated[
        Path | None, option("FOLDER", "Folder for the run. Default: runs/SCENARIO-METHOD-SEED.")
    ] = None,
    track: Annotated[
        list[str] | None, option("NAME", "Log to tensorboard, wandb or trackio. Repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, flag("--dry-run", "Show steps, method and network; train nothing.")
    ] = False,
) -> None:
    """Train all steps of a scenario with one method, or resume a run."""
    from nacre.utils.system import keep_freed_memory

    keep_freed_memory()
    from nacre.runs.folder import default_folder
    from nacre.runs.run import run_scenario
    from nacre.runs.trackers import tracking
    from nacre.utils.signals import StopSignal

    config = given.resolve(scenario, method, out)
    console = app.make_console()
    if dry_run:
        _print_plan(console, config)
        return
    folder = out or default_folder(config)
    trackers = track or () if app.is_main_process() else ()
    with (
        StopSignal() as stop,
        RunDisplay(console) as display,
        tracking(folder, trackers) as observers,
    ):
        summary = app.until_interrupted(
            lambda: run_scenario(
                config,
                folder,
                cache=given.cache,
                observers=[display, *observers],
                should_stop=stop,
            ),
            app.resume_command("run", "--out", str(folder)),
        )
    if app.is_main_process():
        last = summary["mean_iou_by_step"][-1]
        console.print(f"after the last step: {one_line(last)}")
        console.print(f"models, metrics and events: {folder}", soft_wrap=True)


@app.command(
    "tune",
    "nacre tune voc/15-5/overlapped --method mib --root VOC2012 --preset paper "
    "--set model.weights=imagenet",
    "nacre run --config …/tuned.yaml --cache …/steps  then uses the weight",
)
def tune(
    scenario: Scenario = None,
    method: MethodName = None,
    *,
    given: RunOptions,
    out: Annotated[Path | None, option("FOLDER", "Folder for the trials and tuned.yaml.")] = None,
    lr: Annotated[
        list[float] | None,
        option("NUMBER", "Learning rate to try with fine-tuning first. Repeatable."),
    ] = None,
) -> None:
    """Tune a method's loss weight on held-out images of step 1."""
    from nacre.utils.system import keep_freed_memory

    keep_freed_memory()
    from nacre.runs.folder import default_folder
    from nacre.sweeps.tune import tune as search
    from nacre.utils.signals import StopSignal

    config = given.resolve(scenario, method)
    run_folder = default_folder(config)
    folder = out or run_folder.with_name(f"tune-{run_folder.name}")
    console = app.make_console()
    with StopSignal() as stop, RunDisplay(console) as display:
        tuning = app.until_interrupted(
            lambda: search(
                config,
                folder,
                cache=given.cache,
                rates=lr or (),
                observers=[display],
                should_stop=stop,
                show=lambda line: console.print(line, highlight=False),
            ),
            "the same command",
        )
    console.print(
        f"weight {tuning.weight:g}; config for nacre run: {folder / 'tuned.yaml'}", soft_wrap=True
    )


@app.command("demo", "nacre demo --out my-demo --seed 2")
def demo(
    out: Annotated[Path, option("FOLDER", "Folder for the page and the runs.")] = Path(
        "nacre-demo"
    ),
    seed: Annotated[int, option("NUMBER", "Random seed for scenes, weights and order.", min=0)] = 1,
) -> None:
    """Train on generated scenes in three steps with ft, lwf, mib and joint; write a page."""
    from nacre.cli.grid import GridDisplay
    from nacre.cli.results import print_table
    from nacre.report.page import write_report
    from nacre.report.results import load_results
    from nacre.report.tables import steps_table
    from nacre.sweeps.demo import ABOUT, TITLE, demo_grid, run_demo
    from nacre.utils.signals import StopSignal

    app.show_config(demo_grid(seed).model_dump(mode="json", exclude_none=True))
    console = app.make_console()
    console.print(ABOUT)
    with StopSignal() as stop, GridDisplay(console) as display:
        runs = app.until_interrupted(
            lambda: run_demo(out, seed, should_stop=stop, show=display),
            app.resume_command("demo", "--out", str(out), "--seed", str(seed)),
        )
    for results in load_results(runs):
        print_table(console, steps_table(results))
    page = write_report(runs, out, title=TITLE)
    console.print("The page with images:", str(page), soft_wrap=True)


def _print_plan(console: Console, config: "RunConfig") -> None:
    """Print what a run would learn from and how, its parameters and its updates."""
    from nacre.cli.data import plan_table
    from nacre.methods import find_method
    from nacre.runs.run import open_scenario
    from nacre.runs.steps import step_sampler
    from nacre.scenarios.scenario import make_plan

    data = open_scenario(config)
    method = find_method(config.method.name)(config.method, data.scenario.classes.growth(0))
    config = config.model_copy(update={"model": method.network_config(config.model)})
    images = data.image_lists
    console.print(plan_table(data.scenario, make_plan(data.scenario, data.train_index, images)))
    for section in ("method", "model"):
        values = getattr(config, section).model_dump(mode="json", exclude_none=True)
        console.print(f"{section}: {', '.join(f'{key}={value}' for key, value in values.items())}")
    channels = len(data.scenario.classes.channels(len(images) - 1))
    console.print(f"parameters: {_count_parameters(config, channels)}")
    updates = [step_sampler(config, len(one), step).iterations for step, one in enumerate(images)]
    what = "updates" if method.learns_by_gradient else "batches"
    counts = ", ".join(f"{count:,}" for count in updates)
    console.print(f"{what} by step: {counts}, {config.train.batch_size} images in each")


def _count_parameters(config: "RunConfig", channels: int) -> str:
    """Return the parameter counts of a run's last network and its modules; load no weights."""
    import torch

    from nacre.models.build import build_network, is_own_network

    # Other libraries' networks compute while they are built, which needs real tensors.
    own = is_own_network(config.model.model_dump(mode="json"))
    with torch.device("meta" if own else "cpu"):
        network = build_network(config.model, channels, config.images.crop_size, load=False)
    counts = {
        name: sum(value.numel() for value in module.parameters())
        for name, module in network.named_children()
    }
    modules = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"{sum(counts.values()):,} ({modules})"
