"""Commands that change a model or show its history: learn, forget, merge, history."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nacre.cli import app
from nacre.cli.app import argument, option
from nacre.errors import counted
from nacre.terminal import RunDisplay, abbreviate

if TYPE_CHECKING:
    from nacre.api.model import Model
    from nacre.data.step_data import LearnData
    from nacre.models.io import ModelInfo

OutModel = Annotated[Path, option("FOLDER", "Folder for the new model.")]


@app.command(
    "learn",
    "nacre learn pets --out models/pets",
    "nacre learn birds --start models/pets --out models/pets-birds",
    "nacre learn birds --start models/pets --method mib --out models/pets-birds-mib",
    "nacre learn --out models/pets  resumes what was interrupted",
)
def learn(
    data: Annotated[
        list[Path] | None, argument("DATA", "Folders with images/, masks/ and classes.yaml.")
    ] = None,
    *,
    start: Annotated[
        Path | None,
        option("MODEL", "Model to continue: a model file, a step folder or a run folder."),
    ] = None,
    out: Annotated[
        Path | None, option("FOLDER", "Folder for the new model. Default: models/DATA.")
    ] = None,
    method: Annotated[
        str | None,
        option(
            "NAME",
            "Training method (see `nacre methods`). Default: duo; ledger beside a network of "
            "another library; mib, the paper's, without pretrained weights or under its presets. "
            "--method mib learns any network.",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        option("NAMES", "Comma-separated classes to learn. Default: all in the data."),
    ] = None,
    rename: Annotated[
        list[str] | None,
        option("DATA=MODEL", "Map a class of the data to a class of the model. Repeatable."),
    ] = None,
    new: Annotated[
        list[str] | None,
        option(
            "NAME", "Treat this class as new even if its name resembles a known class. Repeatable."
        ),
    ] = None,
    test: Annotated[
        list[Path] | None, option("FOLDER", "One more folder to test on. Repeatable.")
    ] = None,
    preset: app.Preset = None,
    config: app.ConfigFile = None,
    set_: app.Set = None,
    seed: app.Seed = None,
) -> None:
    """Train a first model, or add new classes to an existing one."""
    values: dict[str, Any] = {
        "data": list(map(str, data or ())),
        "start": str(start) if start else None,
        "tests": list(map(str, test or ())),
        "method": {"name": method} if method else None,
        "classes": app.split_names(classes),
        "rename": app.split_pairs(rename, "--rename", "Katze=cat"),
        "new": new,
        "seed": seed,
    }
    _learn(app.config_sources(values, preset, config, set_, None if data else out), out)


def _learn(sources: dict[str, Any], out: Path | None) -> None:
    """Learn a step and show its progress."""
    from nacre.utils.system import keep_freed_memory

    keep_freed_memory()
    from nacre.runs.learn import describe, learn_config, learn_in_folder, open_step
    from nacre.utils.signals import StopSignal

    config = learn_config(**sources)
    app.show_config(config.to_dict())
    folder = out or Path("models") / "-".join(path.resolve().name for path in config.data)
    console = app.make_console()
    with StopSignal() as stop, RunDisplay(console) as display:
        step = open_step(config)
        console.print(step_lines(step.tests.data, describe(step)))
        metrics = app.until_interrupted(
            lambda: learn_in_folder(step, folder, observers=[display], should_stop=stop),
            app.resume_command("learn", "--out", str(folder)),
        )
    if app.is_main_process():
        console.print(learn_table(metrics))
        console.print(f"model, metrics and events: {folder}", soft_wrap=True, markup=False)


@app.command(
    "forget",
    "nacre forget models/pets --step 1 --out models/pets-without",
    "nacre forget models/pets --folder birds --out models/no-birds",
    "nacre forget models/pets --class cat --out models/no-cat",
)
def forget(
    model: Annotated[Path, argument("MODEL", "A model that ledger or duo learned.")],
    out: OutModel,
    step: Annotated[
        int | None, option("NUMBER", "Step to remove, by its number in `nacre history`.")
    ] = None,
    folder: Annotated[str | None, option("NAME", "Data folder to remove, by its name.")] = None,
    class_name: Annotated[str | None, option("NAME", "Class to remove.", "--class")] = None,
) -> None:
    """Remove a step, a data folder or a class from a model, as if it had never been learned."""
    from nacre.api.model import load

    whole = load(model, "cpu")
    edited = whole.forget(step=step, folder=folder, class_name=class_name, out=out)
    note = "no trace of it is left in the ledger, and no update of the decoder was kept since then"
    if any(map(_has_trained_decoder, _since(whole.info.history, step, folder))):
        note = "no trace of it is left in the ledger; the decoder may still have been trained with "
        note += "it"
    _show_edited(edited, note)


def _since(
    history: Sequence[dict[str, Any]], step: int | None, folder: str | None
) -> Sequence[dict[str, Any]]:
    """Return the entries from the forgotten one on; later steps learn from the model before."""
    if step is None and folder is not None:
        step = next(i for i, entry in enumerate(history) if folder in entry["data"])
    return history[step or 0 :]


def _has_trained_decoder(entry: dict[str, Any]) -> bool:
    """Return True if the decoder may have kept updates of a step."""
    judged = entry.get("judged")
    if isinstance(judged, dict):
        return bool(judged.get("kept", True))
    return entry.get("method") not in ("ledger", "duo")  # without a verdict duo keeps none


@app.command("merge", "nacre merge models/site-a models/site-b --out models/both-sites")
def merge_models(
    models: Annotated[list[Path], argument("MODEL", "Models that ledger or duo learned.")],
    out: OutModel,
) -> None:
    """Merge models with the same backbone into one that learned from all their images."""
    from nacre.api.model import merge
    from nacre.models.io import find_model, read_info

    merged, first = merge(models, out=out), read_info(find_model(models[0]))
    others = [name for name in merged.info.classes if name not in first.classes]
    note = "the decoder is that of the first model"
    if others:
        note = f"the ledger knows the classes of all models; {note}, which treats the classes of "
        note += f"the others as background: {abbreviate(others)}"
    _show_edited(merged, note)


@app.command("history", "nacre history models/pets-birds")
def history(model: app.ModelPath, json: app.Json = False) -> None:
    """Show how a model was trained, step by step."""
    from nacre.models.io import find_model, read_info
    from nacre.runs.records import Measured

    path = find_model(model)
    info = read_info(path)
    metrics = path.with_name("metrics.json")
    iou = Measured.load(metrics).iou if metrics.exists() else None
    if json:
        app.print_json({"classes": info.classes, "history": info.history, "iou": iou})
        return
    app.make_console().print(history_table(model, info, iou))


def _show_edited(model: "Model", note: str) -> None:
    """Print a model's history, and a note if it has a trained decoder as well as a ledger."""
    console = app.make_console()
    console.print(history_table(model.file.parent, model.info, None))
    ledger = getattr(model.network, "ledger", None)
    if ledger is not None and bool(ledger.learned.any()):
        console.print(note, markup=False)
    console.print(f"model: {model.file}", soft_wrap=True, markup=False)


