"""Commands for a model of one's own: learn a step, look at the steps that made a model."""

from pathlib import Path
from typing import Annotated, Any

import typer

from nacre.cli.app import app, command_to_go_on, is_main_process, make_console, until_interrupted
from nacre.cli.options import Config, Preset, Seed, Set, split_names
from nacre.errors import NacreError

Data = Annotated[
    list[Path] | None, typer.Argument(help="Folders with images/, masks/ and classes.yaml.")
]
StartModel = Annotated[
    Path | None,
    typer.Option(help="The model to continue: a model file, a step's or a run's folder."),
]
LearnMethod = Annotated[
    str | None,
    typer.Option(
        "--method",
        help="By default mib (the paper's); ledger or duo for models with sums. "
        "--method mib asks for MiB.",
    ),
]
Classes = Annotated[
    str | None, typer.Option(help="Learn only these of the data's classes, by commas.")
]
Rename = Annotated[
    list[str] | None,
    typer.Option(metavar="DATA=MODEL", help="The model's name of a class; may be repeated."),
]
New = Annotated[
    list[str] | None, typer.Option(help="A name that is new although it looks like a known one.")
]
Share = Annotated[
    list[str] | None,
    typer.Option(metavar="FOLDER=SHARE", help="Share of a batch, such as old-sample=0.25."),
]
Test = Annotated[
    list[Path] | None, typer.Option(help="One more folder to test on; may be repeated.")
]


@app.command(
    epilog="Examples:  nacre learn pets/ --out models/pets;  "
    "nacre learn birds/ --start models/pets --out models/pets-birds;  "
    "nacre learn birds/ --start models/pets --method mib --out models/pets-birds-mib;  "
    "nacre learn --out models/pets  goes on with what was interrupted"
)
def learn(
    data: Data = None,
    start: StartModel = None,
    out: Annotated[Path | None, typer.Option(help="Folder for the new model.")] = None,
    method: LearnMethod = None,
    classes: Classes = None,
    rename: Rename = None,
    new: New = None,
    share: Share = None,
    test: Test = None,
    preset: Preset = None,
    config: Config = None,
    set_: Set = None,
    seed: Seed = None,
) -> None:
    """Add the new classes of some data to a model, or learn a first model."""
    values: dict[str, Any] = {
        "method": {"name": method} if method else None,
        "classes": split_names(classes) if classes else None,
        "rename": _pairs(rename, "--rename", "Katze=cat"),
        "share": {k: _number(k, v) for k, v in _pairs(share, "--share", "folder=0.25").items()},
        "new": new,
        "seed": seed,
    }
    values = {key: value for key, value in values.items() if value not in (None, {})}
    folders = data or []
    if not folders and out is not None and (out / "config.yaml").is_file():
        # What is given lies over what is saved, and is refused where it differs.
        folders, saved_start, saved_tests = _read_saved(out)
        start, test = start or saved_start, test or saved_tests
        config = config or (None if preset else out / "config.yaml")
    if not folders:
        raise NacreError("no data: give one or more folders with images/, masks/, classes.yaml")
    folder = out or Path("models") / "-".join(path.resolve().name for path in folders)
    given = {"tests": test or (), "preset": preset, "file": config, "assignments": set_ or ()}
    _learn(folders, start, folder, {**given, "values": values})


def _learn(folders: list[Path], start: Path | None, out: Path, given: dict[str, Any]) -> None:
    """Learn a step and show how it goes."""
    from nacre.utils.system import keep_freed_memory

    keep_freed_memory()
    from nacre.runs.learn import find_start
    from nacre.runs.learn_plan import plan_learning
    from nacre.terminal.learn import learn_table, plan_lines
    from nacre.terminal.progress import RunDisplay
    from nacre.utils.signals import StopSignal

    plan = plan_learning(folders, find_start(start), **given)
    console = make_console()
    with StopSignal() as stop, RunDisplay(console) as display:
        learning = plan.learning(out, observers=[display], should_stop=stop)
        console.print(plan_lines(learning.data, plan.how, plan.reasons))
        metrics = until_interrupted(learning, command_to_go_on("learn", "--out", str(out)))
    if is_main_process():
        console.print(learn_table(metrics))
        console.print(f"model, metrics and events: {out}", soft_wrap=True, markup=False)


@app.command(epilog="Example:  nacre log models/pets-birds")
def log(
    model: Annotated[Path, typer.Argument(help="A model file, a step's or a run's folder.")],
    json: Annotated[bool, typer.Option("--json", help="Print the lineage as JSON.")] = False,
) -> None:
    """Show the steps that made a model: classes, data, pictures, when, how, figures."""
    from nacre.cli.app import print_json
    from nacre.models.io import find_model, read_info
    from nacre.runs.records import Measured, read_record
    from nacre.terminal.learn import log_table

    path = find_model(model)
    info = read_info(path)
    beside = path.with_name("metrics.json")
    figures = read_record(Measured, beside)["iou"] if beside.exists() else None
    if json:
        print_json({"classes": info.classes, "lineage": info.lineage, "iou": figures})
        return
    make_console().print(log_table(model, info, figures))


def _read_saved(out: Path) -> tuple[list[Path], Path | None, list[Path]]:
    """Return data, start and tests of a step that goes on."""
    from nacre.runs.learn_folder import read_learn_config

    saved = read_learn_config(out)
    return list(saved.data), saved.start, list(saved.tests)


def _pairs(texts: list[str] | None, option: str, example: str) -> dict[str, str]:
    found = {}
    for text in texts or ():
        key, sign, value = text.partition("=")
        if not sign or not key or not value:
            raise NacreError(f"{option} {text!r} is not of the form {example}")
        found[key] = value
    return found


def _number(key: str, text: str) -> float:
    try:
        return float(text)
    except ValueError as error:
        raise NacreError(f"--share {key}={text}: {text!r} is not a number") from error
