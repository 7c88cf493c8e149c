"""Run folders as results: reading, refusing, averaging and naming."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from nacre.errors import NacreError
from nacre.report.kinds import make_tables
from nacre.report.published import published_name
from nacre.report.results import load_results, load_run, load_runs
from nacre.report.tables import steps_table


def test_a_run_has_the_contents_of_its_metrics_files(runs: Path) -> None:
    run = load_run(runs / "mib")
    on_disk = json.loads((runs / "mib" / "step-2" / "metrics.json").read_text())
    assert (run.method, run.seed, run.is_joint) == ("mib", 1, False)
    assert [len(names) for names in run.groups] == [4, 2, 2]
    assert run.mean(2, "old") == on_disk["mean_iou"]["old_without_background"]
    assert run.mean(2, "old", background=True) == on_disk["mean_iou"]["old_with_background"]
    assert run.mean(0, "old") is None
    assert run.starts[0]["device"] == "cpu"
    assert run.events[0].kind == "run"


def test_joint_training_has_only_the_last_step(runs: Path) -> None:
    run = load_run(runs / "joint")
    assert run.is_joint
    assert run.after(0) is None
    assert run.mean(1, "all") is None
    assert run.mean(2, "all") == run.steps[0].mean_iou["all_without_background"]
    assert run.mean(2, "step_0") is not None


def test_a_folder_of_runs_stands_for_all_of_them(runs: Path) -> None:
    assert {run.method for run in load_runs([runs])} == {"ft", "lwf", "mib", "joint"}
    # The same run given twice is one run.
    assert len(load_runs([runs, runs / "mib"])) == 4


def test_other_folders_are_refused(make_run: Any, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NacreError, match="is not a run folder"):
        load_runs([tmp_path / "empty"])
    path = make_run("half")
    (path / "metrics.json").unlink()
    with pytest.raises(NacreError, match=r"not a finished run: it has 3 tested step"):
        load_run(path)


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"classes": ["x"]}, "`iou_by_step_and_class` has other steps or classes"),
        ({"iou_by_step_and_class": [[[[[]]]]]}, "iou_by_step_and_class.0.0"),
        ({"scenario": ...}, "scenario: missing"),
    ],
)
def test_malformed_metrics_are_refused(make_run: Any, changes, error) -> None:
    path = make_run("other") / "metrics.json"
    content = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({key: one for key, one in content.items() if one is not ...}))
    with pytest.raises(NacreError, match=rf"metrics\.json is not nacre's: .*{error}"):
        load_run(path.parent)


def test_runs_that_differ_in_their_seed_are_one_row(make_run: Any) -> None:
    paths = [make_run("a", seed=2), make_run("b", seed=1)]
    (results,) = load_results(paths)
    (row,) = results.rows
    assert [run.seed for run in row.runs] == [1, 2]
    values = [run.mean(2, "all") for run in row.runs]
    assert row.mean(2, "all") == pytest.approx(sum(v for v in values if v is not None) / 2)


def test_configs_without_later_keys_and_with_other_workers_are_one_row(make_run: Any) -> None:
    paths = [make_run("a"), make_run("b", seed=2, train={"num_workers": 1})]
    config = paths[0] / "config.yaml"
    lines = [line for line in config.read_text().splitlines() if "nesterov" not in line]
    config.write_text("\n".join(lines))
    (results,) = load_results(paths)
    assert len(results.rows) == 1


def test_a_run_of_a_method_that_is_not_installed_can_be_read(make_run: Any) -> None:
    path = make_run("a")
    for name in ("config.yaml", "metrics.json"):
        file = path / name
        file.write_text(file.read_text().replace("mib", "elsewhere"))
    (results,) = load_results([path])
    assert results.rows[0].name == "elsewhere"


def test_variants_of_a_method_are_named_by_what_differs(make_run: Any) -> None:
    paths = [
        make_run("mib"),
        make_run("plain", {"name": "mib", "kd": "plain", "init": "random"}),
        make_run("longer", train={"epochs": 99}),
        make_run("usual", {"name": "mib", "init": "random"}, scenario="scenes/4-4/disjoint"),
        make_run("other", scenario="scenes/4-4/disjoint"),
    ]
    results, others = load_results(paths)
    names = [row.name for row in results.rows]
    assert len(set(names)) == 3
    assert {row.name for row in others.rows} == {"MiB", "MiB (init=random)"}
    # Default values of the method are not part of the names.
    assert "MiB (init=random, kd=plain, train.epochs=4)" in names
    assert "MiB (train.epochs=99)" in names


@pytest.mark.parametrize(
    "changes",
    [
        {"train": {"micro_batch": 2}},
        {"images": {"crop_size": 32, "crop": "paper"}},
        {"train": {"precision": "tf32"}},
        {"labels": {"unseen": "background"}},
    ],
)
def test_runs_that_differ_in_more_than_their_seed_are_two_rows(
    make_run: Any, changes: dict[str, Any]
) -> None:
    paths = [make_run("a"), make_run("b", seed=2, **changes)]
    (results,) = load_results(paths)
    assert [len(row.runs) for row in results.rows] == [1, 1]
    assert len({row.name for row in results.rows}) == 2


def test_a_memory_of_images_marks_a_row_as_in_papers(make_run: Any) -> None:
    (results,) = load_results([make_run("a"), make_run("b", memory=100)])
    assert [row.name for row in results.rows] == ["MiB", "MiB-M (memory=100)"]
    assert [published_name(row) for row in results.rows] == ["MiB", "MiB-M"]


def test_a_copy_of_a_run_is_not_a_second_seed(make_run: Any) -> None:
    path = make_run("a")
    shutil.copytree(path, path.parent / "copy")
    (results,) = load_results([path.parent])
    assert [len(row.runs) for row in results.rows] == [1]
    (note,) = results.notes
    assert "copy has the seed and the results of" in note
    table = steps_table(results)
    assert "±" not in table.rows[0].cells[0].text
    assert note in table.caption
    for kind in ("last", "classes"):
        assert note in make_tables([results], kind)[0].caption


def test_one_seed_with_two_results_is_two_rows(make_run: Any) -> None:
    paths = [make_run("a"), make_run("b"), make_run("c", seed=2)]
    change_results(paths[1])
    (results,) = load_results(paths)
    assert [len(row.runs) for row in results.rows] == [1, 1, 1]
    assert [row.name for row in results.rows] == [
        "MiB (seed 2, c)",
        "MiB (seed 1, a)",
        "MiB (seed 1, b)",
    ]
    assert "One config and one seed, but other results" in results.notes[0]


def change_results(path: Path) -> None:
    file = path / "step-2" / "metrics.json"
    metrics = json.loads(file.read_text())
    metrics["mean_iou"]["all_without_background"] /= 2
    file.write_text(json.dumps(metrics))


def test_runs_on_other_images_are_not_seeds_of_each_other(make_run: Any) -> None:
    scenario = "voc/15-5/overlapped"
    paths = [make_run("a", scenario=scenario), make_run("b", seed=2, scenario=scenario)]
    (results,) = load_results(paths)
    assert [len(row.runs) for row in results.rows] == [2]
    noted = paths[1] / "data.json"
    content = json.loads(noted.read_text())
    content["steps"][0] |= {"images": 7, "sha256": "1" * 64}
    noted.write_text(json.dumps(content))
    (results,) = load_results(paths)
    assert [row.name for row in results.rows] == ["MiB (images of a)", "MiB (images of b)"]


def test_scenes_of_two_seeds_are_two_seeds(make_run: Any) -> None:
    world = {"train": 40, "val": 12, "size": 32}
    paths = [make_run(f"w{seed}", data={**world, "seed": seed}) for seed in (1, 2)]
    change_results(paths[1])
    (results,) = load_results(paths)
    assert [len(row.runs) for row in results.rows] == [2]
    cell = make_tables([results], "last")[0].rows[0].cells[-1]
    assert len(cell.values) == 2


def test_an_unfinished_run_and_trials_are_left_out_of_a_folder(make_run: Any) -> None:
    runs = make_run("all/done").parent
    (make_run("all/half") / "metrics.json").unlink()
    make_run("all/tuned/weight-1")
    (make_run("all/tuned/base") / "metrics.json").unlink()
    (runs / "tuned" / "tuning.json").write_text("{}")
    (make_run("all/step") / "config.yaml").write_text("data: [pets]\n")
    lines: list[str] = []
    (results,) = load_results([runs], lines.append)
    assert [run.path for row in results.rows for run in row.runs] == [runs / "done"]
    assert lines == [
        f"{runs / 'tuned'} is left out: its runs are trials of nacre tune",
        f"{runs / 'half'} is left out: it is not finished",
        f"{runs / 'step'} is left out: it is a step of nacre learn",
    ]
    # One that is asked for by name is an error, and so is a folder of nothing else.
    with pytest.raises(NacreError, match="not a finished run"):
        load_results([runs / "half"])
    with pytest.raises(NacreError, match="holds a step of `nacre learn`"):
        load_results([runs / "step"])
    with pytest.raises(NacreError, match=r"no finished run in .*tuned is left out"):
        load_results([runs / "tuned"], lines.append)
    assert len(lines) == 3  # the error has it, and it is not repeated


@pytest.mark.parametrize("rest", ['{"time": 1.0, "event": "tr', "\0\0\0", '["a", "list"]\n'])
def test_an_incomplete_last_line_of_events_is_ignored(make_run: Any, rest: str) -> None:
    path = make_run("a")
    before = load_run(path).events
    with (path / "events.jsonl").open("a") as file:
        file.write(rest)
    assert load_run(path).events == before
