"""The command line: parse, call, print. Everything heavy is imported when it is needed."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nacre.errors import NacreError

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="""Teach a segmentation network new classes, step by step, and keep what it knew.

    Begin with:  nacre demo""",
    epilog="A scenario is data/task/setup: voc/15-5/overlapped learns 15 classes, then 5 more.",
)

Scenario = Annotated[
    str | None,
    typer.Argument(help="data/task/setup, a name from `nacre scenarios`, or a .yaml file"),
]
Root = Annotated[Path | None, typer.Option(help="Folder of the data set.")]
MethodName = Annotated[str | None, typer.Option(help="See `nacre methods`.")]
Preset = Annotated[str | None, typer.Option(help="paper, small or demo.")]
Seed = Annotated[int | None, typer.Option(min=0, help="1 unless given.")]
Base = Annotated[
    Path | None, typer.Option(help="A run whose step 0 is taken over, not learnt again.")
]
Lists = Annotated[Path | None, typer.Option(help="Folder with published image lists train-K.npy.")]
Config = Annotated[Path | None, typer.Option(help="YAML file with config values.")]
Set = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="One config value, such as train.batch_size=8."
    ),
]


def main() -> None:
    """Run the command line; a user's mistake is one sentence and exit code 2."""
    try:
        app()
    except NacreError as error:
        typer.echo(f"error: {error}", err=True)
        sys.exit(2)


@app.command(epilog="Example:  nacre demo --out my-demo --seed 2")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the page and the runs.")] = Path(
        "nacre-demo"
    ),
    seed: Annotated[int, typer.Option(min=0, help="Of the world, the weights, the order.")] = 1,
) -> None:
    """Learn generated scenes in three steps with ft, lwf, mib and joint; make a page."""
    from nacre.sweeps.demo import run_demo
    from nacre.utils.signals import StopSignal

    console = _console()
    with StopSignal() as stop:
        page = _until_interrupted(
            lambda: run_demo(out, seed, console, stop),
            _again("demo", "--out", str(out), "--seed", str(seed)),
        )
    console.print(f"The page with pictures: [bold]{page}[/]", soft_wrap=True)


@app.command(
    epilog="Examples:  nacre run scenes/4-2-2/overlapped --method mib --preset demo;  "
    "nacre run voc/15-5/overlapped --root VOC2012 --preset paper;  "
    "nacre run --out RUN  goes on with a run"
)
def run(
    scenario: Scenario = None,
    method: MethodName = None,
    out: Annotated[Path | None, typer.Option(help="The run's folder; made if need be.")] = None,
    preset: Preset = None,
    config: Config = None,
    set_: Set = None,
    root: Root = None,
    lists: Lists = None,
    seed: Seed = None,
    base: Base = None,
    tensorboard: Annotated[
        bool, typer.Option("--tensorboard", help="Write RUN-tensorboard too (needs the extra).")
    ] = False,
) -> None:
    """Learn all steps of a scenario with one method, or go on with a run."""
    from nacre.utils.malloc import keep_freed_memory

    keep_freed_memory()
    from nacre.runs.folder import default_folder
    from nacre.runs.run import run_scenario
    from nacre.runs.tensorboard import TensorBoard
    from nacre.terminal.progress import RunDisplay
    from nacre.training.config import build_config
    from nacre.training.events import Observer
    from nacre.utils.signals import StopSignal

    values = _values(
        scenario=scenario, method=method, seed=seed, root=root, lists=lists and str(lists)
    )
    file = config
    if out is not None and (out / "config.yaml").exists() and not (scenario or config or preset):
        # What is said here lies over the folder's own config, and is refused if it differs.
        file = out / "config.yaml"
    resolved = build_config(preset=preset, file=file, assignments=set_ or (), overrides=values)
    folder = out or default_folder(resolved)
    console = _console()
    with StopSignal() as stop, RunDisplay(console) as display:
        observers: list[Observer] = [display]
        if tensorboard and _is_main():
            observers.append(TensorBoard(folder.with_name(f"{folder.name}-tensorboard")))
        summary = _until_interrupted(
            lambda: run_scenario(
                resolved, folder, base=base, observers=observers, should_stop=stop
            ),
            _again("run", "--out", str(folder)),
        )
    if _is_main():
        _print_steps(console, folder, summary)


