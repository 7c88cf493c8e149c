"""Two real processes that disturb each other (pair.py)."""

import json
from pathlib import Path

import pytest

from nacre.runs.run import run_scenario
from nacre.utils.signals import Interrupted
from one_and_two import end_two
from tiny_runs import StopAfter, tiny_config

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    """The outcomes of everything that pair.py tries, by rank."""
    folder = tmp_path_factory.mktemp("pair")
    begun = folder / "of-rank-0" / "begun"  # the first process has one to go on with
    with pytest.raises(Interrupted):
        run_scenario(tiny_config(), begun, should_stop=StopAfter(3))
    ended = end_two(Path(__file__).with_name("pair.py"), folder)
    assert [one.returncode for one in ended] == [0, 9], "\n".join(one.stderr for one in ended)
    return folder, [json.loads((folder / f"{rank}.json").read_text()) for rank in range(2)]


def test_clocks_that_differ_do_not_make_processes_wait_for_each_other(pair):
    folder, results = pair
    assert [one["trembling clock"] for one in results] == ["done", "done"]
    events = (folder / "trembling" / "events.jsonl").read_text()
    assert events.count('"saved"') > 1, "a save was due while it ran"


def test_a_stop_of_one_process_ends_the_tests_of_both(pair):
    folder, results = pair
    assert all(one["stopped in a test"].startswith("Interrupted") for one in results)
    assert [one["tested then"] for one in results] == ["False", "False"]
    assert [one["going on"] for one in results] == ["done", "done"]
    whole, shared = (folder / name / "metrics.json" for name in ("whole", "shared"))
    assert whole.read_bytes() == shared.read_bytes()


def test_an_error_of_the_main_process_ends_both_and_is_reported_once(pair):
    _, (main, other) = pair
    assert "NacreError" in main["another config"]
    assert "holds a run with another config (seed: 1 -> 2)" in main["another config"]
    assert other["another config"].startswith("ReportedElsewhere")


@pytest.mark.parametrize("case", ["folders of their own", "folders of their own, going on"])
def test_a_run_folder_that_is_not_shared_is_refused_at_the_start(pair, case):
    folder, (main, other) = pair
    assert main[case].startswith("NacreError: the run folder")
    assert "is not shared: process 1 sees nothing of what the main process wrote" in main[case]
    assert other[case].startswith("ReportedElsewhere")
    assert not list(folder.glob("of-rank-*/*/step-*"))


def test_a_process_that_dies_ends_the_others_with_a_sentence(pair):
    _, (main, _) = pair
    assert main["the other died"].startswith("NacreError: another process of this run ended")
