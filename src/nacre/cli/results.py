"""Commands that show and use what was learnt."""

from pathlib import Path
from typing import Annotated

import typer

from nacre.cli.app import app, echo, make_console, print_json
from nacre.cli.options import Root, Set, config_values


@app.command(
    "eval",
    epilog="Examples:  nacre eval runs/mib;  "
    "nacre eval runs/mib/step-0 --set labels.unseen=background",
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

    metrics = evaluate_checkpoint(model, config_values(root=root), set_ or ())
    if json:
        print_json(metrics)
    else:
        make_console().print(class_table(metrics))


def _notify(line: str) -> None:
    """Say on the way what a table leaves out, beside what is printed."""
    echo(line, err=True)


@app.command(
    epilog="Examples:  nacre table runs/grid;  nacre table runs/grid --kind voc --paper --as latex;"
    "  nacre table --kind classes --paper"
)
def table(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(help="Run folders, or folders that hold them; none: the paper's alone."),
    ] = None,
    kind: Annotated[
        str,
        typer.Option(
            help="steps; last: after the last step; classes: by class, as the supplement; the "
            "paper's: voc (Table 1), ade20k (2), ablation (3), lwf-mc (supplement); later: since "
            "2020."
        ),
    ] = "steps",
    paper: Annotated[
        bool,
        typer.Option(
            help="The paper's figures beside ours; rows that are not run as the paper have a *."
        ),
    ] = False,
    background: Annotated[bool, typer.Option(help="Count the background in means.")] = False,
    as_: Annotated[
        str, typer.Option("--as", help="terminal, markdown, latex or csv.")
    ] = "terminal",
) -> None:
    """Make the paper's tables from run folders, or show the paper's own."""
    from nacre.errors import NacreError, unknown_name
    from nacre.report.results.aggregate import load_results
    from nacre.report.tables.kinds import make_tables
    from nacre.report.tables.render import to_csv, to_latex, to_markdown
    from nacre.terminal.tables import print_table

    forms = ("terminal", "markdown", "latex", "csv")
    if as_ not in forms:
        raise unknown_name("form", as_, forms)
    if not runs and not paper:
        raise NacreError("no runs: name run folders, or add --paper for the paper's own tables")
    results = load_results(runs, _notify) if runs else []
    tables = make_tables(results, kind, paper=paper, background=background)
    if as_ == "csv":
        echo(to_csv(tables))
        return
    for one in tables:
        if as_ == "terminal":
            print_table(make_console(), one)
        else:
            echo(to_markdown(one) if as_ == "markdown" else to_latex(one))


@app.command(
    epilog="Examples:  nacre report runs/grid --out report;  nacre report models/pets-birds"
)
def report(
    runs: Annotated[
        list[Path],
        typer.Argument(help="Run folders, folders that hold them, or one of `nacre learn`."),
    ],
    out: Annotated[Path, typer.Option(help="Folder for the page.")] = Path("report"),
    pictures: Annotated[int, typer.Option(min=0, help="Pictures per scenario; 0 for none.")] = 8,
    paper: Annotated[bool, typer.Option(help="The paper's figures beside ours.")] = False,
) -> None:
    """Make one page of finished runs, or of a step: tables, curves, pictures."""
    from nacre.report.page.learn import is_learn_folder, write_learn_page
    from nacre.report.page.page import write_report

    if len(runs) == 1 and is_learn_folder(runs[0]):
        page = write_learn_page(runs[0], out, pictures=pictures)
    else:
        page = write_report(runs, out, pictures=pictures, paper=paper, notify=_notify)
    make_console().print("report:", str(page), soft_wrap=True)
