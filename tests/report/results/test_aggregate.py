"""Run folders as results: what is read, refused, averaged and named."""

import json
from pathlib import Path
from typing import Any

import pytest

from nacre.errors import NacreError
from nacre.report.results.aggregate import group_runs
from nacre.report.results.runs import load_run, load_runs
from nacre.training.presets import PRESETS


def test_reads_what_the_metrics_files_hold(runs: Path) -> None:
    run = load_run(runs / "mib")
    on_disk = json.loads((runs / "mib" / "step-2" / "metrics.json").read_text())
    assert (run.method, run.seed, run.merged) == ("mib", 1, False)
    assert [len(names) for names in run.groups] == [4, 2, 2]
    assert run.mean(2, "old") == on_disk["mean_iou"]["old_without_background"]
    assert run.mean(2, "old", background=True) == on_disk["mean_iou"]["old_with_background"]
    assert run.mean(0, "old") is None
    assert run.starts[0]["device"] == "cpu"
    assert run.events[0].kind == "run"


def test_joint_training_stands_at_the_last_step_only(runs: Path) -> None:
    run = load_run(runs / "joint")
    assert run.merged
    assert run.after(0) is None
    assert run.mean(1, "all") is None
    assert run.mean(2, "all") == run.steps[0].mean_iou["all_without_background"]
    assert run.mean(2, "step_0") is not None


def test_a_folder_of_runs_stands_for_all_of_them(runs: Path) -> None:
    assert {run.method for run in load_runs([runs])} == {"ft", "lwf", "mib", "joint"}
    # The same run given twice is one run.
    assert len(load_runs([runs, runs / "mib"])) == 4


def test_an_unfinished_run_is_refused(make_run: Any) -> None:
    path = make_run("half")
    (path / "metrics.json").unlink()
    with pytest.raises(NacreError, match=r"not a finished run: it has 3 tested step"):
        load_run(path)


def test_a_foreign_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match="is not a run folder"):
        load_runs([tmp_path])


def test_metrics_of_another_kind_are_refused(make_run: Any) -> None:
    path = make_run("other")
    (path / "metrics.json").write_text('{"accuracy": 1}')
    with pytest.raises(NacreError, match="not nacre's"):
        load_run(path)


def test_runs_that_differ_in_their_seed_are_one_row(make_run: Any) -> None:
    paths = [make_run("a", seed=2), make_run("b", seed=1)]
    (results,) = group_runs(load_runs(paths))
    (row,) = results.rows
    assert [run.seed for run in row.runs] == [1, 2]
    values = [run.mean(2, "all") for run in row.runs]
    assert row.mean(2, "all") == pytest.approx(sum(v for v in values if v is not None) / 2)


def test_devices_and_workers_do_not_make_two_rows(make_run: Any) -> None:
    paths = [make_run("a"), make_run("b", seed=2, train={"num_workers": 1})]
    (results,) = group_runs(load_runs(paths))
    assert len(results.rows) == 1


def test_a_config_written_before_an_option_was_there_is_the_same(make_run: Any) -> None:
    paths = [make_run("a"), make_run("b", seed=2)]
    config = paths[0] / "config.yaml"
    lines = [line for line in config.read_text().splitlines() if "momentum" not in line]
    config.write_text("\n".join(lines))
    (results,) = group_runs(load_runs(paths))
    assert len(results.rows) == 1


def test_a_run_of_a_method_that_is_not_installed_can_be_read(make_run: Any) -> None:
    path = make_run("a")
    for name in ("config.yaml", "metrics.json"):
        file = path / name
        file.write_text(file.read_text().replace("mib", "elsewhere"))
    (results,) = group_runs(load_runs([path]))
    assert results.rows[0].name == "elsewhere"


def test_variants_of_a_method_are_named_by_what_differs(make_run: Any) -> None:
    paths = [
        make_run("mib"),
        make_run("plain", {"name": "mib", "kd": "plain", "init": "random"}),
        make_run("longer", train={"epochs": 99}),
    ]
    (results,) = group_runs(load_runs(paths))
    names = [row.name for row in results.rows]
    assert len(set(names)) == 3
    # The method's defaults are not told, a recipe has none.
    epochs = PRESETS["demo"]["train"]["epochs"]
    assert f"MiB (kd=plain, init=random, train.epochs={epochs})" in names
    assert "MiB (train.epochs=99)" in names


def test_the_method_as_it_is_has_its_plain_name(make_run: Any) -> None:
    paths = [make_run("mib"), make_run("plain", {"name": "mib", "init": "random"})]
    (results,) = group_runs(load_runs(paths))
    assert {row.name for row in results.rows} == {"MiB", "MiB (init=random)"}


def test_rows_stand_in_the_order_of_the_paper(runs: Path) -> None:
    (results,) = group_runs(load_runs([runs]))
    assert [row.name for row in results.rows] == ["FT", "LwF", "MiB", "Joint"]
    assert [row.name for row in results.incremental] == ["FT", "LwF", "MiB"]


def test_scenarios_are_kept_apart(make_run: Any) -> None:
    paths = [make_run("a"), make_run("b", scenario="scenes/4-4/disjoint")]
    found = group_runs(load_runs(paths))
    assert [one.scenario for one in found] == ["scenes/4-2-2/overlapped", "scenes/4-4/disjoint"]


def test_kept_is_the_share_of_step_0_that_is_left(runs: Path) -> None:
    (results,) = group_runs(load_runs([runs / "mib"]))
    row = results.rows[0]
    before = row.mean(0, "all")
    after = row.mean(2, "step_0")
    assert before is not None
    assert after is not None
    assert row.kept() == pytest.approx(after / before)
