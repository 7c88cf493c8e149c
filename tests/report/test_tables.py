"""Tables: their cells, the best cells, and the formats."""

import csv
import io
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

import pytest
from rich.console import Console

from nacre.cli.results import print_table
from nacre.report.kinds import make_tables
from nacre.report.results import ScenarioResults, load_results
from nacre.report.tables import (
    Cell,
    Column,
    ResultTable,
    TableRow,
    mark_best,
    steps_table,
    to_csv,
    to_latex,
    to_markdown,
)


@pytest.fixture
def results(runs: Path) -> ScenarioResults:
    (found,) = load_results([runs])
    return found


def test_cells_are_the_metrics(results: ScenarioResults) -> None:
    table = steps_table(results)
    mib = next(row for row in table.rows if row.name == "MiB")
    run = results.rows[2].runs[0]
    expected = [run.mean(0, "all")] + [
        run.mean(step, group) for step in (1, 2) for group in ("old", "new", "all")
    ]
    assert [cell.mean for cell in mib.cells] == expected
    with_background = steps_table(results, background=True)
    assert with_background.rows[2].cells[0].mean == run.mean(0, "all", background=True)
    assert "left out" in table.caption
    assert "counted as a class" in with_background.caption


def test_the_best_cells_of_a_column_are_marked() -> None:
    rows = [
        TableRow("a", (Cell((0.5001,)), Cell((0.1,)), Cell((0.3,))), 1),
        TableRow("b", (Cell((0.5002,)), Cell((0.2,)), Cell((0.3,))), 1),
        TableRow("c", (Cell((0.4,)), Cell(()), Cell((0.3,))), 1),
        TableRow("bound", (Cell((0.9,)), Cell((0.9,)), Cell((0.9,))), 1, is_bound=True),
    ]
    best = [[cell.best for cell in row.cells] for row in mark_best(rows)]
    assert best == [[True, False, False], [True, True, False], [False] * 3, [False] * 3]


def test_seeds_are_averaged_with_their_deviation(make_run: Any) -> None:
    paths = [make_run(f"run{seed}", seed=seed) for seed in (1, 2, 3)]
    (results,) = load_results(paths)
    table = steps_table(results)
    values = [run.mean(2, "all") for run in results.rows[0].runs]
    numbers = [100 * value for value in values if value is not None]
    assert table.rows[0].cells[-1].text == f"{fmean(numbers):.1f} ± {stdev(numbers):.1f}"
    assert "over 3 seeds" in table.caption


def small_table() -> ResultTable:
    columns = (Column("step 1", "old"), Column("step 1", "new"), Column("step_2", "all"))
    rows = (
        TableRow("A & B_1", (Cell((0.25, 0.35), best=True), Cell(()), Cell((0.5,))), 2),
        TableRow("Joint", (Cell(()), Cell(()), Cell((0.75,))), 1, is_bound=True),
    )
    return ResultTable("voc/15-5|x", "Mean IoU in %.", columns, rows)


def test_markdown() -> None:
    lines = to_markdown(small_table()).splitlines()
    assert "| method | step 1 old | step 1 new | step_2 all |" in lines
    assert "| A & B_1 | **30.0 ± 7.1** |  | 50.0 |" in lines
    assert "| Joint |  |  | 75.0 |" in lines
    assert lines[-1] == "Mean IoU in %."


def test_latex_is_escaped_and_has_spanning_headings() -> None:
    text = to_latex(small_table())
    assert "\\multicolumn{2}{c}{step 1} & \\multicolumn{1}{c}{step\\_2}" in text
    assert "\\cmidrule(lr){2-3}\\cmidrule(lr){4-4}" in text
    assert "A \\& B\\_1 & \\textbf{30.0 $\\pm$ 7.1} &  & 50.0 \\\\" in text
    assert "Mean IoU in \\%." in text
    assert text.count("\\midrule") == 2
    assert text.count("{") == text.count("}")


def test_a_csv_has_every_cell() -> None:
    rows = list(csv.DictReader(io.StringIO(to_csv([small_table()]))))
    assert len(rows) == 6
    assert rows[0]["mean"] == "30.0000"
    assert rows[0]["std"] == "7.0711"
    assert rows[1]["mean"] == rows[1]["std"] == ""
    assert rows[2]["seeds"] == "2"


@pytest.mark.parametrize(("width", "is_terminal"), [(40, False), (30, True), (100, True)])
def test_every_number_is_printed_whatever_the_width(
    results: ScenarioResults, width: int, is_terminal: bool
) -> None:
    table = make_tables([results], "classes")[0]
    lines = printed(table, width, is_terminal).splitlines()
    # A terminal gets blocks of its width, a pipe gets whole lines.
    assert (max(map(len, lines)) <= width) == is_terminal
    for row in table.rows:
        cells = [line.split()[1:] for line in lines if line.split()[:1] == [row.name]]
        assert [text for line in cells for text in line] == [
            cell.text for cell in row.cells if cell.text
        ]
        assert is_terminal or len(cells) == 1
    words = " ".join(lines).split()
    assert all(column.group in words for column in table.columns)


def printed(table: ResultTable, width: int, is_terminal: bool) -> str:
    console = Console(width=width, file=io.StringIO(), force_terminal=is_terminal, no_color=True)
    print_table(console, table)
    assert isinstance(console.file, io.StringIO)
    return re.sub("\x1b[^m]*m", "", console.file.getvalue())


HOSTILE = (
    "=1+1",
    "+2",
    "-3",
    "@x",
    "<script>alert(1)</script>",
    "[a](http://x)",
    "a\nb",
    "\x1b[31m",
)


@pytest.mark.parametrize("name", HOSTILE)
def test_a_name_is_text_in_every_form(name: str) -> None:
    columns = (Column("h", name),)
    table = ResultTable(name, name, columns, (TableRow(name, (Cell((0.5,)),), 1),))
    (row,) = csv.DictReader(io.StringIO(to_csv([table])))
    for key in ("table", "classes", "method"):
        assert row[key][0] not in "=+-@"
        assert row[key].isprintable()
    markdown, latex = to_markdown(table), to_latex(table)
    assert "<script" not in markdown
    assert "[a](" not in markdown
    assert "\x1b" not in markdown + latex
    assert all(line.startswith("|") for line in markdown.splitlines()[2:5])


def test_a_difference_below_zero_stays_a_number_in_a_csv() -> None:
    row = TableRow("MiB, ours − paper's", (Cell((-0.5,), signed=True),), 0, source="difference")
    table = ResultTable("t", "", (Column("h", "all"),), (row,))
    (line,) = csv.DictReader(io.StringIO(to_csv([table])))
    assert line["mean"] == "-50.0000"
