"""A row has a method's plain name beside the paper's only if it was run as in the paper."""

from pathlib import Path
from typing import Any

import pytest

from nacre.report.kinds import make_tables
from nacre.report.published import deviations
from nacre.report.results import load_results, load_run
from nacre.report.tables import ResultTable, to_latex, to_markdown

TABLE_1 = ("ft", "pi", "ewc", "rw", "lwf", "lwf-mc", "ilt", "mib", "joint")
TABLE_2 = ("ft", "lwf", "lwf-mc", "ilt", "mib", "joint")
ABLATION = (
    "lwf",
    {"name": "mib", "kd": "plain", "init": "random"},
    {"name": "mib", "init": "random"},
    "mib",
)
VOC = [
    f"voc/{task}/{how}" for task in ("19-1", "15-5", "15-1") for how in ("disjoint", "overlapped")
]
ADE20K = [
    f"ade20k/{task}{b}/partition" for task in ("100-50", "100-10", "50-50") for b in ("", "b")
]
ROWS = [
    *[(method, scenario) for scenario in VOC for method in TABLE_1],
    *[(method, scenario) for scenario in ADE20K for method in TABLE_2],
    *[(method, scenario) for scenario in VOC if "overlapped" in scenario for method in ABLATION],
    *[(method, "voc/15-1/overlapped") for method in ("lwf-mc-c", "lwf-mc-d")],
]
SCENARIO = "voc/15-5/overlapped"


def ours(table: ResultTable) -> list[str]:
    return [row.name for row in table.rows if row.source == "ours"]


@pytest.mark.parametrize(("method", "scenario"), ROWS, ids=str)
def test_a_run_as_in_the_paper_has_no_deviation(
    method: Any, scenario: str, make_paper_run: Any
) -> None:
    assert deviations(load_run(make_paper_run("a", method, scenario))) == ()


@pytest.mark.parametrize(
    ("changes", "note"),
    [
        ({"method": {"name": "mib", "weight": 1}}, "method.weight: 1 (paper: 10)"),
        ({"model": {"backbone": "resnet18"}}, "model.backbone: resnet18 (paper: resnet101)"),
        ({"model": {"weights": "none"}}, "model.weights: none, a random start (paper: ImageNet)"),
        ({"images": {"crop_size": 32}}, "images.crop_size: 32 (paper: 512)"),
        ({"train": {"epochs": 1}}, "train.epochs: 1 (paper: 30)"),
        ({"train": {"micro_batch": 2}}, "train.micro_batch: 2 (paper: none)"),
        ({"train": {"nesterov": False}}, "train.nesterov: false (paper: true)"),
        (
            {"labels": {"unseen": "background"}},
            "labels.unseen: background (paper: ignored)",
        ),
    ],
)
def test_a_deviation_marks_the_row_and_is_in_the_caption(
    changes: dict[str, Any], note: str, make_paper_run: Any
) -> None:
    more = {key: value for key, value in changes.items() if key != "method"}
    path = make_paper_run("a", changes.get("method", "mib"), SCENARIO, **more)
    assert deviations(load_run(path)) == (note,)
    for kind in ("voc", "last", "classes"):
        (table,) = make_tables(load_results([path]), kind, paper=True)
        assert ours(table) == ["MiB*"]
        assert f"All *: {note}." in table.caption
        names = [row.name for row in table.rows]
        assert "MiB, paper's" in names
        assert "MiB, ours − paper's" not in names
    assert "| MiB&#42; |" in to_markdown(table)
    assert "MiB*" in to_latex(table)
    # Without the paper's figures there is nothing to be taken for.
    (alone,) = make_tables(load_results([path]), "voc")
    assert ours(alone) == ["MiB"]


def test_the_released_weight_of_15_1_is_not_the_papers(make_paper_run: Any) -> None:
    path = make_paper_run("a", {"name": "mib", "weight": 10}, "voc/15-1/overlapped")
    assert deviations(load_run(path)) == ("method.weight: 10 (paper: 100)",)


def images(path: Path, scenario: str, **counts: int) -> dict[str, Any]:
    noted = load_run(path).fingerprint
    for key, count in counts.items():
        noted[key][0] |= {"images": count, "sha256": "1" * 64}
        noted[key][-1] |= {"images": count, "sha256": "1" * 64}
    return noted


@pytest.mark.parametrize(
    ("method", "counts", "notes"),
    [
        ("mib", {"steps": 40}, ["training images: 80 (paper: 11,713)"]),
        ("mib", {"tests": 7}, ["test images: 7 (paper: 1,449)"]),
        ("mib", {"tests": 1449}, ["test images: others than the paper's"]),
        (
            "joint",
            {"steps": 80, "tests": 9},
            ["training images: 80 (paper: 10,582)", "test images: 9 (paper: 1,449)"],
        ),
    ],
)
def test_a_run_on_part_of_the_images_deviates(
    method: str, counts: dict[str, int], notes: list[str], make_paper_run: Any
) -> None:
    whole = make_paper_run("whole", method, SCENARIO)
    path = make_paper_run("a", method, SCENARIO, fingerprint=images(whole, SCENARIO, **counts))
    assert list(deviations(load_run(path))) == notes


def test_common_deviations_are_listed_once_and_others_by_row(make_paper_run: Any) -> None:
    small = {"train": {"epochs": 1}}
    paths = [
        make_paper_run("a", "ft", SCENARIO, **small),
        make_paper_run("b", {"name": "mib", "weight": 1}, SCENARIO, **small),
        make_paper_run("c", "mib", "voc/15-1/overlapped", **small),
        make_paper_run("d", "lwf", SCENARIO),
    ]
    (table,) = make_tables(load_results(paths), "voc", paper=True)
    assert ours(table) == ["FT*", "LwF", "MiB*"]
    assert table.caption.count("train.epochs") == 1
    assert "All *: train.epochs: 1 (paper: 30)." in table.caption
    assert "MiB* (15-5 overlapped): method.weight: 1 (paper: 10)." in table.caption


def test_a_run_of_a_method_that_is_not_installed_deviates(make_paper_run: Any) -> None:
    path = make_paper_run("a", "mib", SCENARIO)
    for name in ("config.yaml", "metrics.json"):
        file = path / name
        file.write_text(file.read_text().replace("mib", "elsewhere"))
    (note,) = deviations(load_run(path))
    assert note.startswith("cannot be compared with the preset `paper`")