def step_lines(data: "LearnData", how: Sequence[str]) -> RenderableType:
    """Return the new classes, the data and the training of a step as lines."""
    lines = [Text(f"new: {', '.join(data.new)}", "bold")]
    for folder in data.sets:
        hidden = data.training_mapping(folder).hidden
        count = len(folder.train_index)
        images = "1 image labels" if count == 1 else f"{count:,} images label"
        text = f"{folder.name}: {images} {abbreviate(folder.labeled)}"
        text += f"; its background may hide {abbreviate(hidden)}" if hidden else ""
        lines.append(Text(text))
        known = [name for name in folder.unlabeled if name in data.known]
        if known and hidden:
            text = f"{folder.name} names {abbreviate(known)} but labels no pixel: treated as hidden"
            lines.append(Text(text, "yellow"))
    return Group(*lines, *(Text(line, "dim") for line in how))


def learn_table(metrics: dict[str, Any]) -> RenderableType:
    """Return a table of the classes before and after a step, with notes."""
    from nacre.report.page import class_rows

    table = Table(
        title=f"after step {metrics['step']}: IoU %, {counted(metrics['images'], 'test image')}",
        title_justify="left",
    )
    for column in ("class", "before", "after", "change", "agreement", "verdict", "tested on"):
        is_text = column in ("class", "verdict", "tested on")
        table.add_column(column, justify="left" if is_text else "right")
    rows = class_rows(metrics)
    for row in rows:
        table.add_row(*_class_cells(row), style="bold" if row["is_new"] else "")
    lines = [
        Text(f"{row['name']}: {verdict['word']}; {verdict['reason']}", "yellow")
        for row in rows
        if (verdict := row["verdict"]).get("reason")
    ]
    training = sum(test.get("training_images", 0) for test in metrics["tests"])
    if training:
        lines.insert(0, Text(f"{training:,} of the test images are training images", "yellow"))
    agreement = metrics["agreement"] or {}
    if agreement.get("iou"):
        text = (
            "agreement: IoU of a class between the predictions of the start model and of the new "
            f"one, on {counted(agreement['images'], 'new image')}"
        )
        lines.append(Text(text, "dim"))
    return Group(table, *lines)


def _class_cells(row: dict[str, Any]) -> list[str | Text]:
    from nacre.report.results import percent

    change = "" if row["change"] is None else f"{100 * row['change']:+.1f}"
    figures = (percent(row["before"]), percent(row["after"]), change, percent(row["agreement"]))
    tests = ", ".join(row["tests"]) or "no test images"
    return [Text(row["name"]), *figures, row["verdict"].get("word", ""), Text(tests)]


def history_table(path: Path, info: "ModelInfo", iou: dict[str, Any] | None) -> RenderableType:
    """Return a table of the steps of a model, and a line with its IoUs, if there are any."""
    from nacre.report.results import percent

    count = len(info.classes) - 1
    title = f"{path}: {count} class{'es' * (count != 1)}"
    table = Table(title=Text(title), title_justify="left")
    for column in ("step", "learned", "from", "images", "method", "when"):
        table.add_column(column, justify="right" if column in ("step", "images") else "left")
    for entry in info.history:
        table.add_row(
            str(entry.get("step", "")),
            Text(abbreviate(entry.get("classes", []))),
            Text(", ".join(map(str, entry.get("data", [])))),
            f"{entry.get('images', 0):,}",
            Text(str(entry.get("method", ""))),
            Text(str(entry.get("when", ""))[:16].replace("T", " ")),
        )
    if iou is None:
        return table
    values = [f"{name} {percent(value)}" for name, value in iou.items() if value is not None]
    return Group(table, Text(f"IoU % after the last step: {', '.join(values)}"))
