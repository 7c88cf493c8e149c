"""Tables of every kind: the paper's groups, its results beside ours, and averaged orders."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from nacre.data.voc import CLASS_NAMES
from nacre.errors import NacreError
from nacre.report.kinds import make_tables, places
from nacre.report.published import later, later_sources, published
from nacre.report.results import Row, RunResult, ScenarioResults, load_results
from nacre.report.tables import ResultTable, TableRow, to_csv, to_latex, to_markdown
from nacre.runs.records import StepMetrics

ABLATION = (
    "lwf",
    {"name": "mib", "kd": "plain", "init": "random"},
    {"name": "mib", "init": "random"},
    "mib",
)


def row(table: ResultTable, name: str) -> TableRow:
    return next(one for one in table.rows if one.name == name)


def cell(table: ResultTable, name: str, heading: str, group: str) -> Any:
    i = [(one.heading, one.group) for one in table.columns].index((heading, group))
    return row(table, name).cells[i]


def last_iou(path: Path, step: int) -> dict[str, float]:
    content: dict[str, float] = json.loads((path / f"step-{step}/metrics.json").read_text())["iou"]
    return content


def mean(values: Any) -> float:
    numbers = list(values)
    return float(sum(numbers) / len(numbers))


def test_the_papers_results_are_complete_and_of_our_classes() -> None:
    tables = published()
    assert set(tables) == {"1", "2", "3", "S1", "S2", "S per class"}
    assert len(tables["1"].figures) == 9 * 6 * 3
    (place,) = [p for p in tables["1"].places if (p.task, p.setup) == ("15-5", "overlapped")]
    assert tables["1"].figures[place, "MiB", "all"] == pytest.approx(0.690)
    for groups in tables["S per class"].groups.values():
        assert groups[:20] == CLASS_NAMES


def test_table_1_groups_the_classes_of_all_later_steps(make_run: Any) -> None:
    paths = [
        make_run("a", "mib", scenario="voc/15-1/overlapped"),
        make_run("b", "ft", scenario="voc/15-5/disjoint"),
        make_run("c", "joint", scenario="voc/15-1/overlapped"),
    ]
    (table,) = make_tables(load_results(paths), "voc")
    # The order is the paper's, not that of the runs.
    assert table.headings() == [("15-5 disjoint", 3), ("15-1 overlapped", 3)]
    assert [line.name for line in table.rows] == ["FT", "MiB", "Joint"]
    iou = last_iou(paths[0], 5)
    later_mean = mean(iou[name] for name in CLASS_NAMES[15:])
    assert cell(table, "MiB", "15-1 overlapped", "16-20").mean == pytest.approx(later_mean)
    assert cell(table, "MiB", "15-5 disjoint", "all").text == ""
    assert row(table, "Joint").is_bound


def test_the_papers_results_are_beside_ours_and_marked(make_paper_run: Any) -> None:
    path = make_paper_run("a", "mib", "voc/15-5/overlapped")
    (table,) = make_tables(load_results([path]), "voc", paper=True)
    ours = cell(table, "MiB", "15-5 overlapped", "all")
    gap = cell(table, "MiB, ours − paper's", "15-5 overlapped", "all")
    assert cell(table, "MiB, paper's", "15-5 overlapped", "all").text == "69.0"
    assert gap.mean == pytest.approx(ours.mean - 0.69)
    assert gap.text[0] in "+−"
    # Methods that were not run here have only the paper's row.
    names = [line.name for line in table.rows]
    assert "EWC, paper's" in names
    assert "EWC" not in names
    assert all((", paper's" in line.name) == (line.source == "paper") for line in table.rows)
    assert "*MiB, paper's*" in to_markdown(table)
    assert "\\textit{MiB, paper's}" in to_latex(table)
    assert sum(",paper," in line for line in to_csv([table]).splitlines()) == 9 * 3


def test_ablation_names_its_four_rows(make_run: Any) -> None:
    paths = [
        make_run(f"run{i}", method, scenario="voc/19-1/overlapped")
        for i, method in enumerate((*ABLATION, "ft"))
    ]
    (table,) = make_tables(load_results(paths), "ablation", paper=True)
    ours = [one.name for one in table.rows if one.source == "ours"]
    assert ours == ["LwF*", "LwF + CE*", "LwF + CE + KD*", "MiB (CE + KD + init)*"]
    assert len(table.rows) == 12
    expected = mean(last_iou(paths[1], 1)[name] for name in CLASS_NAMES)
    assert cell(table, "LwF + CE*", "19-1 overlapped", "all").mean == pytest.approx(expected)


def test_orders_of_ade20k_are_averaged_seed_by_seed(make_run: Any) -> None:
    paths = {
        (order, seed): make_run(
            f"{order}{seed}", "mib", seed, scenario=f"ade20k/50-50{order}/partition"
        )
        for order in ("", "b")
        for seed in (1, 2)
    }
    results = load_results(list(paths.values()))
    (table,) = make_tables(results, "ade20k", paper=True)
    assert table.headings() == [("50-50 partition", 4)]
    expected = []
    for seed in (1, 2):
        both = []
        for i, order in enumerate(("", "b")):
            names = places("51-100").names(results[i])
            both.append(mean(last_iou(paths[order, seed], 2)[name] for name in names))
        expected.append(mean(both))
    found = cell(table, "MiB*", "50-50 partition", "51-100")
    assert found.values == pytest.approx(expected)
    assert "Mean of the class orders a and b." in table.caption


def test_a_single_class_order_is_named_as_one(make_run: Any) -> None:
    paths = [
        make_run("a", "mib", scenario="ade20k/50-50/partition"),
        make_run("b", "mib", scenario="ade20k/50-50b/partition"),
        make_run("c", "lwf", scenario="ade20k/50-50b/partition"),
        make_run("d", "ft", scenario="ade20k/50-50c/partition"),
    ]
    (table,) = make_tables(load_results(paths), "ade20k")
    assert "One order alone in 50-50 partition: LwF." in table.caption
    # The third published order is not part of the paper's mean.
    assert "FT" not in [one.name for one in table.rows]
    (alone,) = make_tables(load_results(paths[:1]), "ade20k", paper=True)
    assert "one class order; the paper's is the mean of two" in alone.caption


def test_last_puts_all_scenarios_side_by_side(make_run: Any) -> None:
    scenarios = ("scenes/4-2-2/overlapped", "scenes/4-1/disjoint", "voc/15-1/disjoint")
    paths = [make_run(name, "mib", scenario=name) for name in scenarios]
    (table,) = make_tables(load_results(paths), "last", paper=True)
    assert table.headings() == list(zip(scenarios, (4, 6, 3), strict=True))
    assert [column.group for column in table.columns] == [
        *("1-4", "5-6", "7-8", "all"),
        *("1-4", "5", "6", "7", "8", "all"),
        *("1-15", "16-20", "all"),
    ]
    assert cell(table, "MiB, paper's", "voc/15-1/disjoint", "all").text == "37.9"
    assert cell(table, "MiB, paper's", "scenes/4-1/disjoint", "all").text == ""


def test_classes_have_a_column_each(make_run: Any) -> None:
    path = make_run("a", "mib", scenario="voc/15-5/overlapped")
    (table,) = make_tables(load_results([path]), "classes", paper=True)
    assert [one.group for one in table.columns] == [*CLASS_NAMES, "1-15", "16-20", "all"]
    heading = "voc/15-5/overlapped"
    assert cell(table, "MiB*", heading, "person").mean == last_iou(path, 1)["person"]
    expected = published()["S per class"].figures
    theirs = next(
        v
        for (p, m, c), v in expected.items()
        if (p.task, p.setup, m, c) == ("15-5", "overlapped", "MiB", "person")
    )
    assert cell(table, "MiB, paper's", heading, "person").mean == theirs


def test_background_counts_in_means_but_not_in_classes(make_run: Any) -> None:
    path = make_run("a", "mib")
    (table,) = make_tables(load_results([path]), "classes", background=True)
    iou = last_iou(path, 2)
    heading = "scenes/4-2-2/overlapped"
    assert cell(table, "MiB", heading, "all").mean == pytest.approx(mean(iou.values()))
    name = next(name for name in iou if name != "background")
    assert cell(table, "MiB", heading, name).mean == iou[name]
    assert "background counted" in table.caption


@pytest.mark.parametrize(
    ("kind", "numbers"),
    [
        ("voc", ["1"]),
        ("ade20k", ["2"]),
        ("ablation", ["3"]),
        ("lwf-mc", ["S1", "S2"]),
        ("classes", ["S per class"]),
        ("last", ["1", "2"]),
        ("later", []),
    ],
)
def test_tables_without_runs_have_all_results_of_the_paper(kind: str, numbers: list[str]) -> None:
    tables = make_tables([], kind, paper=True)
    sources = [published()[number] for number in numbers] or later().values()
    expected = [value for source in sources for value in source.figures.values()]
    shown = [one.mean for table in tables for line in table.rows for one in line.cells]
    assert sorted(value for value in shown if value is not None) == sorted(expected)
    for table in tables:
        assert {line.source for line in table.rows} == {"paper"}
        assert re.search("copied from .*, not run here", table.caption)
        assert to_latex(table).isascii()


def test_tables_without_contents_are_refused(make_run: Any) -> None:
    results = load_results([make_run("a")])
    with pytest.raises(NacreError, match=r"no run fits the table 'voc'.*voc/19-1/disjoint"):
        make_tables(results, "voc")
    with pytest.raises(NacreError, match="no runs for the table 'voc'"):
        make_tables([], "voc")
    with pytest.raises(NacreError, match="did you mean 'ablation'"):
        make_tables(results, "ablatoin")
    with pytest.raises(NacreError, match="no results after every step"):
        make_tables(results, "steps", paper=True)
    with pytest.raises(NacreError, match="the paper excludes the background"):
        make_tables(results, "last", paper=True, background=True)


def test_results_of_later_methods_are_marked_and_averaged_as_in_their_papers(make_run: Any) -> None:
    scenario = "voc/15-1/overlapped"
    ewf = {"name": "plop", "fusion": "sqrt", "freeze": ["old_rows"]}
    paths = [make_run("a", "plop", scenario=scenario), make_run("b", ewf, scenario=scenario)]
    (table,) = make_tables(load_results(paths), "later", paper=True)
    iou = last_iou(paths[0], 5)
    old = mean(iou[name] for name in ("background", *CLASS_NAMES[:15]))
    new = mean(iou[name] for name in CLASS_NAMES[15:])
    assert cell(table, "PLOP*", "15-1 overlapped", "1-15").mean == pytest.approx(old)
    assert cell(table, "PLOP*", "15-1 overlapped", "16-20").mean == pytest.approx(new)
    assert cell(table, "PLOP, published", "15-1 overlapped", "all").text == "54.6"
    names = [line.name for line in table.rows]
    assert {"SSUL-M, published", "STAR, published", "LGKD, published"} <= set(names)
    assert [name for name in names if "published" not in name] == ["PLOP*", "PLOP + EWF*"]
    assert names.index("PLOP + EWF, published") - names.index("PLOP + EWF*") == 1
    assert "not run here" in table.caption
    assert "SSUL-M: stores 100 images" in table.caption


def test_every_result_of_later_methods_has_a_source_and_a_consistent_mean() -> None:
    for data, count in {"voc": 20, "ade20k": 150}.items():
        table, sentences = later()[data], later_sources(data)
        assert all(any(one.startswith(f"{name}: ") for one in sentences) for name in table.methods)
        for place, groups in table.groups.items():
            first = int(place.task.partition("-")[0])
            for method in table.methods:
                found = [table.figures.get((place, method, group)) for group in groups]
                if None in found:
                    continue
                old, new, every = (value or 0 for value in found)
                means = [((first + b) * old + (count - first) * new) / (count + b) for b in (0, 1)]
                # Within what rounding and means of several runs may do.
                assert min(abs(every - one) for one in means) < 0.006, (place, method)


def test_class_names_are_not_taken_for_columns(tmp_path: Path) -> None:
    groups = (("3", "1"), ("all", "1-2"), ("2",))
    iou = {"background": 0.9, "3": 0.1, "1": 0.2, "all": 0.3, "1-2": 0.4, "2": 0.5}
    results = results_of(groups, iou, tmp_path)
    (last,) = make_tables([results], "last")
    assert [(one.group, one.about) for one in last.columns] == [
        ("1-2", "3, 1"),
        ("3-4", "all, 1-2"),
        ("5", "2"),
        ("all", "3, 1, all, 1-2, 2"),
    ]
    assert [cell.text for cell in last.rows[0].cells] == ["15.0", "35.0", "50.0", "30.0"]
    (classes,) = make_tables([results], "classes")
    names = ["3", "1", "“all”", "“1-2”", "2", "1-2", "3-4", "5", "all"]
    assert [one.group for one in classes.columns] == names
    texts = [cell.text for cell in classes.rows[0].cells]
    assert texts == ["10.0", "20.0", "30.0", "40.0", "50.0", "15.0", "35.0", "50.0", "30.0"]


def results_of(
    groups: tuple[tuple[str, ...], ...], iou: dict[str, float], path: Path
) -> ScenarioResults:
    """Return the results of one run, which has these IoUs after its last step."""
    content = {"step": 2, "classes": list(iou), "iou": iou, "mean_iou": {}, "images": 1}
    step = StepMetrics(**content, confusion=[[0] * len(iou)] * len(iou))
    conventions = {"unseen": "ignored"}
    run = RunResult(
        path, "mine.yaml", "mib", 1, groups, conventions, (step,) * 3, {}, (), {}, {}, {}, ()
    )
    return ScenarioResults("mine.yaml", groups, (Row("MiB", (run,)),))
