import numpy as np
import pytest

from nacre.runs.scenario_data import open_scenario
from nacre.sweeps.tune.trial import split, trial_data
from tiny_runs import tiny_config


@pytest.fixture(scope="module")
def whole():
    return open_scenario(tiny_config())


@pytest.fixture(scope="module")
def trial(whole):
    return trial_data(whole)


def test_four_fifths_are_learnt_and_one_fifth_is_held_out(whole, trial):
    kept, held_out = split(whole.image_lists[1], 1)
    assert sorted(kept + held_out) == list(whole.image_lists[1])
    assert len(held_out) == round(0.2 * len(whole.image_lists[1]))
    assert trial.image_lists == (whole.image_lists[0], kept, whole.image_lists[2])
    assert len(trial.eval_dataset(1)) == len(held_out)
    assert list(trial.train_dataset(1).names) == [whole.train_index.names[i] for i in kept]
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


def test_held_out_images_are_not_augmented(trial):
    data = trial.eval_dataset(1)
    picture = np.asarray(trial.source.image("train", data.names[0])).transpose(2, 0, 1)
    assert np.array_equal(data[0][0].numpy(), picture)


def test_trials_read_no_old_image_and_no_test_image(whole, trial, monkeypatch):
    read = set()
    real = type(whole.source).image

    def image(self, part, name):
        read.add((part, name))
        return real(self, part, name)

    monkeypatch.setattr(type(whole.source), "image", image)
    learned, tested = trial.train_dataset(1), trial.eval_dataset(1)
    for i in range(len(learned.names)):
        _ = learned[0, i]
    for i in range(len(tested)):
        _ = tested[i]
    step = {("train", whole.train_index.names[i]) for i in whole.image_lists[1]}
    assert read == step
