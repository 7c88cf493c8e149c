"""Result tables in the paper's form, and as Markdown, CSV and LaTeX (booktabs).

Methods are rows; old, new and all classes are columns. A cell is the mean over the seeds of a mean
IoU, with the sample standard deviation if there are several seeds. Joint training has only the
last step; its other cells stay empty. The best of the incremental methods is marked in every
column.
"""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise
from statistics import fmean, stdev
from typing import Literal

from nacre.report.results import Row, ScenarioResults
from nacre.utils.io import csv_text, markdown_text, one_line

Source = Literal["ours", "paper", "difference"]
CSV_FIELDS = ("table", "columns", "classes", "method", "source", "seeds", "mean", "std")


@dataclass(frozen=True)
class Cell:
    """A number of the table.

    Attributes:
        values: One per seed, as fractions.
        best: True for the best of its column.
        signed: True for a difference, which is written with its sign.
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
        """The number in percent; nothing if there is none."""
        if self.mean is None:
            return ""
        if self.signed:
            return f"{100 * self.mean:+.1f}".replace("-", "−")
        spread = f" ± {100 * self.std:.1f}" if self.std is not None else ""
        return f"{100 * self.mean:.1f}{spread}"

    @property
    def printed(self) -> float | None:
        """The mean as it is printed: equal print is equally good."""
        return None if self.mean is None else round(100 * self.mean, 1)


@dataclass(frozen=True)
class Column:
    """A column: a group of classes (``old``, ``new``, ``all``) under a heading."""

    heading: str
    group: str
    about: str = ""


@dataclass(frozen=True)
class TableRow:
    """A method's numbers.

    Attributes:
        name: The method.
        cells: One per column.
        seeds: The number of averaged runs.
        is_bound: True for an upper bound, which is below the others and not marked as best.
        source: The source of the numbers.
    """

    name: str
    cells: tuple[Cell, ...]
    seeds: int
    is_bound: bool = False
    source: Source = "ours"

    @property
    def competes(self) -> bool:
        """True if its cells may be marked as best."""
        return not self.is_bound and self.source == "ours"


@dataclass(frozen=True)
class ResultTable:
    """A table with its caption."""

    title: str
    caption: str
    columns: tuple[Column, ...]
    rows: tuple[TableRow, ...]

    def headings(self) -> list[tuple[str, int]]:
        """Return each heading and the number of its columns."""
        spans: list[tuple[str, int]] = []
        for column in self.columns:
            if spans and spans[-1][0] == column.heading:
                spans[-1] = (column.heading, spans[-1][1] + 1)
            else:
                spans.append((column.heading, 1))
        return spans


def steps_table(results: ScenarioResults, *, background: bool = False) -> ResultTable:
    """Return old, new and all classes after every step of a scenario.

    Args:
        results: All rows of the scenario.
        background: Include the background in every mean.
    """
    by_step = [(step, _columns(results, step)) for step in range(len(results.groups))]
    rows = [
        TableRow(
            row.name,
            tuple(
                Cell(row.values(step, column.group, background))
                for step, columns in by_step
                for column in columns
            ),
            len(row.runs),
            row.is_joint,
        )
        for row in results.rows
    ]
    caption = " ".join([caption_of(results.rows, background), *results.notes])
    columns = tuple(column for _, columns in by_step for column in columns)
    return ResultTable(results.scenario, caption, columns, tuple(mark_best(rows)))


def _columns(results: ScenarioResults, step: int) -> list[Column]:
    new = ", ".join(results.groups[step])
    if step == 0:
        return [Column("step 0", "all", new)]
    old = ", ".join(name for names in results.groups[:step] for name in names)
    about = {"old": old, "new": new, "all": f"{old}, {new}"}
    return [Column(f"step {step}", group, classes) for group, classes in about.items()]


def caption_of(rows: Sequence[Row], background: bool) -> str:
    """Return the caption of a table."""
    counted = "counted as a class" if background else "left out of every mean"
    sentences = [f"Mean IoU in %, background {counted}."]
    if not rows:
        return sentences[0]
    conventions = {str(sorted(run.conventions.items())) for row in rows for run in row.runs}
    if len(conventions) != 1:
        sentences.append("The rows were tested by different conventions: see their configs.")
    else:
        unseen = rows[0].runs[0].conventions.get("unseen")
        how = "counted as background" if unseen == "background" else "ignored"
        sentences.append(f"Classes not learned yet are {how} in testing.")
    seeds = {len(row.runs) for row in rows}
    if seeds != {1}:
        few, many = min(seeds), max(seeds)
        count = few if few == many else f"{few} to {many}"
        sentences.append(f"Mean ± standard deviation over {count} seeds.")
    if len([row for row in rows if not row.is_joint]) > 1:
        sentences.append("Best incremental method in bold.")
    return " ".join(sentences)


def mark_best(rows: Sequence[TableRow]) -> list[TableRow]:
    """Mark the best cell of every column among our incremental rows."""
    tops = []
    for i in range(len(rows[0].cells)):
        means = {row.cells[i].printed for row in rows if row.competes} - {None}
        # A single row has no best cell, and neither have equal rows, such as a shared step 0.
        tops.append(max(mean for mean in means if mean is not None) if len(means) > 1 else None)
    marked = []
    for row in rows:
        cells = tuple(
            replace(cell, best=top is not None and cell.printed == top)
            for cell, top in zip(row.cells, tops, strict=True)
        )
        marked.append(replace(row, cells=cells) if row.competes else row)
    return marked


def to_markdown(table: ResultTable) -> str:
    """Return a table as Markdown."""
    names = [markdown_text(f"{column.heading} {column.group}") for column in table.columns]
    lines = [
        f"**{markdown_text(table.title)}**",
        "",
        _pipes(["method", *names]),
        _pipes(["---", *["---:"] * len(names)]),
    ]
    for row in table.rows:
        cells = [f"**{cell.text}**" if cell.best else cell.text for cell in row.cells]
        name = markdown_text(row.name) if row.source == "ours" else f"*{markdown_text(row.name)}*"
        lines.append(_pipes([name, *cells]))
    return "\n".join([*lines, "", markdown_text(table.caption), ""])


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def to_csv(tables: Sequence[ResultTable]) -> str:
    """Return tables as one CSV, a line per cell; mean and deviation in percent."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                numbers = [
                    "" if value is None else f"{100 * value:.4f}" for value in (cell.mean, cell.std)
                ]
                place = [table.title, column.heading, column.group, row.name, row.source]
                writer.writerow([*map(csv_text, place), row.seeds or "", *numbers])
    return file.getvalue()


