import json
from pathlib import Path, PureWindowsPath

import pytest
import torch
from safetensors.torch import save_file

from nacre.data import dataset as dataset_file
from nacre.errors import NacreError
from nacre.models.io import find_model, load_model
from nacre.runs import testing
from nacre.runs.evaluate import evaluate_checkpoint
from nacre.runs.folder import RunFolder, default_folder
from nacre.runs.run import learn_scenario, open_scenario, run_scenario, scenario_step
from nacre.training import loop
from nacre.training.events import RunBegan, Trained, read_events
from nacre.training.trainer import NotFinite, Trainer
from nacre.utils.device import memory_layout
from nacre.utils.distributed import init_distributed
from tiny_runs import results, stopped_run, tiny_config, tiny_run


@pytest.mark.parametrize(
    ("scenario", "name"),
    [("scenes/4-2-2/overlapped", "scenes_4-2-2_overlapped"), ("C:\\x\\my.yaml", "C__x_my")],
)
def test_a_run_without_a_folder_is_in_runs(scenario, name):
    config = tiny_config().model_copy(update={"scenario": scenario})
    folder = default_folder(config)
    assert folder == Path("runs") / f"{name}-mib-1"
    assert PureWindowsPath(folder).drive == ""


def test_a_run_writes_all_its_files(finished):
    names = {str(path.relative_to(finished)) for path in finished.rglob("*") if path.is_file()}
    steps = {f"step-{i}/{name}" for i in range(3) for name in ("model.safetensors", "model.json")}
    steps |= {f"step-{i}/metrics.json" for i in range(3)}
    assert names == steps | {
        "config.yaml",
        "data.json",
        "run.json",
        "events.jsonl",
        "metrics.json",
    }
    start = json.loads((finished / "run.json").read_text())["starts"][0]
    assert start["seed"] == 1
    assert "mixed precision does not pay on cpu" in start["precision"]
    kinds = [event.kind for event in read_events(finished / "events.jsonl")]
    assert kinds[0] == "run"
    assert kinds.count("begin") == kinds.count("end") == 3


def test_metrics_have_every_mean_with_and_without_background(finished):
    metrics = json.loads((finished / "step-2" / "metrics.json").read_text())
    groups = {"old", "new", "all", "step_0", "step_1", "step_2"}
    kinds = {"with_background", "without_background"}
    assert set(metrics["mean_iou"]) == {f"{group}_{kind}" for group in groups for kind in kinds}
    iou = metrics["iou"]
    assert list(iou) == metrics["classes"]
    assert metrics["conventions"] == {
        "border": "background",
        "unseen": "ignored",
        "crop_size": 32,
        "crop": "plain",
        "eval_mode": "crop",
        "mirror": False,
        "edges": False,
    }
    held = [iou[name] for name in metrics["classes"][1:] if iou[name] is not None]
    mean = metrics["mean_iou"]["all_without_background"]
    assert mean == pytest.approx(sum(held) / len(held))


def test_the_model_file_explains_itself(finished):
    network, info, state = load_model(find_model(finished))
    assert info.classes[0] == "background"
    assert len(info.classes) == network.classifier.num_classes == 9
    assert info.steps == [5, 2, 2]
    assert [len(one["classes"]) for one in info.history] == [4, 2, 2]
    assert info.config["method"]["name"] == "mib"
    assert state == {}
    assert json.loads((finished / "step-2" / "model.json").read_text())["classes"] == info.classes


def test_the_same_seed_gives_the_same_bits_and_another_does_not(finished, tmp_path):
    tiny_run(tmp_path / "again")
    assert results(tmp_path / "again") == results(finished)
    other = tiny_run(tmp_path / "other", seed=2)
    assert other != json.loads((finished / "metrics.json").read_text())


def test_a_folder_with_another_config_is_refused_with_the_difference(finished, tmp_path):
    with pytest.raises(NacreError, match=r"another config \(method.weight: 10.0 -> 3.0; seed: 1"):
        tiny_run(finished, method={"weight": 3}, seed=2)
    (tmp_path / "letter.txt").write_text("dear")
    with pytest.raises(NacreError, match="is not empty and not a run folder"):
        tiny_run(tmp_path)


