"""Resuming: a stopped run ends like one without a stop, and leftovers are removed."""

import shutil

import pytest
import torch
import yaml

import unprivileged
from nacre.errors import NacreError
from nacre.runs.folder import RunFolder, read_config
from nacre.runs.run import run_scenario
from nacre.training.config import RunConfig, build_config, deep_merge
from nacre.training.events import EventFile, Position, StepLearned, read_events
from nacre.utils.signals import Interrupted
from noise_data import noise_folder
from tiny_runs import TINY, StopAfter, learning, results, stopped_run, tiny_config, tiny_run


def test_no_event_is_lost_or_doubled_wherever_a_run_is_stopped(finished, tmp_path):
    # Every third time that a run asks whether to stop; it asks within steps and within tests.
    for after in range(1, 100, 3):
        out = tmp_path / str(after)
        try:
            run_scenario(tiny_config(), out, should_stop=StopAfter(after))
            break
        except Interrupted:
            assert not (out / "metrics.json").exists()
            tiny_run(out)
        assert learning(out) == learning(finished), after
        assert results(out) == results(finished), after
        assert not RunFolder(out).resume.exists()
    assert after > 18, "there are three steps, each with 3 to 5 updates and 2 batches of tests"


class _Killed(BaseException):
    pass


@pytest.mark.parametrize("kind", ["train", "learned", "end"])
def test_no_event_is_lost_when_a_run_is_killed_right_after_it(finished, tmp_path, kind):
    def kill(event):
        if event.kind == kind and event.step == 1:
            raise _Killed

    with pytest.raises(_Killed):
        run_scenario(tiny_config(), tmp_path / "run", observers=[kill])
    tiny_run(tmp_path / "run")
    assert learning(tmp_path / "run") == learning(finished)


def test_a_half_written_last_line_is_skipped_and_removed(tmp_path):
    path = tmp_path / "events.jsonl"
    whole = '{"time": 1, "event": "learned", "step": 0, "seconds": 1, "peak_memory_bytes": 2}\n'
    path.write_bytes((whole + '{"time": 2, "event": "le\x00\x00').encode())
    assert [event.kind for event in read_events(path)] == ["learned"]
    EventFile(path, Position(1))(StepLearned(1, 3, 4))
    assert [event.step for event in read_events(path)] == [0, 1]
    assert path.read_text().startswith(whole)


def test_a_model_is_never_without_its_readable_copy(tmp_path, monkeypatch):
    def kill(*values):
        raise _Killed

    monkeypatch.setattr("nacre.models.io.write_tensors", kill)
    with pytest.raises(_Killed):
        tiny_run(tmp_path / "run")
    step = tmp_path / "run" / "step-0"
    assert (step / "model.json").exists()
    assert not (step / "model.safetensors").exists()
    monkeypatch.undo()
    tiny_run(tmp_path / "run", seed=2)  # nothing was learned: another config is welcome


