"""A table for the terminal, Markdown, CSV and LaTeX (booktabs)."""

import csv
import io
from collections.abc import Sequence
from itertools import accumulate, pairwise

from nacre.report.tables.cells import Cell, ResultTable
from nacre.utils.io import csv_text, markdown_text, one_line

CSV_FIELDS = ("table", "columns", "classes", "method", "source", "seeds", "mean", "std")


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


def to_csv(tables: Sequence[ResultTable]) -> str:
    """Return tables as one CSV, a line a figure; mean and deviation in per cent."""
    file = io.StringIO()
    writer = csv.writer(file, lineterminator="\n")
    writer.writerow(CSV_FIELDS)
    for table in tables:
        for row in table.rows:
            for column, cell in zip(table.columns, row.cells, strict=True):
                figures = [_number(cell.mean), _number(cell.std)]
                place = [table.title, column.heading, column.group, row.name, row.source]
                writer.writerow([*map(csv_text, place), row.seeds or "", *figures])
    return file.getvalue()


def to_latex(table: ResultTable) -> str:
    """Return a table as LaTeX; it needs the package booktabs."""
    spans = table.headings()
    heads = [f"\\multicolumn{{{span}}}{{c}}{{{_escape(name)}}}" for name, span in spans]
    lines = [
        "\\begin{table}",
        "\\centering",
        f"\\caption{{{_escape(table.title)}. {_escape(table.caption)}}}",
        f"\\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        "\\toprule",
        " & ".join(["", *heads]) + " \\\\",
        _latex_rules([span for _, span in spans]),
        " & ".join(["Method", *(_escape(column.group) for column in table.columns)]) + " \\\\",
        "\\midrule",
    ]
    for place, row in enumerate(table.rows):
        if row.is_bound and place and not table.rows[place - 1].is_bound:
            lines.append("\\midrule")
        name = _escape(row.name)
        name = name if row.source == "ours" else f"\\textit{{{name}}}"
        lines.append(" & ".join([name, *map(_latex_cell, row.cells)]) + " \\\\")
    return "\n".join([*lines, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""])


def _latex_rules(spans: Sequence[int]) -> str:
    """Return a rule under each heading; the first column, the rows' names, has none."""
    ends = list(accumulate(spans, initial=1))
    return "".join(f"\\cmidrule(lr){{{a + 1}-{b}}}" for a, b in pairwise(ends))


def _latex_cell(cell: Cell) -> str:
    text = cell.text.replace("±", "$\\pm$").replace("−", "$-$")
    return f"\\textbf{{{text}}}" if cell.best else text


def _escape(text: str) -> str:
    special = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
    special |= {char: f"\\{char}" for char in "&%$#_{}"}
    special |= {"±": "$\\pm$", "−": "$-$", "“": "``", "”": "''"}
    return "".join(special.get(char, char) for char in one_line(text))


def _pipes(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.4f}"
