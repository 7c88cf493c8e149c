"""More than 254 classes: targets of 16 bits, from the mask to the model."""

import numpy as np
import pytest
from PIL import Image

import nacre
from nacre.labels.channels import ignore_value
from nacre.labels.mapping import LabelPolicy
from nacre.labels.space import LabelSpace
from nacre.runs.run import run_scenario
from nacre.scenarios.classes import ClassSchedule
from nacre.training.config import build_config

CLASSES = 300


def write_many(root, classes):
    """Images of 20 x 20 squares, each of a class of its own."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    rng = np.random.default_rng(1)
    colors = rng.integers(0, 255, (CLASSES + 1, 3), np.uint8)
    for split, count in (("train", 4), ("val", 2)):
        names = [f"{split}-{i}" for i in range(count)]
        for name in names:
            labels = rng.permutation(np.resize(classes, 400)).reshape(20, 20).repeat(2, 0)
            labels = labels.repeat(2, 1).astype(np.uint16)
            Image.fromarray(colors[labels]).save(root / "images" / f"{name}.png")
            labels[0, 0] = 65535
            Image.fromarray(labels).save(root / "masks" / f"{name}.png")
        (root / f"{split}.txt").write_text("\n".join(names))
    named = "\n".join(f"  {label}: class-{label}" for label in classes)
    (root / "classes.yaml").write_text(f"background: 0\nignored: 65535\nclasses:\n{named}\n")
    return root


TINY = {
    "model": {"backbone": "tiny", "decoder_channels": 4},
    "images": {"crop_size": 32, "crop": "plain"},
    "train": {"iterations": 2, "batch_size": 2},
}


def test_targets_have_as_many_bits_as_the_classes_need():
    space = LabelSpace({label: f"class-{label}" for label in range(1, CLASSES + 1)}, ignored=65535)
    table = ClassSchedule(space, (tuple(range(1, 255)), tuple(range(255, CLASSES + 1))))
    policy = LabelPolicy(border="ignored")
    few, many = (table.training_mapping(step, policy).lookup for step in (0, 1))
    assert few.dtype == np.uint8
    assert few[65535] == ignore_value(few) == 255
    assert many.dtype == np.int16
    assert many[255] == 255, "a class like any other"
    assert many[65535] == ignore_value(many) == -1
    assert table.testing_mapping(1, policy).lookup[CLASSES] == CLASSES


@pytest.mark.parametrize("method", ["mib", "lwf-mc"])
def test_a_run_learns_three_hundred_classes(tmp_path, method):
    root = write_many(tmp_path / "data", range(1, CLASSES + 1))
    values = {"scenario": "folder/280-20/overlapped", "data": {"root": str(root)}, **TINY}
    summary = run_scenario(build_config(overrides=values | {"method": method}), tmp_path / "run")
    assert len(summary["classes"]) == CLASSES + 1
    model = nacre.load(tmp_path / "run")
    seen = model.predict(root / "images" / "val-0.png")
    assert seen.mask.shape == (40, 40)
    assert seen.image().size == (40, 40)


def test_a_model_grows_over_the_border(tmp_path):
    first = write_many(tmp_path / "first", range(1, 251))
    nacre.learn(first, out=tmp_path / "a", config=TINY)
    second = write_many(tmp_path / "second", range(251, CLASSES + 1))
    model = nacre.learn(second, start=tmp_path / "a", out=tmp_path / "b", config=TINY)
    assert len(model.classes) == CLASSES + 1