def test_two_runs_do_not_work_in_one_folder(finished):
    with (
        RunFolder(finished).lock(),
        pytest.raises(NacreError, match="is in use: another `nacre run` works in it"),
    ):
        tiny_run(finished)
    tiny_run(finished)


def test_a_scenario_file_changed_between_two_starts_is_noticed(tmp_path):
    scenario = tmp_path / "mine.yaml"
    scenario.write_text("data: scenes\nsteps: [[1, 2], [3]]\n")
    stopped_run(tmp_path / "run", tiny_config(scenario=str(scenario)))
    scenario.write_text("data: scenes\nsteps: [[1, 3], [2]]\n")
    with pytest.raises(NacreError, match="class 2 of step 0: 'starfish' -> None"):
        tiny_run(tmp_path / "run", scenario=str(scenario))


def test_weights_that_are_not_there_are_refused_before_the_data_are_read(tmp_path):
    config = tiny_config(model={"backbone": "resnet101", "weights": "nothing.pth"})
    sentence = r"there is no weight file nothing\.pth; set model\.weights to .*in-place ABN release"
    with pytest.raises(NacreError, match=sentence):
        learn_scenario(config, tmp_path / "run", data=object(), num_steps=1)


def test_a_file_is_not_a_run_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NacreError, match="`nacre run` cannot use the folder"):
        tiny_run(tmp_path / "file")


def test_accumulation_changes_only_the_batch_statistics(tmp_path, monkeypatch):
    # With frozen statistics the gradient of a batch in parts is that of the whole.
    monkeypatch.setattr(Trainer, "__init__", _frozen_statistics)
    one, other = tmp_path / "one", tmp_path / "other"
    tiny_run(one, labels={"border": "ignored"})
    tiny_run(other, labels={"border": "ignored"}, train={"micro_batch": 2})
    a, b = (load_model(find_model(path))[0].state_dict() for path in (one, other))
    for name in a:
        torch.testing.assert_close(a[name], b[name], rtol=1e-4, atol=1e-5)


_make = Trainer.__init__


def _frozen_statistics(self, *given, **options):
    _make(self, *given, **options)
    self.network.eval()


def test_a_loss_that_is_not_finite_stops_the_run_with_its_place(tmp_path):
    with pytest.raises(NacreError, match=r"not a finite number in step 0, iteration \d+: ce = nan"):
        tiny_run(tmp_path / "run", train={"lr": 1e6, "epochs": 4})


@pytest.mark.parametrize(
    ("train", "message"),
    [
        ({"batch_size": 8, "micro_batch": 3}, "not a multiple of 3"),
        ({"device": "abacus"}, "train.device: 'abacus' cannot be used here"),
    ],
)
def test_impossible_batches_and_devices_are_refused(tmp_path, train, message):
    with pytest.raises(NacreError, match=message):
        tiny_run(tmp_path / "run", train=train)
    assert not (tmp_path / "run").exists()


