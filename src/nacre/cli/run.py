"""Commands that train scenarios: run and tune."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from nacre.cli import app
from nacre.cli.app import argument, flag, option
from nacre.terminal import RunDisplay, format_means

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
    preset: app.Preset = None,
    config: app.ConfigFile = None,
    set_: app.Set = None,
    seed: app.Seed = None,
    root: app.Root = None,
    cache: app.Cache = None,
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
    from nacre.runs.folder import default_folder
    from nacre.runs.run import run_scenario
    from nacre.runs.trackers import tracking
    from nacre.training.config import build_config
    from nacre.utils.signals import StopSignal
    from nacre.utils.system import keep_freed_memory

    keep_freed_memory()
    values = _run_values(scenario, method, seed, root)
    sources = app.config_sources(values, preset, config, set_, None if scenario else out)
    resolved = build_config(**sources)
    app.show_config(resolved.to_dict())
    console = app.make_console()
    if dry_run:
        _print_plan(console, resolved)
        return
    folder = out or default_folder(resolved)
    trackers = track or () if app.is_main_process() else ()
    with (
        StopSignal() as stop,
        RunDisplay(console) as display,
        tracking(folder, trackers) as observers,
    ):
        summary = app.until_interrupted(
            lambda: run_scenario(
                resolved,
                folder,
                cache=cache,
                observers=[display, *observers],
                should_stop=stop,
            ),
            app.resume_command("run", "--out", str(folder)),
        )
    if app.is_main_process():
        last = summary["mean_iou_by_step"][-1]
        console.print(f"after the last step: {format_means(last)}")
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
    preset: app.Preset = None,
    config: app.ConfigFile = None,
    set_: app.Set = None,
    seed: app.Seed = None,
    root: app.Root = None,
    cache: app.Cache = None,
    out: Annotated[Path | None, option("FOLDER", "Folder for the trials and tuned.yaml.")] = None,
    lr: Annotated[
        list[float] | None,
        option("NUMBER", "Learning rate to try with fine-tuning first. Repeatable."),
    ] = None,
) -> None:
    """Tune a method's loss weight on held-out images of step 1."""
    from nacre.runs.folder import default_folder
    from nacre.sweeps.tune import tune as search
    from nacre.training.config import build_config
    from nacre.utils.signals import StopSignal
    from nacre.utils.system import keep_freed_memory

    keep_freed_memory()
    values = _run_values(scenario, method, seed, root)
    resolved = build_config(**app.config_sources(values, preset, config, set_))
    app.show_config(resolved.to_dict())
    run_folder = default_folder(resolved)
    folder = out or run_folder.with_name(f"tune-{run_folder.name}")
    console = app.make_console()
    with StopSignal() as stop, RunDisplay(console) as display:
        tuning = app.until_interrupted(
            lambda: search(
                resolved,
                folder,
                cache=cache,
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


def _run_values(
    scenario: str | None, method: str | None, seed: int | None, root: Path | None
) -> dict[str, Any]:
    """Return the config values that the options of a run set."""
    named = {"name": method} if method else None
    return {"scenario": scenario, "method": named, "seed": seed, **app.data_section(root)}


def _print_plan(console: Console, config: "RunConfig") -> None:
    """Print the images of each step, the method, the network and the updates of a run."""
    from nacre.cli.look import plan_table
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
    """Return the parameter counts of a run's last network and of its modules."""
    import torch

    from nacre.models.build import build_network, is_own_network

    # Networks of other libraries compute while they are built, which needs real tensors.
    own = is_own_network(config.model.model_dump(mode="json"))
    with torch.device("meta" if own else "cpu"):
        network = build_network(config.model, channels, config.images.crop_size, load=False)
    counts = {
        name: sum(value.numel() for value in module.parameters())
        for name, module in network.named_children()
    }
    modules = ", ".join(f"{name} {count:,}" for name, count in counts.items())
    return f"{sum(counts.values()):,} ({modules})"
