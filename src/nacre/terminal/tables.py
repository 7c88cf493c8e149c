"""A table of results for the terminal: as wide as it is in a pipe, in blocks where it must fit."""

from collections.abc import Iterator

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from nacre.report.tables.cells import ResultTable

PADDING = 3
"""Columns of characters beside a column of the table."""


def print_table(console: Console, table: ResultTable) -> None:
    """Print a table whole: no figure is cut and no column is left out, however wide it is."""
    if not console.is_terminal:
        # A file or a pipe has no width that a line must fit into.
        headings = sum(len(heading) for heading, _ in table.headings())
        console.width = max(console.width, sum(_widths(table)) + headings + PADDING)
    for part in to_rich(table, console.width):
        console.print(part)


def to_rich(table: ResultTable, width: int) -> list[Table]:
    """Return a table for a terminal, as several below one another where it is too wide for it."""
    blocks = list(_blocks(_widths(table), width))
    last = len(blocks) - 1
    return [
        _part(table, columns, width, title=i == 0, caption=i == last)
        for i, columns in enumerate(blocks)
    ]


def _widths(table: ResultTable) -> list[int]:
    """Return how wide each column is at least, the methods first; headings can fold."""
    names = max(len("method"), *(len(row.name) for row in table.rows))
    widths = [names + PADDING]
    for i, column in enumerate(table.columns):
        texts = [column.group, *(row.cells[i].text for row in table.rows)]
        widths.append(max(map(len, texts)) + PADDING)
    return widths


def _blocks(widths: list[int], width: int) -> Iterator[list[int]]:
    """Yield the columns of each block: as many as fit beside the methods, at least one."""
    block: list[int] = []
    used = widths[0]
    for i, needed in enumerate(widths[1:]):
        if block and used + needed + PADDING > width:
            yield block
            block, used = [], widths[0]
        block.append(i)
        used += needed
    yield block


def _part(
    table: ResultTable, columns: list[int], width: int, *, title: bool, caption: bool
) -> Table:
    shown = Table(
        title=Text(table.title) if title else None,
        caption=Text(table.caption) if caption else None,
        title_justify="left",
        caption_justify="left",
        box=box.HORIZONTALS,
    )
    shown.add_column("method", overflow="fold")
    for heading in _headings(table, columns, width):
        shown.add_column(heading, justify="right", no_wrap=True, overflow="fold")
    for row, following in zip(table.rows, [*table.rows[1:], None], strict=True):
        rule = following is not None and following.is_bound and not row.is_bound
        cells = [Text(row.cells[i].text, "bold" if row.cells[i].best else "") for i in columns]
        quiet = "" if row.source == "ours" else "dim italic"
        shown.add_row(Text(row.name), *cells, end_section=rule, style=quiet)
    return shown


def _headings(table: ResultTable, columns: list[int], width: int) -> list[Text]:
    """Return what stands above columns: the heading of neighbours once, folded into the room."""
    widths = _widths(table)
    names = [table.columns[i].heading for i in columns]
    firsts = [not k or names[k] != names[k - 1] for k in range(len(names))]
    spare = width - widths[0] - sum(widths[i + 1] for i in columns) - PADDING
    headings = []
    for i, name, is_first in zip(columns, names, firsts, strict=True):
        room = max(1, widths[i + 1] - PADDING + max(0, spare) // sum(firsts))
        lines = [name[k : k + room] for k in range(0, len(name), room)] if is_first else [""]
        headings.append(Text("\n".join([*lines, table.columns[i].group])))
    return headings