@app.command(
    epilog="Example:  nacre tune voc/15-5/overlapped --method mib --root VOC2012 --preset paper "
    "--base runs/mib  then  nacre run --config …/tuned.yaml"
)
def tune(
    scenario: Scenario = None,
    method: MethodName = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the trials and tuned.yaml.")] = None,
    preset: Preset = None,
    config: Config = None,
    set_: Set = None,
    root: Root = None,
    lists: Lists = None,
    seed: Seed = None,
    base: Base = None,
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
    from nacre.training.config import build_config
    from nacre.utils.signals import StopSignal

    values = _values(
        scenario=scenario, method=method, seed=seed, root=root, lists=lists and str(lists)
    )
    resolved = build_config(preset=preset, file=config, assignments=set_ or (), overrides=values)
    run_folder = default_folder(resolved)
    folder = out or run_folder.with_name(f"tune-{run_folder.name}")
    console = _console()
    with StopSignal() as stop, TuneDisplay(console) as display:
        tuning = _until_interrupted(
            lambda: search(
                resolved,
                folder,
                base=base,
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
    "eval",
    epilog="Examples:  nacre eval runs/mib;  "
    "nacre eval runs/mib/step-0 --set conventions.unseen=background",
)
def evaluate(
    model: Annotated[Path, typer.Argument(help="A run folder, a step folder or a model file.")],
    set_: Set = None,
    root: Root = None,
    json: Annotated[bool, typer.Option("--json", help="Print the metrics as JSON.")] = False,
) -> None:
    """Test the model of a step again, under the same or other conventions."""
    from nacre.runs.evaluate import evaluate_checkpoint
    from nacre.terminal.metrics import class_table

    metrics = evaluate_checkpoint(model, _values(root=root), set_ or ())
    if json:
        _print_json(metrics)
    else:
        _console().print(class_table(metrics))


@app.command(
    epilog="Examples:  nacre plan voc/15-5/overlapped --root VOC2012;  "
    "nacre plan ade20k/100-10b/partition --index train.csv --json"
)
def plan(
    scenario: Annotated[str, typer.Argument(help="data/task/setup, a name or a .yaml file.")],
    root: Root = None,
    index: Annotated[
        Path | None, typer.Option(help="CSV `image,labels`: no pictures are needed then.")
    ] = None,
    lists: Lists = None,
    config: Config = None,
    set_: Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show what each step sees: classes, images, and what its background hides."""
    from nacre.scenarios.plan import make_plan, plan_as_json
    from nacre.scenarios.published_lists import compare_lists
    from nacre.terminal.plan import render_plan

    if index is not None:
        if root is not None or config is not None or set_:
            raise NacreError(
                "--index stands for the data: --root, --config and --set do not go with it"
            )
        from nacre.data.apply_to_index import apply_to_index

        applied, labels, images = apply_to_index(scenario, index, lists)
    else:
        # Only the way through a config needs torch, and an index should be answered at once.
        from nacre.runs.scenario_data import apply_scenario

        applied, labels, images = apply_scenario(
            scenario, root=root, lists=lists, file=config, sets=set_ or ()
        )
    made = make_plan(applied, labels, images)
    if json:
        _print_json(plan_as_json(applied, made))
        return
    console = _console()
    console.print(render_plan(applied, made))
    if lists is not None:
        console.print(compare_lists(images, applied, labels))


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
    from nacre.report.page.page import write_report
    from nacre.sweeps.grid import last_words, make_jobs, run_grid
    from nacre.terminal.grid import GridDisplay
    from nacre.utils.signals import StopSignal

    made = _grid(file, scenarios, methods, seeds, preset, set_ or [], root, jobs)
    runs = make_jobs(made, out)
    console = _console()
    with StopSignal() as stop, GridDisplay(console) as display:
        finished = run_grid(runs, made.jobs, should_stop=stop, show=display)
    if not finished:
        typer.echo("interrupted; saved. The same command goes on.", err=True)
        sys.exit(130)
    for job in runs:
        if job.state == "failed":
            typer.echo(f"failed: {job.name}: {last_words(job)} (see {job.log})", err=True)
    done = [job.folder.path for job in runs if job.state == "done"]
    if done:
        console.print(f"report: [bold]{write_report(done, out)}[/]", soft_wrap=True)
    if len(done) < len(runs):
        sys.exit(1)


@app.command(
    epilog="Examples:  nacre table runs/grid;  nacre table runs/grid --kind voc --paper --as latex"
)
def table(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    kind: Annotated[
        str,
        typer.Option(help="steps, last, classes; the paper's: voc, ade20k, ablation, lwf-mc."),
    ] = "steps",
    paper: Annotated[bool, typer.Option(help="The paper's figures beside ours.")] = False,
    background: Annotated[bool, typer.Option(help="Count the background in means.")] = False,
    as_: Annotated[
        str, typer.Option("--as", help="terminal, markdown, latex or csv.")
    ] = "terminal",
) -> None:
    """Make the paper's tables from run folders."""
    from nacre.errors import unknown_name
    from nacre.report.results.aggregate import load_results
    from nacre.report.tables.kinds import make_tables
    from nacre.report.tables.render import to_csv, to_latex, to_markdown
    from nacre.terminal.tables import to_rich

    forms = ("terminal", "markdown", "latex", "csv")
    if as_ not in forms:
        raise unknown_name("form", as_, forms)
    tables = make_tables(load_results(runs), kind, paper=paper, background=background)
    if as_ == "csv":
        typer.echo(to_csv(tables))
        return
    for one in tables:
        if as_ == "terminal":
            _console().print(to_rich(one))
        else:
            typer.echo(to_markdown(one) if as_ == "markdown" else to_latex(one))


@app.command(epilog="Example:  nacre film runs/grid --out film")
def film(
    runs: Annotated[list[Path], typer.Argument(help="Run folders of one scenario.")],
    out: Annotated[Path, typer.Option(help="The film, without .webp or .mp4.")] = Path("film"),
    pictures: Annotated[int, typer.Option(min=1, help="How many images it shows.")] = 4,
) -> None:
    """Make an animated WebP (and MP4 where ffmpeg is) through the steps and methods."""
    from nacre.report.pictures.film import write_film

    for path in write_film(runs, out, pictures=pictures):
        _console().print(f"film: [bold]{path}[/]", soft_wrap=True)


@app.command(epilog="Example:  nacre report runs/grid --out report")
def report(
    runs: Annotated[list[Path], typer.Argument(help="Run folders, or folders that hold them.")],
    out: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("report"),
    pictures: Annotated[int, typer.Option(min=0, help="Pictures a scenario; 0 for none.")] = 8,
    paper: Annotated[bool, typer.Option(help="The paper's figures beside ours.")] = False,
) -> None:
    """Make one page of finished runs: tables, curves, pictures."""
    from nacre.report.page.page import write_report

    page = write_report(runs, out, pictures=pictures, paper=paper)
    _console().print(f"report: [bold]{page}[/]", soft_wrap=True)


@app.command(epilog="Example:  nacre predict runs/mib cat.jpg dog.jpg --out seen")
def predict(
    model: Annotated[Path, typer.Argument(help="A run folder, a step folder or a model file.")],
    pictures: Annotated[list[Path], typer.Argument(help="Images.")],
    out: Annotated[Path, typer.Option(help="Folder for the masks and overlays.")] = Path("seen"),
) -> None:
    """Say what is in pictures: a mask and an overlay of each, and the classes found."""
    from nacre.predict import load, write_prediction

    stems = [picture.stem for picture in pictures]
    twice = [stem for stem in stems if stems.count(stem) > 1]
    if twice:
        raise NacreError(
            f"two pictures are named {twice[0]!r}, and their results would be too; "
            "predict them into different folders (--out)"
        )
    loaded = load(model)
    console = _console()
    for picture in pictures:
        shares = write_prediction(loaded, picture, out)
        seen = ", ".join(f"{name} {share:.1%}" for name, share in shares.items())
        console.print(f"{picture.name}: {seen}", highlight=False)
    console.print(f"masks and overlays: {out}")


@app.command(epilog="Example:  nacre methods mib")
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this one.")] = None,
) -> None:
    """List the methods, or explain one."""
    from nacre.methods import all_methods, find_method
    from nacre.terminal.methods import explain, methods_table

    _console().print(explain(find_method(name)) if name else methods_table(all_methods()))


@app.command(epilog="Example:  nacre scenarios")
def scenarios() -> None:
    """List the data sets with their tasks and setups, and the scenarios that come with nacre."""
    from nacre.terminal.plan import scenarios_table

    _console().print(scenarios_table())


@app.command(epilog="Examples:  nacre data voc --root VOC2012;  nacre data folder --root my-data")
def data(
    name: Annotated[str, typer.Argument(help="voc, ade20k or folder.")],
    root: Annotated[Path, typer.Option(help="Folder of the data set.")],
    classes: Annotated[
        Path | None, typer.Option(help="classes.yaml of a folder, if it lies elsewhere.")
    ] = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Check a data folder before anything is trained: counts, pairs, sizes, labels, damage."""
    from nacre.data import open_folder
    from nacre.data.validate import check_source
    from nacre.terminal.data import render

    report = check_source(open_folder(name, root, classes))
    if json:
        _print_json(report.as_dict())
    else:
        _console().print(render(report))
    if not report.sound:
        sys.exit(2)


@app.command(epilog="Examples:  nacre model resnet101 --classes 21 --batch 4;  nacre model lite0")
def model(
    backbone: Annotated[str, typer.Argument(help="tiny, lite0, resnet18, … resnet101.")],
    classes: Annotated[int, typer.Option(min=2, help="Channels, background included.")] = 21,
    crop: Annotated[int, typer.Option(min=16, help="Side of the crops in pixels.")] = 512,
    batch: Annotated[int, typer.Option(min=1, help="Images at once on a device.")] = 24,
    set_: Set = None,
) -> None:
    """Describe a network: parameters, FLOPs and memory, to see whether it fits."""
    from nacre.models.describe import describe
    from nacre.terminal.model import table
    from nacre.training.config import resolve_model

    config = resolve_model(backbone, set_ or ())
    _console().print(table(describe(config, classes, crop=crop, batch=batch)))


def _values(**given: Any) -> dict[str, Any]:
    """Return config values from options; those not given are left out."""
    values = {key: value for key, value in given.items() if value is not None and key != "root"}
    if "method" in values:
        values["method"] = {"name": values["method"]}
    if given.get("root") is not None:
        values["data"] = {"root": str(given["root"])}
    return values


def _grid(
    file: Path | None,
    scenarios: str | None,
    methods: str | None,
    seeds: str | None,
    preset: str | None,
    assignments: list[str],
    root: Path | None,
    jobs: int | None,
) -> Any:
    """Put a grid together from its file and the options, which lie over it."""
    from nacre.sweeps.grid import check_grid, read_grid
    from nacre.training.config import deep_merge, parse_assignment

    content = read_grid(file).model_dump() if file else {}
    lists = {"scenarios": scenarios, "methods": methods, "seeds": seeds}
    content |= {key: text.split(",") for key, text in lists.items() if text is not None}
    content |= {k: v for k, v in (("preset", preset), ("jobs", jobs)) if v is not None}
    values = deep_merge(content.get("config", {}), _values(root=root))
    for text in assignments:
        values = deep_merge(values, parse_assignment(text))
    return check_grid(content | {"config": values})


def _again(*arguments: str) -> str:
    """Return the command that goes on with what was interrupted."""
    import os
    import shlex

    size = int(os.environ.get("WORLD_SIZE", "1"))
    start = ["nacre"]
    if size > 1:
        start = ["torchrun", "--nproc-per-node", str(size), "-m", "nacre"]
    return shlex.join([*start, *arguments])


def _until_interrupted(work: Any, again: str) -> Any:
    """Do the work; if the user stops it, say how to go on."""
    from nacre.training.step import Interrupted

    try:
        return work()
    except (Interrupted, KeyboardInterrupt) as error:
        saved = "saved" if isinstance(error, Interrupted) else "the last save is kept"
        if _is_main():
            typer.echo(f"interrupted; {saved}. Go on with:  {again}", err=True)
        sys.exit(130)


def _print_steps(console: "Console", folder: Path, summary: dict[str, Any]) -> None:
    from nacre.terminal.progress import one_line

    last = summary["mean_iou_by_step"][-1]
    console.print(f"after the last step: {one_line(last)}")
    console.print(f"models, metrics and events: {folder}", soft_wrap=True)


def _print_json(content: Any) -> None:
    import json

    typer.echo(json.dumps(content, indent=1))


def _is_main() -> bool:
    """Whether this is the process that talks, where torchrun started several."""
    import os

    return os.environ.get("RANK", "0") == "0"


def _console() -> "Console":
    from rich.console import Console

    return Console(quiet=not _is_main())


if __name__ == "__main__":
    main()
