"""The table in the form of the paper's: methods as rows; old, new and all classes as columns.

A cell is the mean over the seeds of a mean IoU, with the sample standard deviation where there
are several seeds. Joint training has only the last step; its other cells stay empty. The best
of the incremental methods is marked in every column.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import fmean, stdev
from typing import Literal

from nacre.report.results.aggregate import Row, ScenarioResults

Source = Literal["ours", "paper", "difference"]


@dataclass(frozen=True)
class Cell:
    """A figure of the table.

    Attributes:
        values: One a seed, as shares of 1.
        best: Whether it is the best of its column.
        signed: Whether it is a difference, written with its sign.
    """

    values: tuple[float, ...]
    best: bool = False
    signed: bool = False

    @property
    def mean(self) -> float | None:
        """The mean over the seeds."""
        return fmean(self.values) if self.values else None

    @property
    def std(self) -> float | None:
        """The sample standard deviation over the seeds, from two seeds on."""
        return stdev(self.values) if len(self.values) > 1 else None

    @property
    def text(self) -> str:
        """The figure in per cent; nothing where there is none."""
        if self.mean is None:
            return ""
        if self.signed:
            return f"{100 * self.mean:+.1f}".replace("-", "−")
        spread = f" ± {100 * self.std:.1f}" if self.std is not None else ""
        return f"{100 * self.mean:.1f}{spread}"


@dataclass(frozen=True)
class Column:
    """A column: a group of classes (``old``, ``new``, ``all``) under a heading."""

    heading: str
    group: str
    about: str = ""


@dataclass(frozen=True)
class TableRow:
    """A method's figures.

    Attributes:
        name: The method.
        cells: One a column.
        seeds: How many runs they are the mean of.
        apart: Whether it stands apart below: a bound, not a competitor.
        source: Whose figures they are.
    """

    name: str
    cells: tuple[Cell, ...]
    seeds: int
    is_bound: bool = False
    source: Source = "ours"


@dataclass(frozen=True)
class ResultTable:
    """A table with its caption."""

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    def headings(self) -> list[tuple[str, int]]:
        """Return each heading and how many columns it spans."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.heading:
                spans[-1] = (column.heading, spans[-1][1] + 1)
            else:
                spans.append((column.heading, 1))
        return spans


def steps_table(results: ScenarioResults, *, background: bool = False) -> ResultTable:
    """Return old, new and all after every step of a scenario.

    Args:
        results: All rows of the scenario.
        background: Whether the background counts as one class more in every mean.
    """
    columns = [column for step in range(len(results.groups)) for column in _columns(results, step)]
    rows = []
    for row in results.rows:
        cells = tuple(
            Cell(row.values(step, column.group, background))
            for step in range(len(results.groups))
            for column in _columns(results, step)
        )
        rows.append(TableRow(row.name, cells, len(row.runs), row.merged))
    caption = " ".join([caption_of(results.rows, background), *results.notes])
    return ResultTable(results.scenario, caption, tuple(columns), tuple(mark_best(rows)))


def caption_of(rows: Sequence[Row], background: bool) -> str:
    """Say what the figures of a table are."""
    seeds = {len(row.runs) for row in rows}
    counted = "counted as a class" if background else "left out of every mean"
    about = f"Mean IoU in %, background {counted}."
    if not rows:
        return about
    sentences = [about, _about_unseen(rows)]
    if seeds != {1}:
        few, many = min(seeds), max(seeds)
        sentences.append(
            f"Mean ± standard deviation over {few if few == many else f'{few} to {many}'} seeds."
        )
    if len([row for row in rows if not row.merged]) > 1:
        sentences.append("Best incremental method in bold.")
    return " ".join(sentences)


def _about_unseen(rows: Sequence[Row]) -> str:
    conventions = {str(sorted(run.conventions.items())) for row in rows for run in row.runs}
    if len(conventions) != 1:
        return "The rows were tested by different conventions: see their configs."
    unseen = rows[0].runs[0].conventions.get("unseen")
    return f"Classes not learnt yet are {_how_counted(unseen)} in testing."


def mark_best(rows: Sequence[TableRow]) -> list[TableRow]:
    """Mark the best cell of every column among our rows that do not stand apart."""
    candidates = [row for row in rows if _competes(row)]
    tops = [_top([_shown(row.cells[i]) for row in candidates]) for i in range(len(rows[0].cells))]
    marked = []
    for row in rows:
        cells = [
            replace(cell, best=top is not None and _shown(cell) == top)
            for cell, top in zip(row.cells, tops, strict=True)
        ]
        marked.append(replace(row, cells=tuple(cells)) if _competes(row) else row)
    return marked


def _competes(row: TableRow) -> bool:
    return not row.is_bound and row.source == "ours"


def _top(shown: Sequence[float | None]) -> float | None:
    """Return the best of a column; one alone or all alike, such as a shared step 0, have none."""
    there = [value for value in shown if value is not None]
    return max(there) if len(set(there)) > 1 else None


def _shown(cell: Cell) -> float | None:
    """Return the mean as it is printed, so that equal print is equally good."""
    return None if cell.mean is None else round(100 * cell.mean, 1)


def _columns(results: ScenarioResults, step: int) -> list[Column]:
    new = ", ".join(results.groups[step])
    if step == 0:
        return [Column("step 0", "all", new)]
    old = ", ".join(name for names in results.groups[:step] for name in names)
    heading = f"step {step}"
    return [
        Column(heading, "old", old),
        Column(heading, "new", new),
        Column(heading, "all", f"{old}, {new}"),
    ]


def _how_counted(unseen: object) -> str:
    return "counted as background" if unseen == "background" else "ignored"