def test_leftovers_of_killed_saves_are_removed(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    left = [run / ".metrics.json.abcd_123.part", run / ".tmpA1b2C3"]
    left += [run / "step-1" / ".model.safetensors.abcd1234.part", run / "step-1" / ".tmpA1b2C3"]
    mine = [run / ".notes.txt.abcd1234", run / "step-1" / ".model.safetensors.backup-of-mine"]
    for path in (*left, *mine):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    tiny_run(run)
    assert not any(path.exists() for path in left)
    assert all(path.exists() for path in mine)
    assert not (run / ".step-0").exists()


def test_the_saved_state_of_a_finished_step_is_removed(finished, tmp_path):
    run = tmp_path / "run"
    stopped_run(run)
    state = RunFolder(run).resume.read_bytes()
    shutil.rmtree(run)
    shutil.copytree(finished, run)
    RunFolder(run).resume.write_bytes(state)
    tiny_run(run)
    assert not RunFolder(run).resume.exists()


def test_a_folder_of_a_run_killed_before_its_config_can_be_used(tmp_path):
    run = tmp_path / "run"
    run.mkdir()
    (run / ".config.yaml.ab12cd34.part").write_text("scena")
    tiny_run(run)
    assert not (run / ".config.yaml.ab12cd34.part").exists()
    other = tmp_path / "other"
    other.mkdir()
    (other / ".model.json.ab12cd34.part").touch()  # not something that is written first: not ours
    with pytest.raises(NacreError, match="is not empty and not a run folder"):
        tiny_run(other)


CLASSES = {1: "cat", 2: "dog"}


def folder_config(root, **changes):
    train = {"epochs": 2, "batch_size": 2, **changes.pop("train", {})}
    values = {"scenario": "folder/1-1/overlapped", "data": {"name": "folder", "root": str(root)}}
    tiny = {key: value for key, value in TINY.items() if key != "data"}
    return build_config(overrides=deep_merge(tiny, {**values, "train": train, **changes}))


def test_a_test_set_that_changed_is_noticed(tmp_path):
    root, run = tmp_path / "data", tmp_path / "run"
    noise_folder(root, 12, classes=CLASSES, test=4)
    config = folder_config(root)
    stopped_run(run, config, 12)
    (root / "val.txt").write_text("p8\np9\n")
    sentence = r"other data \(test images after step 0: 4 -> 2; test images after step 1: 4 -> 2\)"
    with pytest.raises(NacreError, match=sentence):
        run_scenario(config, run)


def test_a_run_resumes_with_other_workers_and_moved_data(tmp_path, monkeypatch):
    root, moved, run = tmp_path / "data", tmp_path / "moved", tmp_path / "run"
    noise_folder(root, 12, classes=CLASSES, test=4)
    reference = run_scenario(folder_config(root), tmp_path / "reference")
    stopped_run(run, folder_config(root))
    root.rename(moved)
    changes = {"num_workers": 1, "device": "cpu"}
    assert run_scenario(folder_config(moved, train=changes), run) == reference
    assert read_config(run, RunConfig).train.num_workers == 1
    for step in (0, 1):
        one, other = (run / f"step-{step}", tmp_path / "reference" / f"step-{step}")
        assert (one / "metrics.json").read_bytes() == (other / "metrics.json").read_bytes()


def test_a_relative_data_folder_works_from_another_working_folder(tmp_path, monkeypatch):
    noise_folder(tmp_path / "data", 12, classes=CLASSES, test=4)
    monkeypatch.chdir(tmp_path)
    stopped_run(tmp_path / "run", folder_config("data"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    run_scenario(read_config(tmp_path / "run", RunConfig), tmp_path / "run")
    plain = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert plain["data"]["root"] == str(tmp_path / "data")


RECIPES = {
    "dropout": {},
    "a memory": {"memory": 6},
    "kept features": {
        "images": {"views": 2},
        "method": {"name": "mib", "freeze_step_0": True, "freeze": ["batch_norm"]},
    },
    "other options": {
        "train": {
            "optimizer": "adamw",
            "lr": 0.001,
            "incremental_lr": 0.001,
            "backbone_lr_scale": 0.5,
            "lr_schedule": "cosine",
            "warmup_iterations": 2,
        },
    },
}


@pytest.mark.parametrize("recipe", RECIPES)
def test_any_recipe_resumes_bit_for_bit(tmp_path, monkeypatch, recipe):
    def with_dropout(network, *values, forward=torch.nn.Conv2d.forward):
        out = forward(network, *values)
        return torch.nn.functional.dropout(out, 0.1, network.training)

    if recipe == "dropout":
        monkeypatch.setattr(torch.nn.Conv2d, "forward", with_dropout)
    values = RECIPES[recipe]
    tiny_run(tmp_path / "whole", **values)
    for after in (1, 3, 10):  # the last one within step 1
        out = tmp_path / str(after)
        stopped_run(out, tiny_config(**values), after)
        torch.rand(1000)  # another process has drawn other numbers
        others = {"train": {"num_workers": 1}} if recipe == "dropout" else {}
        tiny_run(out, **deep_merge(values, others))
        assert learning(out) == learning(tmp_path / "whole"), after
        # A model says how many workers there were.
        assert others or results(out) == results(tmp_path / "whole"), after


def full(path, *values, **options):
    raise OSError(28, "No space left on device", str(path))


def test_a_full_disk_is_one_sentence_and_the_run_resumes_with_free_space(
    finished, tmp_path, monkeypatch
):
    run = tmp_path / "run"
    monkeypatch.setattr("nacre.utils.tensor_file.save_file", lambda _, path, **more: full(path))
    with pytest.raises(NacreError, match=r"could not write .*No space left on device"):
        tiny_run(run)
    monkeypatch.undo()
    tiny_run(run)
    assert results(run) == results(finished)


@unprivileged.NEEDS
def test_a_read_only_folder_is_one_sentence(finished, tmp_path):
    def refused():
        with pytest.raises(NacreError) as caught:
            tiny_run(tmp_path / "run")
        return str(caught.value)

    stopped_run(tmp_path / "run")
    (tmp_path / "run").chmod(0o555)
    said = unprivileged.without_privileges(refused)
    (tmp_path / "run").chmod(0o755)
    assert said == f"`nacre run` cannot use the folder {tmp_path / 'run'}: Permission denied"
    tiny_run(tmp_path / "run")
    assert results(tmp_path / "run") == results(finished)
