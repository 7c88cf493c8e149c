"""A memory of old images: its images, their labels, and that no later label leaks into them."""

import csv

import numpy as np
import pytest

from nacre.errors import NacreError
from nacre.labels.mapping import rows_for_loss
from nacre.runs.run import open_scenario, run_scenario
from nacre.training.events import StepBegan, StepSkipped, read_events
from tiny_runs import stopped_run, tiny_config

MEMORY = {"memory": 6}


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    out = tmp_path_factory.mktemp("memory") / "run"
    run_scenario(tiny_config(**MEMORY), out)
    return out


def test_the_list_is_in_the_folder_and_is_no_larger_than_asked_for(finished):
    rows = list(csv.DictReader((finished / "exemplars.csv").read_text().splitlines()))
    by_step = {step: [row for row in rows if row["step"] == str(step)] for step in range(3)}
    assert [len(kept) for kept in by_step.values()] == [0, 6, 6]
    assert {row["labels_of_step"] for row in by_step[1]} == {"0"}
    assert {row["labels_of_step"] for row in by_step[2]} == {"0", "1"}


def test_a_kept_image_has_the_labels_of_its_own_step_and_no_others():
    data = open_scenario(tiny_config(**MEMORY))
    classes = data.scenario.classes
    dataset = data.train_dataset(2)
    held = dict(zip(data.train_index.names, data.train_index.labels, strict=True))
    leaked, first = 0, len(dataset.folders[0])
    for origin, folder in enumerate(dataset.folders[1:]):
        own = {classes.seen(2).index(label) + 1 for label in classes.new(origin)}
        for i, name in enumerate(folder.names, start=first):
            _, targets, number = dataset[0, i]
            assert number == origin + 1
            seen = set(np.unique(targets.numpy()).tolist()) - {0, 255}
            assert seen
            assert seen <= own
            leaked += bool(held[name] & set(classes.new(2)))
        first += len(folder)
    assert leaked, "some old image holds a class of the present step, so the test can fail"


@pytest.mark.parametrize(("method", "old_hide"), [("mib", True), ("ft", False), ("dkd", False)])
def test_classes_that_a_kept_images_step_did_not_label_may_hide_in_it(method, old_hide):
    config = tiny_config(**MEMORY, method=method)
    data = open_scenario(config)
    assert told(data, 0, old_hide) is None
    rows = told(data, 2, old_hide)
    expected = [
        [True] + [old_hide] * 6 + [False] * 2,  # the step's own images, as the method has it
        [True] + [False] * 4 + [True] * 4,  # images of step 0, which labeled four classes
        [True] + [True] * 4 + [False] * 2 + [True] * 2,
    ]
    assert rows is not None
    assert rows[:, 0].tolist() == expected


def told(data, step, hides_old):
    """Return the channels that targets may be, for each data set of a step."""
    mappings, growth = data.train_dataset(step).mappings, data.scenario.classes.growth(step)
    return rows_for_loss(mappings, growth, hides_old=hides_old)


def test_kept_images_have_their_share_of_every_batch_and_cost_no_updates(finished):
    config = tiny_config(**MEMORY)
    events = read_events(finished / "events.jsonl")
    begun = {one.step: one for one in events if isinstance(one, StepBegan)}
    lists = open_scenario(config).image_lists
    for step, images in enumerate(lists):
        assert begun[step].iterations == len(images) // config.train.batch_size
    data = open_scenario(config)
    shares = data.batch_shares(1)
    assert shares is not None
    assert shares == ((len(lists[1]), 0.5), (6, 0.5))


def test_step_0_is_shared_with_runs_that_keep_nothing(finished, tmp_path):
    cache = tmp_path / "steps"
    run_scenario(tiny_config(**MEMORY), tmp_path / "kept", cache=cache)
    run_scenario(tiny_config(), tmp_path / "run", cache=cache)
    events = read_events(tmp_path / "run" / "events.jsonl")
    assert [one.step for one in events if isinstance(one, StepSkipped)] == [0]
    steps = [path / "step-2" / "model.safetensors" for path in (finished, tmp_path / "run")]
    assert steps[0].read_bytes() != steps[1].read_bytes()
    with pytest.raises(NacreError, match=r"memory: 6 -> 7"):
        run_scenario(tiny_config(memory=7), finished)


def test_a_memory_that_would_now_be_another_is_refused(finished, tmp_path):
    out = tmp_path / "run"
    stopped_run(out, tiny_config(**MEMORY))
    kept = (out / "exemplars.csv").read_text().splitlines()
    (out / "exemplars.csv").write_text("\n".join(kept[:-1]) + "\n")
    with pytest.raises(NacreError, match="the memory would hold other images"):
        run_scenario(tiny_config(**MEMORY), out)
