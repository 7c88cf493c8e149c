"""Commands that show methods, configs, data and scenarios before training."""

import inspect
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from nacre.cli import app
from nacre.cli.app import argument, option
from nacre.errors import NacreError, check, counted
from nacre.terminal import abbreviate

if TYPE_CHECKING:
    from nacre.data.source import DataReport, FileSource
    from nacre.methods import Method, MethodEntry
    from nacre.scenarios.scenario import Scenario, StepPlan

CONFIGURED = ("learn", "run", "tune", "grid", "demo")
"""The commands that have a config."""
MAX_PROBLEMS = 10
"""Maximum number of problems that a report lists for a split."""


@app.command("methods", "nacre methods", "nacre methods mib")
def methods(
    name: Annotated[str | None, argument("NAME", "Method to explain. Default: list all.")] = None,
) -> None:
    """List the methods, or explain one with its equations and options."""
    from nacre.methods import all_entries, find_entry, find_method

    shown = explain(find_method(name), find_entry(name)) if name else methods_table(all_entries())
    app.make_console().print(shown)


@app.command(
    "config",
    "nacre config learn pets --set train.iterations=100",
    "nacre config run scenes/4-2-2/overlapped --method mib --preset small",
    context_settings={
        "allow_extra_args": True,
        "allow_interspersed_args": False,
        "ignore_unknown_options": True,
    },
)
def config(
    context: typer.Context,
    name: Annotated[str, argument("COMMAND", "learn, run, tune, grid or demo.")],
) -> None:
    """Print the config (YAML) that a command would use, and run nothing.

    Arguments and options are the command's own, and so are the errors.
    """
    if name not in CONFIGURED:
        raise NacreError(f"nacre {name} has no config; commands with one: {', '.join(CONFIGURED)}")
    assert context.parent is not None
    wanted = context.parent.command.get_command(context.parent, name)  # type: ignore[attr-defined]
    with app.only_config():
        wanted.invoke(wanted.make_context(name, context.args, parent=context.parent))


def methods_table(entries: "Mapping[str, MethodEntry]") -> RenderableType:
    """Return a table of the methods."""
    caption = (
        "`nacre methods NAME` shows the equations and config keys of a method. The default is duo "
        "on pretrained weights, and mib without them and under the presets of the paper."
    )
    table = Table("name", "in tables", "what it does", "paper", title="methods", caption=caption)
    table.title_justify = table.caption_justify = "left"
    for name, entry in entries.items():
        table.add_row(name, entry.title, entry.summary, entry.paper)
    return table


def explain(method: "type[Method]", entry: "MethodEntry") -> RenderableType:
    """Return a method's description, its equations and its config keys."""
    from nacre.methods import MethodConfig

    about = inspect.getdoc(sys.modules[method.__module__]) or entry.summary
    title = Text(f"{method.name}: {entry.summary}", "bold")
    options = Table("key", "default", "what it is", title_justify="left")
    options.title = f"\n--set method.…  for {method.name}"
    fields, common = method.Config.model_fields, MethodConfig.model_fields
    for key, field in sorted(fields.items(), key=lambda item: item[0] in common):
        if key != "name" and key not in method.Config.refused:
            value = ", ".join(field.default) if key == "freeze" else str(field.default)
            options.add_row(key, value, field.description)
    return Group(title, Text(_join_lines(about)), Text(f"\nPaper: {entry.paper}"), options)


def _join_lines(text: str) -> str:
    """Join the lines of each paragraph so that the terminal wraps them; keep equations."""
    return "\n\n".join(
        paragraph if paragraph.startswith(" ") else " ".join(paragraph.splitlines())
        for paragraph in text.split("\n\n")
    )


@app.command("data", "nacre data pets", "nacre data voc --root VOC2012")
def data(
    name: Annotated[
        str, argument("DATA", "A folder with images/, masks/ and classes.yaml, or a data set.")
    ],
    root: Annotated[
        Path | None, option("FOLDER", "Folder of the data set, if DATA is the name of one.")
    ] = None,
    classes: Annotated[
        Path | None, option("FILE", "Path of classes.yaml, if it is not in the folder.")
    ] = None,
    json: app.Json = False,
) -> None:
    """Check a data folder before training: counts, pairs, sizes, labels, damaged files."""
    from nacre.data.source import check_source

    report = check_source(_open_files(name, root, classes))
    if json:
        app.print_json(report.as_dict())
    else:
        app.make_console().print(report_tables(report))
    if not report.is_valid:
        sys.exit(2)


def _open_files(name: str, root: Path | None, classes: Path | None) -> "FileSource":
    """Open a data folder, or a data set in the folder `root`."""
    from nacre.data import DATASETS, find_dataset
    from nacre.data.source import FileSource

    if root is None:
        if name in DATASETS and not Path(name).is_dir():
            raise NacreError(f"the data set {name!r} needs its folder: give --root FOLDER")
        name, root = "folder", Path(name)
    row = find_dataset(name)
    values = {"root": root} if classes is None else {"root": root, "classes": classes}
    source = row.open(check(row.config, values, f"the data set {name!r}"))
    if not isinstance(source, FileSource):
        raise NacreError(f"the data set {name!r} has no files to check")
    return source


