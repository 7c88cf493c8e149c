"""Commands that test and compare finished runs: eval, table, report."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich import box
from rich.console import Console, RenderableType
from rich.table import Table
from rich.text import Text

from nacre.cli import app
from nacre.cli.app import argument, flag, option
from nacre.errors import counted

if TYPE_CHECKING:
    from nacre.report.tables import ResultTable

PADDING = 3
"""Number of characters around a column of a table."""
FORMATS = ("terminal", "markdown", "latex", "csv")


@app.command(
    "eval",
    "nacre eval runs/mib",
    "nacre eval runs/mib/step-0 --set labels.unseen=background",
)
def evaluate(
    model: app.ModelPath, set_: app.Set = None, root: app.Root = None, json: app.Json = False
) -> None:
    """Test a model again, under the same or other conventions."""
    from nacre.runs.evaluate import evaluate_checkpoint

    metrics = evaluate_checkpoint(model, app.data_section(root), set_ or ())
    if json:
        app.print_json(metrics)
    else:
        console = app.make_console()
        console.print(class_table(metrics))
        if "tests" in metrics:
            ious = metrics["iou"]
            untested = [name for name in metrics["classes"][1:] if ious.get(name) is None]
            if untested:
                text = f"not tested, as no test image shows them: {', '.join(untested)}; "
                text += f"give a folder that does: nacre eval {model} --root FOLDER"
                console.print(Text(text, "yellow"), soft_wrap=True)


def _notify(line: str) -> None:
    """Print a notice to stderr."""
    app.echo(line, err=True)


@app.command(
    "table",
    "nacre table runs/grid",
    "nacre table runs/grid --kind voc --paper --format latex",
    "nacre table --kind classes --paper",
)
def table(
    runs: Annotated[
        list[Path] | None,
        argument("RUN", "Run folders, or folders of runs. Default: only the paper's."),
    ] = None,
    kind: Annotated[
        str,
        option(
            "NAME",
            "steps: after every step; last: after the last; classes: by class; voc, ade20k, "
            "ablation: the paper's Tables 1 to 3; lwf-mc: its supplement; later: methods since "
            "2020.",
        ),
    ] = "steps",
    paper: Annotated[
        bool,
        flag("--paper", "Add the paper's results; a * marks rows that differ from its setup."),
    ] = False,
    background: Annotated[bool, flag("--background", "Include the background in means.")] = False,
    format_: Annotated[
        str, option("terminal|markdown|latex|csv", "Form of the table.", "--format")
    ] = "terminal",
) -> None:
    """Make the paper's tables from finished runs, or show the paper's own."""
    from nacre.errors import NacreError, unknown_name
    from nacre.report.kinds import make_tables
    from nacre.report.results import load_results
    from nacre.report.tables import to_csv, to_latex, to_markdown

    if format_ not in FORMATS:
        raise unknown_name("format", format_, FORMATS)
    if not runs and not paper:
        raise NacreError("no runs: name run folders, or add --paper for the paper's own tables")
    results = load_results(runs, _notify) if runs else []
    tables = make_tables(results, kind, paper=paper, background=background)
    if format_ == "csv":
        app.echo(to_csv(tables))
        return
    for one in tables:
        if format_ == "terminal":
            print_table(app.make_console(), one)
        else:
            app.echo(to_markdown(one) if format_ == "markdown" else to_latex(one))


@app.command("report", "nacre report runs/grid --out report", "nacre report models/pets-birds")
def report(
    runs: Annotated[
        list[Path],
        argument("RUN", "Run folders, folders of runs, or one folder of `nacre learn`."),
    ],
    out: Annotated[Path, option("FOLDER", "Folder for the page.")] = Path("report"),
    images: Annotated[int, option("NUMBER", "Images per scenario; 0 for none.", min=0)] = 8,
    paper: Annotated[bool, flag("--paper", "Add the paper's results.")] = False,
) -> None:
    """Write one page about finished runs, or about a learned step: tables, charts, images."""
    from nacre.report.page import is_learn_folder, write_learn_page, write_report

    if len(runs) == 1 and is_learn_folder(runs[0]):
        page = write_learn_page(runs[0], out, images=images)
    else:
        page = write_report(runs, out, images=images, paper=paper, notify=_notify)
    app.make_console().print("report:", str(page), soft_wrap=True)


def class_table(metrics: dict[str, Any]) -> RenderableType:
    """Return a table of the IoU of each class and of the means."""
    from nacre.report.results import percent

    table = Table(
        title=f"after step {metrics['step']}, {counted(metrics['images'], 'test image')}",
        title_justify="left",
    )
    table.add_column("class")
    table.add_column("IoU %", justify="right")
    for name, value in metrics["iou"].items():
        table.add_row(name, percent(value))
    table.add_section()
    for name, value in metrics["mean_iou"].items():
        if value is not None:
            table.add_row(f"mean of {name.replace('_', ' ')}", percent(value))
    return table


def print_table(console: Console, table: "ResultTable") -> None:
    """Print a table; if it is wider than the terminal, print it in several blocks of columns."""
    if not console.is_terminal:
        # A file or a pipe has no width.
        widths = (_width(table, i, has_heading=True) for i in range(len(table.columns)))
        console.width = max(console.width, _names_width(table) + sum(widths) + PADDING)
    blocks = list(_blocks(table, console.width))
    for block in blocks:
        is_first, is_last = block is blocks[0], block is blocks[-1]
        console.print(_rich_block(table, block, title=is_first, caption=is_last))


def _names_width(table: "ResultTable") -> int:
    return max(len("method"), *(len(row.name) for row in table.rows)) + PADDING


def _width(table: "ResultTable", i: int, *, has_heading: bool) -> int:
    """Return the width of a column; neighbors with the same heading show it only once."""
    column = table.columns[i]
    texts = [column.heading if has_heading else "", column.group]
    texts += [row.cells[i].text for row in table.rows]
    return max(map(len, texts)) + PADDING


def _blocks(table: "ResultTable", width: int) -> Iterator[list[int]]:
    """Yield the columns of each block: as many as fit beside the methods, at least one."""
    block: list[int] = []
    used = _names_width(table)
    for i in range(len(table.columns)):
        needed = _width(table, i, has_heading=_has_heading(table, block, i))
        if block and used + needed + PADDING > width:
            yield block
            block, used = [], _names_width(table)
            needed = _width(table, i, has_heading=True)
        block.append(i)
        used += needed
    yield block


def _has_heading(table: "ResultTable", block: list[int], i: int) -> bool:
    """Return True if a column is the first one with its heading in a block."""
    return i - 1 not in block or table.columns[i].heading != table.columns[i - 1].heading


def _rich_block(table: "ResultTable", columns: list[int], *, title: bool, caption: bool) -> Table:
    shown = Table(
        title=Text(table.title) if title else None,
        caption=Text(table.caption) if caption else None,
        title_justify="left",
        caption_justify="left",
        box=box.HORIZONTALS,
    )
    shown.add_column("\nmethod", overflow="fold")
    for i in columns:
        heading = table.columns[i].heading if _has_heading(table, columns, i) else ""
        text = Text(f"{heading}\n{table.columns[i].group}")
        shown.add_column(text, justify="right", overflow="fold")
    for row, following in zip(table.rows, [*table.rows[1:], None], strict=True):
        rule = following is not None and following.is_bound and not row.is_bound
        cells = [Text(row.cells[i].text, "bold" if row.cells[i].best else "") for i in columns]
        style = "" if row.source == "ours" else "dim italic"
        shown.add_row(Text(row.name), *cells, end_section=rule, style=style)
    return shown
