"""A table of results for the terminal."""

from rich import box
from rich.table import Table
from rich.text import Text

from nacre.report.tables.cells import ResultTable


def to_rich(table: ResultTable) -> Table:
    """Return a table for the terminal."""
    shown = Table(
        title=table.title,
        caption=table.caption,
        title_justify="left",
        caption_justify="left",
        box=box.HORIZONTALS,
    )
    shown.add_column("method", no_wrap=True)
    previous = ""
    for column in table.columns:
        first = column.heading != previous
        heading = column.heading if first else ""
        previous = column.heading
        shown.add_column(f"{heading}\n{column.group}", justify="right", no_wrap=True)
    for at, row in enumerate(table.rows):
        following = table.rows[at + 1 : at + 2]
        rule = bool(following) and following[0].apart and not row.apart
        cells = [Text(cell.text, "bold" if cell.best else "") for cell in row.cells]
        quiet = "" if row.source == "ours" else "dim italic"
        shown.add_row(row.name, *cells, end_section=rule, style=quiet)
    return shown