@app.command(
    "plan",
    "nacre plan  lists data sets, tasks and setups",
    "nacre plan voc/15-5/overlapped --root VOC2012",
    "nacre plan ade20k/100-10b/partition --root ADEChallengeData2016 --json",
)
def plan(
    scenario: Annotated[
        str | None,
        argument("SCENARIO", "data/task/setup, a name or a .yaml file. Default: list all."),
    ] = None,
    root: app.Root = None,
    config: app.ConfigFile = None,
    set_: app.Set = None,
    json: app.Json = False,
) -> None:
    """Show the images and classes of each step of a scenario, or list all scenarios."""
    from nacre.scenarios.scenario import make_plan, plan_as_json

    if scenario is None:
        if root or config or set_ or json:
            raise NacreError("no scenario: give data/task/setup, such as scenes/4-2-2/overlapped")
        app.make_console().print(scenarios_table())
        return
    from nacre.runs.run import open_scenario
    from nacre.training.config import build_config

    values = {"scenario": scenario, **app.data_section(root)}
    data = open_scenario(build_config(file=config, assignments=set_ or (), overrides=values))
    steps = make_plan(data.scenario, data.train_index, data.image_lists)
    if json:
        app.print_json(plan_as_json(data.scenario, steps))
    else:
        app.make_console().print(plan_table(data.scenario, steps))


def report_tables(report: "DataReport") -> Group:
    """Return the report on a data folder: a table of its classes, then its problems."""
    from nacre.data.index import images_by_label, pixels_by_label

    table = Table(title=f"classes of {report.root}", title_justify="left")
    table.add_column("label", justify="right")
    table.add_column("class")
    for split in report.splits:
        table.add_column(f"{split.split} images", justify="right")
        table.add_column("pixels", justify="right")
    counts = [images_by_label(split.index) for split in report.splits]
    pixels = [pixels_by_label(split.index) for split in report.splits]
    space = report.space
    special = ((space.background, "(background)"), (space.ignored, "(ignored)"))
    for label, name in (special[0], *space.names.items(), special[1]):
        if label is not None:
            cells = []
            for images, of in zip(counts, pixels, strict=True):
                cells += [f"{images[label]:,}", f"{of[label] / max(1, of.total()):.2%}"]
            table.add_row(str(label), Text(name), *cells)
    return Group(table, *(Text(sentence) for sentence in _sentences(report)))


def _sentences(report: "DataReport") -> Iterator[str]:
    """Yield the numbers of images, the problems and the verdict of a report."""
    from nacre.data.index import describe_problems
    from nacre.labels.space import explain_white_label

    yield ", ".join(f"{split.split}: {counted(split.images, 'image')}" for split in report.splits)
    for split in report.splits:
        kinds = Counter(problem.kind for problem in split.problems)
        for kind, count in kinds.items():
            yield f"{split.split}: {count:,} x {kind}"
        for sentence in describe_problems(split.problems, MAX_PROBLEMS):
            yield f"{split.split}: {sentence}"
        if split.turned:
            masks = "its mask" if split.turned == 1 else "their masks"
            yield (
                f"{split.split}: EXIF data rotate {counted(split.turned, 'image')}; {masks} must "
                "match what image viewers show"
            )
        if split.expected not in (None, split.images):
            yield (
                f"{split.split} has {split.images:,} of the data set's {split.expected:,} images: "
                "results cannot be compared with published ones"
            )
    if report.empty_classes:
        yield f"no pixel in training: {', '.join(report.empty_classes)}"
    if report.white_label is not None:
        yield explain_white_label(report.space)
    faulty = sum(len(split.problems) for split in report.splits)
    if report.is_valid:
        yield "every file can be used"
    elif faulty:
        yield f"{counted(faulty, 'image')} cannot be used"


def plan_table(scenario: "Scenario", plan: "list[StepPlan]") -> RenderableType:
    """Return a table of the classes, images and hidden classes of each step."""
    table = Table(title=f"{scenario.name}: what each step learns from", title_justify="left")
    table.add_column("step", justify="right")
    table.add_column("learns", ratio=3)
    table.add_column("images", justify="right")
    table.add_column("hidden in its background (images)", ratio=4)
    table.add_column("in its background's pixels", ratio=2)
    for step in plan:
        shares = ", ".join(f"{share:.1%} {name}" for name, share in step.background.items())
        images = f"{step.images:,}"
        table.add_row(str(step.step), abbreviate(step.classes), images, _hidden(step), shares)
    return table


def _hidden(step: "StepPlan") -> Text:
    text = Text()
    for when, counts, style in (
        ("old", step.hidden_old, "magenta"),
        ("future", step.hidden_future, "cyan"),
    ):
        names = [f"{name} {count:,}" for name, count in Counter(counts).most_common()]
        if names:
            text.append("\n" if text else "")
            text.append(f"{when}: {abbreviate(names, 5)}", style)
    return text or Text("nothing", "dim")


def scenarios_table() -> RenderableType:
    """Return tables of the data sets and of the scenarios that come with nacre."""
    from nacre.data import DATASETS
    from nacre.scenarios.scenario import read_scenario, shipped_scenarios

    columns = ("data", "what it is", "tasks, for example", "setups")
    data = Table(*columns, title="data / task / setup", title_justify="left")
    for name, entry in DATASETS.items():
        data.add_row(name, entry.about, ", ".join(entry.examples), ", ".join(entry.setups))
    columns = ("name", "data", "setup", "what it is")
    files = Table(*columns, title="scenarios that come with nacre", title_justify="left")
    for name in shipped_scenarios():
        scenario = read_scenario(name)
        files.add_row(name, scenario.data, scenario.setup, scenario.about)
    return Group(data, files)
