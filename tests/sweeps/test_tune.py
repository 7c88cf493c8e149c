"""The search for a weight: what is tried, on which data, and what is written."""

import json

import numpy as np
import pytest
import yaml

from nacre.errors import NacreError
from nacre.runs.run import open_scenario, run_scenario
from nacre.sweeps import tune as module
from nacre.sweeps.tune import WEIGHTS, TrialData, highest, next_weight, split, tune
from nacre.training.config import build_config
from nacre.training.events import StepSkipped, read_events
from nacre.training.trainer import NotFinite
from nacre.utils.signals import Interrupted
from tiny_runs import StopAfter, tiny_config

FINE_TUNING = 0.5


def searched(accuracy_of, least):
    found = {}
    while (weight := next_weight(found, least)) is not None:
        assert weight not in found, "tried twice"
        found[weight] = accuracy_of(weight)
    return found


@pytest.mark.parametrize("last", [None, *WEIGHTS])
def test_halving_finds_the_highest_that_passes_in_four_trials(last):
    found = searched(lambda weight: 0.5 if last and weight <= last else 0.3, 0.4)
    assert highest(found, 0.4) == last
    assert len(found) <= 4


def test_exactly_the_least_accuracy_passes():
    assert highest({0.1: 0.4, 1.0: 0.39}, 0.4) == 0.1


@pytest.fixture(scope="module")
def whole():
    return open_scenario(tiny_config())


@pytest.fixture(scope="module")
def trial(whole):
    return TrialData.of(whole)


def test_four_fifths_are_learned_and_one_fifth_is_held_out(whole, trial):
    kept, held_out = split(whole.image_lists[1], 1)
    assert sorted(kept + held_out) == list(whole.image_lists[1])
    assert len(held_out) == round(0.2 * len(whole.image_lists[1]))
    assert trial.image_lists == (whole.image_lists[0], kept, whole.image_lists[2])
    assert len(trial.eval_dataset(1)) == len(held_out)
    (images,) = trial.train_dataset(1).folders
    assert images.names == [whole.train_index.names[i] for i in kept]
    assert split(whole.image_lists[1], 2) != (kept, held_out)


def test_held_out_images_have_the_labels_of_the_step_alone(whole, trial):
    data = trial.eval_dataset(1)
    old = whole.scenario.classes.growth(1).num_old
    channels, labels = set(), set()
    for i, name in enumerate(data.names):
        image, truth = data[i]
        assert image.shape[1:] == truth.shape
        channels |= set(np.unique(truth.numpy()).tolist())
        labels |= set(np.unique(whole.source.mask("train", name)).tolist())
    new = {old, old + 1}
    assert new <= channels <= {0, 255} | new
    assert labels & set(whole.scenario.classes.old(1)), "there are old classes to hide"


def test_trials_read_no_old_image_and_no_test_image(whole, trial, monkeypatch):
    read = set()
    real = type(whole.source).image

    def image(self, part, name):
        read.add((part, name))
        return real(self, part, name)

    monkeypatch.setattr(type(whole.source), "image", image)
    learned, tested = trial.train_dataset(1), trial.eval_dataset(1)
    for i in range(len(learned)):
        _ = learned[0, i]
    for i in range(len(tested)):
        _ = tested[i]
    step = {("train", whole.train_index.names[i]) for i in whole.image_lists[1]}
    assert read == step


def config_of(method, **values):
    return tiny_config(scenario="scenes/4-4/overlapped", method=method, **values)


@pytest.fixture
def measured(monkeypatch):
    """Learns nothing: accuracies come from a function of method and weight that tests set."""

    class Measured:
        diverges_from = 1e9

        def __init__(self):
            self.tried: list = []

        def __call__(self, config, out, num_steps=None, **_):
            method, rate = config.method, config.train.incremental_lr
            if num_steps == 1:
                return [{}]
            weight = getattr(method, "weight", None)
            self.tried.append((method.name, weight, rate))
            if (weight or 0) >= self.diverges_from:
                out.mkdir(parents=True, exist_ok=True)
                raise NotFinite("the loss is not a finite number")
            return [{"mean_iou": {"new_without_background": self.accuracy(method, rate)}}]

        @staticmethod
        def accuracy(method, rate):
            if not getattr(method, "weight", 0):
                return FINE_TUNING
            return 0.45 if method.weight <= 50 else 0.39

    found = Measured()
    monkeypatch.setattr(module, "learn_scenario", found)
    return found


