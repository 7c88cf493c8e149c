"""The step cache: which steps runs share, and which run learns them."""

import json
import shutil

import pytest

from nacre.errors import NacreError
from nacre.methods import find_method
from nacre.runs import steps as run_file
from nacre.runs.run import open_scenario, run_scenario
from nacre.runs.step_cache import FILES, StepCache, digest_masks, step_keys
from nacre.training.events import StepAwaited, StepSkipped, read_events
from nacre.utils.signals import Interrupted
from tiny_runs import StopAfter, results, stopped_run, tiny_config


def keys_of(**changes):
    config = tiny_config(**changes)
    data = open_scenario(config)
    return step_keys(config, data.fingerprint(), digest_masks(data))


def cache_of(folder, method, keys=("a" * 32, "b" * 32)):
    return StepCache(folder, keys, find_method(method).persistent_state)


def write_step(folder, text="learned"):
    folder.mkdir(parents=True)
    for name in FILES:
        (folder / name).write_text(text)
    return folder


@pytest.mark.parametrize(
    "changes",
    [
        {"method": "ft"},
        {"method": "ewc"},
        {"memory": 6},
        {"train": {"incremental_lr": 0.002, "num_workers": 1}},
        {"scenario": "scenes/4-4/overlapped"},
    ],
)
def test_keys_that_affect_later_steps_change_only_their_keys(changes):
    ours, theirs = keys_of(), keys_of(**changes)
    assert ours[0] == theirs[0]
    assert ours[1] != theirs[1] or set(changes) == {"train"}


@pytest.mark.parametrize(
    "changes",
    [
        {"seed": 2},
        {"method": "lwf-mc"},
        {"train": {"lr": 0.2}},
        {"data": {"seed": 4}},
        {"scenario": "scenes/2-6/overlapped"},
        {"scenario": "scenes/4-2-2/disjoint", "train": {"batch_size": 2}},
    ],
)
def test_keys_that_affect_step_0_change_every_key(changes):
    assert not {*keys_of()} & {*keys_of(**changes)}


def test_other_masks_or_another_data_folder_change_every_key():
    config = tiny_config()
    data = open_scenario(config)
    facts = data.fingerprint()
    assert not {*step_keys(config, facts, "one")} & {*step_keys(config, facts, "other")}


def test_one_run_learns_a_step_and_the_others_wait_for_it(tmp_path):
    first, second = (cache_of(tmp_path / "steps", "mib") for _ in range(2))
    step = write_step(tmp_path / "first")
    assert first.ask(0, step) == "learn"
    assert second.ask(0, tmp_path / "second") == "wait"
    assert second.ask(1, tmp_path / "second") == "learn", "another step is not held up"
    first.store(0, step)
    first.release()
    assert second.ask(0, tmp_path / "second") == "taken"
    for name in FILES:
        assert (tmp_path / "second" / name).read_text() == "learned"


@pytest.mark.parametrize(
    ("kept_by", "wanted_by", "answer"),
    [
        ("rw", "ewc", "taken"),
        ("rw", "mib", "taken"),
        ("ft", "ewc", "learn"),
        ("rw", "pi", "learn"),
    ],
)
def test_a_method_takes_a_step_that_has_at_least_what_it_needs(
    tmp_path, kept_by, wanted_by, answer
):
    first, second = (cache_of(tmp_path / "steps", name) for name in (kept_by, wanted_by))
    assert first.ask(0, tmp_path / "first") == "learn"
    first.store(0, write_step(tmp_path / "first"))
    first.release()
    assert second.ask(0, tmp_path / "second") == answer
    second.release()


def test_a_step_that_was_half_stored_is_not_taken(tmp_path):
    cache = cache_of(tmp_path / "steps", "mib")
    cache.store(0, write_step(tmp_path / "first"))
    entry = tmp_path / "steps" / ("a" * 32)
    (entry / "metrics.json").unlink()
    assert cache.ask(0, tmp_path / "second") == "learn"
    cache.release()


def no_link(source, target):
    raise OSError(1, "Operation not permitted")


def test_a_file_system_without_links_has_copies(tmp_path, monkeypatch):
    monkeypatch.setattr("os.link", no_link)
    cache = cache_of(tmp_path / "steps", "mib")
    cache.store(0, write_step(tmp_path / "first"))
    assert cache.ask(0, tmp_path / "second") == "taken"
    assert (tmp_path / "second" / "model.safetensors").read_text() == "learned"

    def full(source, target):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    with pytest.raises(NacreError, match=r"could not write .*No space left on device"):
        cache.ask(0, tmp_path / "third")


def test_a_run_that_is_repeated_takes_every_step(finished, tmp_path, monkeypatch):
    cache = tmp_path / "steps"
    first = run_scenario(tiny_config(), tmp_path / "first", cache=cache)
    monkeypatch.setattr(run_file, "learn_step", None)
    assert run_scenario(tiny_config(), tmp_path / "second", cache=cache) == first
    assert results(tmp_path / "second") == results(finished)
    events = read_events(tmp_path / "second" / "events.jsonl")
    skipped = [one.taken_from for one in events if isinstance(one, StepSkipped)]
    assert skipped == [str(cache)] * 3


def test_joint_training_of_another_scenario_has_the_means_of_its_own_groups(tmp_path):
    def learn(scenario):
        config = tiny_config(scenario=f"scenes/{scenario}/overlapped", method="joint")
        return run_scenario(config, tmp_path / scenario, cache=tmp_path / "steps")

    first, second = learn("4-4"), learn("4-2-2")
    events = read_events(tmp_path / "4-2-2/events.jsonl")
    assert any(isinstance(one, StepSkipped) for one in events), "taken, not learned again"
    assert first["iou_by_step_and_class"] == second["iou_by_step_and_class"]
    assert "step_2_without_background" not in first["mean_iou_by_step"][0]
    assert "step_2_without_background" in second["mean_iou_by_step"][0]
    written = json.loads((tmp_path / "4-2-2/step-0/metrics.json").read_text())
    assert written["mean_iou"] == second["mean_iou_by_step"][0]


def test_a_run_that_was_interrupted_in_a_step_takes_it_when_another_has_learned_it(
    finished, tmp_path
):
    cache, out = tmp_path / "steps", tmp_path / "run"
    stopped_run(out)
    run_scenario(tiny_config(method="lwf"), tmp_path / "lwf", cache=cache)
    run_scenario(tiny_config(), out, cache=cache)
    assert not (out / "resume.safetensors").exists()
    model = "step-2/model.safetensors"
    assert results(out)[model] == results(finished)[model]


def test_a_run_that_waits_reports_it_and_can_be_stopped(tmp_path, monkeypatch):
    monkeypatch.setattr(run_file, "WAIT_SECONDS", 0.0)
    holder = cache_of(tmp_path / "steps", "mib", keys_of())
    assert holder.ask(0, tmp_path / "holder") == "learn"
    events = []
    with pytest.raises(Interrupted):
        run_scenario(
            tiny_config(),
            tmp_path / "run",
            cache=tmp_path / "steps",
            observers=[events.append],
            should_stop=StopAfter(3),
        )
    assert [one.step for one in events if isinstance(one, StepAwaited)] == [0]
    holder.release()


def test_nothing_needs_the_cache_when_the_runs_have_ended(tmp_path):
    cache, out = tmp_path / "steps", tmp_path / "run"
    before = run_scenario(tiny_config(), out, cache=cache)
    shutil.rmtree(cache)
    assert run_scenario(tiny_config(), out) == before
    assert (out / "step-0" / "model.safetensors").exists()