def test_a_truncated_or_foreign_model_file_is_one_sentence(finished, tmp_path):
    good = (finished / "step-2" / "model.safetensors").read_bytes()
    bad = tmp_path / "model.safetensors"
    for content in (good[: len(good) // 2], b"PK\x03\x04 something else", b""):
        bad.write_bytes(content)
        with pytest.raises(NacreError, match="is damaged or is not a safetensors file"):
            load_model(bad)
    for header, message in (("{", "damaged header"), ("{}", "is not a model file of format 1")):
        save_file({"a": torch.zeros(1)}, bad, metadata={"nacre": header})
        with pytest.raises(NacreError, match=message):
            load_model(bad)
    save_file({"a": torch.zeros(1)}, bad)
    with pytest.raises(NacreError, match="was not written by nacre"):
        load_model(bad)
    with pytest.raises(NacreError, match="no model at"):
        find_model(tmp_path / "nothing")


def test_a_damaged_resume_file_is_one_sentence(tmp_path):
    out = tmp_path / "run"
    stopped_run(out)
    RunFolder(out).resume.write_bytes(b"123")
    with pytest.raises(NacreError, match=r"resume\.safetensors is damaged or"):
        tiny_run(out)


def test_the_losses_of_a_step_shorter_than_a_line_of_events_are_recorded(tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "LOG_EVERY", 10)
    tiny_run(tmp_path / "run")
    events = read_events(tmp_path / "run" / "events.jsonl")
    iterations = next(event.iterations for event in events if isinstance(event, RunBegan))
    trained = [(event.step, event.iteration) for event in events if isinstance(event, Trained)]
    assert max(iterations) < 10
    assert trained == list(enumerate(iterations))


@pytest.mark.parametrize("rate", [1e30, 3e38])
def test_weights_that_the_last_update_ruined_are_not_saved(tmp_path, rate):
    # One update per later step: its loss is finite, what it makes of the weights is not.
    config = tiny_config(train={"batch_size": 12}, data={"train": 24})
    # A config refuses such a rate, but a rate that is allowed may do the same in a longer step.
    train = config.train.model_copy(update={"incremental_lr": rate})
    with pytest.raises(NotFinite, match=r"not finite any more in step 1, after iteration 1"):
        run_scenario(config.model_copy(update={"train": train}), tmp_path / "run")
    assert not (tmp_path / "run" / "step-1").exists()
    assert load_model(find_model(tmp_path / "run"))[1].steps == [5]


@pytest.mark.parametrize(
    ("device", "layout"),
    [
        ("cpu", torch.contiguous_format),
        ("cuda", torch.channels_last),
        ("mps", torch.contiguous_format),
    ],
)
def test_the_layout_is_one_whose_gradients_are_right_on_the_device(device, layout):
    assert memory_layout(torch.device(device), training=True) == layout


def test_without_hidden_classes_the_cross_entropy_of_a_run_is_the_plain_one(tmp_path):
    one, other = tmp_path / "one", tmp_path / "other"
    tiny_run(one, method={"name": "mib", "ce": "plain"})
    tiny_run(other, labels={"unlabeled": "background"})
    first, second = (load_model(path / "step-1" / "model.safetensors")[0] for path in (one, other))
    for name, value in first.state_dict().items():
        torch.testing.assert_close(second.state_dict()[name], value, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("setup", ["overlapped", "disjoint"])
def test_a_step_knows_whether_its_images_may_come_again(setup):
    config = tiny_config(scenario=f"scenes/4-4/{setup}")
    step = scenario_step(config, open_scenario(config), 1, init_distributed("cpu"))
    assert step.overlapped == (setup == "overlapped")


def test_a_test_alone_keeps_tf32_out_of_float32_too(tmp_path, monkeypatch):
    config = tiny_config(train={"precision": "float32"})
    run_scenario(config, tmp_path / "run")
    told = []
    monkeypatch.setattr(testing, "configure_backends", lambda *given, **_: told.append(given[0]))
    evaluate_checkpoint(tmp_path / "run", {})
    assert told == ["float32"]
    (tmp_path / "run" / "step-2" / "metrics.json").unlink()
    run_scenario(config, tmp_path / "run")
    assert told == ["float32"] * 2


def test_a_run_is_tested_again_as_it_was_tested(tmp_path, monkeypatch):
    config = {"train": {"micro_batch": 2, "num_workers": 1}}
    tiny_run(tmp_path / "run", **config)
    opened = []

    def spy(dataset, batch_size, rank, world_size, num_workers, *more):
        opened.append((batch_size, num_workers))
        return dataset_file.eval_batches(dataset, batch_size, rank, world_size, 0, *more)

    monkeypatch.setattr(testing, "eval_batches", spy)
    again = evaluate_checkpoint(tmp_path / "run", {})
    assert opened == [(2, 1)], "the run's own batches and processes"
    metrics = json.loads((tmp_path / "run" / "step-2" / "metrics.json").read_text())
    assert again["iou"] == metrics["iou"]