def test_the_highest_weight_that_passes_is_written_as_a_config(measured, tmp_path):
    lines: list = []
    tuning = tune(config_of("lwf"), tmp_path / "out", show=lines.append)
    assert lines[0] == "ft-lr-0.01, learning rate 0.01: mIoU of new classes 50.0"
    assert "weight-50, learning rate 0.01: mIoU of new classes 45.0: passes" in lines
    assert "weight-100, learning rate 0.01: mIoU of new classes 39.0: too low" in lines
    assert tuning.weight == 50
    assert tuning.min_accuracy == pytest.approx(0.8 * FINE_TUNING)
    assert measured.tried[0] == ("ft", None, 0.01)
    assert len(measured.tried) <= 1 + 4
    tuned = build_config(file=tmp_path / "out" / "tuned.yaml")
    assert tuned.method.weight == 50
    assert tuned.to_dict() == config_of({"name": "lwf", "weight": 50}).to_dict()
    content = json.loads((tmp_path / "out" / "tuning.json").read_text())
    assert content["weight"] == 50
    assert [one["accuracy"] for one in content["trials"]] == [0.5, 0.45, 0.39, 0.45, 0.45]
    assert (
        (tmp_path / "out" / "tuned.yaml")
        .read_text()
        .startswith("# weight 50: chosen by nacre tune")
    )


def test_fine_tuning_chooses_the_learning_rate(measured, tmp_path):
    measured.accuracy = staticmethod(lambda method, rate: 0.6 if rate == 0.05 else 0.2)
    tune(config_of("mib"), tmp_path / "out", rates=(0.01, 0.05, 0.1))
    assert [rate for name, _, rate in measured.tried if name == "ft"] == [0.01, 0.05, 0.1]
    assert {rate for name, _, rate in measured.tried if name == "mib"} == {0.05}
    tuned = yaml.safe_load((tmp_path / "out" / "tuned.yaml").read_text())
    assert tuned["train"]["incremental_lr"] == 0.05
    assert tuned["method"]["weight"] == 5000


def test_a_weight_that_diverges_is_too_high(measured, tmp_path):
    measured.diverges_from = 5
    tuning = tune(config_of("ewc"), tmp_path / "out")
    assert tuning.weight == 1
    assert [one.weight for one in tuning.trials if one.diverged] != []
    before = len(measured.tried)
    assert tune(config_of("ewc"), tmp_path / "out") == tuning
    again = measured.tried[before:]
    assert all(weight is None or weight < 5 for _, weight, _ in again), "not tried a second time"


def test_lwf_mc_is_measured_against_itself_and_the_weights_of_ilt_are_tried_as_one(
    measured, tmp_path
):
    tune(config_of("lwf-mc"), tmp_path / "lwf-mc")
    assert measured.tried[0][:2] == ("lwf-mc", 0)
    tune(config_of("ilt"), tmp_path / "ilt")
    tuned = yaml.safe_load((tmp_path / "ilt" / "tuned.yaml").read_text())
    assert tuned["method"]["weight"] == tuned["method"]["feature_weight"] == 50


def test_fine_tuning_keeps_what_a_preset_freezes(measured, tmp_path, monkeypatch):
    configs = []
    monkeypatch.setattr(
        type(measured),
        "accuracy",
        staticmethod(lambda method, rate: configs.append(method) or FINE_TUNING),
    )
    frozen = {"freeze_step_0": True, "freeze": ["batch_norm", "old_rows"]}
    tune(config_of({"name": "ewf", **frozen}), tmp_path / "out")
    assert configs[0].name == "ft"
    assert configs[0].freeze_step_0
    assert configs[0].freeze == ("batch_norm",), "old_rows is EWF's own"


