"""Commands that show data, scenarios and methods before anything is learned."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nacre.cli.app import app, make_console, print_json
from nacre.cli.options import Config, Root, Set
from nacre.errors import NacreError

if TYPE_CHECKING:
    from nacre.labels.space import LabelIndex
    from nacre.scenarios.scenario import ImageLists, Scenario


@app.command(
    epilog="Examples:  nacre plan;  nacre plan voc/15-5/overlapped --root VOC2012;  "
    "nacre plan ade20k/100-10b/partition --index train.csv --json"
)
def plan(
    scenario: Annotated[
        str | None, typer.Argument(help="data/task/setup, a name or a .yaml file; none lists all.")
    ] = None,
    root: Root = None,
    index: Annotated[
        Path | None, typer.Option(help="CSV `image,labels`: no pictures are needed then.")
    ] = None,
    config: Config = None,
    set_: Set = None,
    json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show what each step of a scenario sees, or list data sets, tasks and setups."""
    from nacre.scenarios.plan import make_plan, plan_as_json
    from nacre.terminal.plan import render_plan, scenarios_table

    if scenario is None:
        if root or index or config or set_ or json:
            raise NacreError("no scenario: give data/task/setup, such as scenes/4-2-2/overlapped")
        make_console().print(scenarios_table())
        return
    if index is None:
        applied, labels, images = _apply_to_data(scenario, root, config, set_ or [])
    elif root is not None or config is not None or set_:
        raise NacreError(
            "--index stands for the data: --root, --config and --set do not go with it"
        )
    else:
        from nacre.data import apply_to_index

        applied, labels, images = apply_to_index(scenario, index)
    made = make_plan(applied, labels, images)
    if json:
        print_json(plan_as_json(applied, made))
        return
    make_console().print(render_plan(applied, made))


def _apply_to_data(
    scenario: str, root: Path | None, config: Path | None, sets: list[str]
) -> "tuple[Scenario, LabelIndex, ImageLists]":
    """Apply a scenario to pictures; an index alone is answered at once, without torch."""
    from nacre.runs.scenario_data import apply_scenario

    return apply_scenario(scenario, root=root, file=config, sets=sets)


@app.command(epilog="Example:  nacre methods mib")
def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this one.")] = None,
) -> None:
    """List the methods, or explain one."""
    from nacre.methods import all_rows, find_method, find_row
    from nacre.terminal.methods import explain, methods_table

    shown = explain(find_method(name), find_row(name)) if name else methods_table(all_rows())
    make_console().print(shown)


@app.command(epilog="Examples:  nacre data voc --root VOC2012;  nacre data folder --root my-data")
def data(
    name: Annotated[str, typer.Argument(help="A data set in files, such as voc or folder.")],
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
        print_json(report.as_dict())
    else:
        make_console().print(render(report))
    if not report.is_valid:
        sys.exit(2)