def to_latex(table: ResultTable) -> str:
    """Return a table as LaTeX for the package booktabs."""
    spans = table.headings()
    heads = [f"\\multicolumn{{{span}}}{{c}}{{{_latex(name)}}}" for name, span in spans]
    # A rule under each heading; the first column, the rows' names, has none.
    ends = list(accumulate((span for _, span in spans), initial=1))
    rules = "".join(f"\\cmidrule(lr){{{a + 1}-{b}}}" for a, b in pairwise(ends))
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_latex(table.title)}. {_latex(table.caption)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        " & ".join(["", *heads]) + " \\\\",
        rules,
        " & ".join(["Method", *(_latex(column.group) for column in table.columns)]) + " \\\\",
        "\\midrule",
    ]
    for place, row in enumerate(table.rows):
        if row.is_bound and place and not table.rows[place - 1].is_bound:
            lines.append("\\midrule")
        name = _latex(row.name)
        name = name if row.source == "ours" else f"\\textit{{{name}}}"
        lines.append(" & ".join([name, *map(_latex_cell, row.cells)]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def _latex_cell(cell: Cell) -> str:
    text = cell.text.replace("±", "$\\pm$").replace("−", "$-$")
    return f"\\textbf{{{text}}}" if cell.best else text


def _latex(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    special |= {"±": "$\\pm$", "−": "$-$", "“": "``", "”": "''"}
    return "".join(special.get(char, char) for char in one_line(text))