def test_what_cannot_be_tuned(measured, tmp_path):
    with pytest.raises(NacreError, match=r"train\.incremental_lr: .*nan"):
        tune(tiny_config(method={"name": "mib"}), tmp_path / "nan", rates=[0.01, float("nan")])
    assert not (tmp_path / "nan" / "step-0").exists(), "refused before anything is learned"
    with pytest.raises(NacreError, match="'lwf-mc-d' has no weight to choose"):
        tune(config_of("lwf-mc-d"), tmp_path / "out")
    with pytest.raises(NacreError, match="has one step"):
        tune(tiny_config(scenario="scenes/8/overlapped", method="mib"), tmp_path / "out")
    measured.accuracy = staticmethod(lambda method, rate: 0.0)
    with pytest.raises(NacreError, match="fine-tuning learns nothing"):
        tune(config_of("mib"), tmp_path / "out")
    measured.accuracy = staticmethod(lambda method, rate: 0.1 if hasattr(method, "weight") else 0.6)
    with pytest.raises(NacreError, match=r"not even 0\.001"):
        tune(config_of("mib"), tmp_path / "out")
    assert not (tmp_path / "out" / "tuned.yaml").exists()


@pytest.fixture
def some_accuracy(monkeypatch):
    """Tiny runs learn nothing; what counts here is that they are carried out."""
    monkeypatch.setattr(module, "accuracy", lambda metrics: 0.2 + metrics["pixel_accuracy"])


def test_a_search_that_was_interrupted_goes_on(some_accuracy, tmp_path):
    config = config_of("ewc")
    one, other = tmp_path / "one", tmp_path / "other"
    tuning = tune(config, one)
    assert tuning.weight is not None
    for after in (2, 7):
        with pytest.raises(Interrupted):
            tune(config, other, should_stop=StopAfter(after))
    tune(config, other)
    for name in ("tuning.json", "tuned.yaml"):
        assert (one / name).read_text() == (other / name).read_text()
    models = sorted(path.relative_to(one) for path in one.glob("*/step-1/model.safetensors"))
    assert len(models) == len(tuning.trials)
    for path in models:
        assert (one / path).read_bytes() == (other / path).read_bytes()
    assert not list(one.glob("*/metrics.json")), "a trial is not a run"


def test_step_0_is_learned_once_and_runs_take_it(some_accuracy, tmp_path):
    out = tmp_path / "out"
    tune(config_of("mib"), out)
    steps = {path.read_bytes() for path in out.glob("*/step-0/model.safetensors")}
    assert len(steps) == 1
    assert not (out / "step-0" / "step-1").exists()
    own = tmp_path / "own"
    run_scenario(config_of("mib"), own)
    assert (own / "step-0" / "model.safetensors").read_bytes() == steps.pop()
    tuned = build_config(file=tmp_path / "out" / "tuned.yaml")
    run_scenario(tuned, tmp_path / "run", cache=out / "steps")
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [one.step for one in events if isinstance(one, StepSkipped)] == [0]


def test_a_trial_of_another_config_is_not_taken_for_this_ones(tmp_path, monkeypatch):
    def diverge(trainer, *batch, **options):
        raise NotFinite("the loss is not a finite number")

    out, cache = tmp_path / "out", tmp_path / "steps"
    run_scenario(config_of("lwf"), tmp_path / "run", cache=cache)
    monkeypatch.setattr("nacre.training.loop.update", diverge)
    for _ in range(2):
        with pytest.raises(NacreError, match="fine-tuning learns nothing"):
            tune(config_of("lwf"), out, cache=cache)
    assert (out / "ft-lr-0.01" / "diverged.json").exists()
    other = config_of("lwf", train={"incremental_epochs": 2})
    with pytest.raises(NacreError, match=r"another config \(train.incremental_epochs: None -> 2"):
        tune(other, out, cache=cache)
