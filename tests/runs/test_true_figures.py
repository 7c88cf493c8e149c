"""The figures of `nacre learn` and `nacre eval` come from the same whole images."""

import copy
import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import nacre
from nacre.data.folder import is_for_testing
from nacre.data.step_data import LabeledSet, LearnData
from nacre.data.transforms import ImagesConfig
from nacre.errors import NacreError
from nacre.evaluation.metrics import confusion_matrix, iou_by_class
from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import first_channels
from nacre.labels.mapping import LabelPolicy
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.report.page import write_learn_page
from nacre.runs.evaluate import evaluate_checkpoint
from nacre.runs.learn import open_folders
from nacre.runs.testing import LearnTests, Pass, class_ious
from nacre.training.config import LearnConfig, resolve
from nacre.utils.distributed import Distributed

CPU = torch.device("cpu")
TINY = {
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32},
    "train": {"iterations": 2, "batch_size": 4, "lr": 0.05, "device": "cpu"},
    "method": {"name": "mib"},
}
COLORS = {1: (220, 30, 30), 2: (30, 200, 30), 3: (30, 60, 230)}


def write(root: Path, classes: dict[int, str], *, count: int = 20, lists: bool = False) -> Path:
    """Write upright images of 40 x 64 with squares at the top, every fourth without any."""
    rng = np.random.default_rng(0)
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for i in range(count):
        pixels = rng.integers(90, 140, (64, 40, 3)).astype(np.uint8)
        mask = np.zeros((64, 40), np.uint8)
        if i % 4:
            label = list(classes)[i % len(classes)]
            pixels[1:11, 5:30], mask[1:11, 5:30] = COLORS[label], label
        Image.fromarray(pixels).save(root / "images" / f"{i:03d}.png")
        Image.fromarray(mask).save(root / "masks" / f"{i:03d}.png")
    named = ", ".join(f"{label}: {name}" for label, name in classes.items())
    (root / "classes.yaml").write_text(f"classes: {{{named}}}")
    if lists:
        names = [f"{i:03d}" for i in range(count)]
        (root / "train.txt").write_text("\n".join(names[: count // 2]))
        (root / "val.txt").write_text("\n".join(names[count // 2 :]))
    return root


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("world")
    write(root / "pets", {1: "cat", 2: "dog"}, lists=True)
    write(root / "mixed", {1: "cat", 3: "bird"}, lists=True)
    write(root / "loose", {1: "cat", 2: "dog"})
    nacre.learn(root / "pets", out=root / "model", config=TINY)
    return root


def step_data(world: Path, known: list[str], new: list[str]) -> LearnData:
    sets = [LabeledSet(name, source, {}) for name, source in open_folders([world / "mixed"])]
    images, before = ImagesConfig(crop_size=32), first_channels(known[1:], {})
    return LearnData(tuple(sets), (), before, tuple(new), images, 1, LabelPolicy())


def test_a_network_in_which_nothing_changed_has_the_same_figures_before_and_after(world):
    known = ["background", "cat", "dog"]
    data = step_data(world, known, ["bird"])
    config = resolve(LearnConfig, {**TINY, "data": [str(world / "mixed")]})
    torch.manual_seed(0)
    model = DeepLabConfig(backbone="tiny", decoder_channels=8)
    network = build_network(model, 3, 32).eval()
    with torch.no_grad():
        network.classifier.rows[0].bias[1] += 10
    start = Predictor(copy.deepcopy(network), "crop", 32)
    network.grow(1)
    with torch.no_grad():
        network.classifier.rows[-1].weight.zero_()
        network.classifier.rows[-1].bias.fill_(-1e4)
    one_pass = Pass(config.train, Distributed(0, 1, CPU))
    predictor = Predictor(network, "crop", 32)
    found = LearnTests(data, config).compare(predictor, data.channels, start, one_pass)
    assert class_ious(found.before)["cat"] == class_ious(found.after)["cat"] != 0
    assert found.before[0]["images"] == found.after[0]["images"] == 10
    assert found.agreement is not None
    assert set(found.agreement["iou"].values()) == {1.0}


def test_every_image_is_tested_whole_and_at_its_own_size_as_predict_sees_it(world):
    """Squares are at the top, outside of the center, and some images are empty."""
    metrics = json.loads((world / "model" / "metrics.json").read_text())
    assert metrics["images"] == 10
    model, counts = nacre.load(world / "model"), torch.zeros(3, 3, dtype=torch.int64)
    for i in range(10, 20):
        mask = np.array(Image.open(world / "pets/masks" / f"{i:03d}.png"))
        seen = model.predict(world / "pets/images" / f"{i:03d}.png").mask
        counts += confusion_matrix(torch.from_numpy(mask), torch.from_numpy(seen), 3)
    assert counts.sum() == 10 * 64 * 40
    assert metrics["iou"] == dict(zip(["cat", "dog"], iou_by_class(counts)[1:], strict=True))


def test_the_same_model_on_the_same_folder_has_the_same_iou_in_every_command(world, tmp_path):
    own = json.loads((world / "model" / "metrics.json").read_text())["iou"]
    assert evaluate_checkpoint(world / "model", {})["iou"] == own
    assert nacre.load(world / "model").evaluate(world / "pets").iou == own
    page = write_learn_page(world / "model", tmp_path / "report").read_text()
    assert all(f"{100 * own[name]:.1f}" in page for name in ("cat", "dog"))
    at_pets = {"data": {"root": str(world / "pets")}}
    assert evaluate_checkpoint(world / "model", at_pets)["iou"] == own
    nacre.learn(
        world / "mixed",
        start=world / "model",
        out=tmp_path / "more",
        tests=[world / "pets"],
        config=TINY,
    )
    more = json.loads((tmp_path / "more" / "metrics.json").read_text())
    before = {test["name"]: test["iou"] for test in more["tests_before"]}
    assert before["pets"] == own


def test_in_a_folder_without_lists_only_images_that_are_never_learned_are_tested(world):
    names = [f"{i:03d}" for i in range(20)]
    held_out = sum(is_for_testing(name) for name in names)
    assert 0 < held_out < 20
    (loose,) = evaluate_checkpoint(world / "model", {"data": {"root": str(world / "loose")}})[
        "tests"
    ]
    assert (loose["images"], loose["training_images"]) == (held_out, 0)
    (every,) = evaluate_checkpoint(
        world / "model", {"data": {"root": str(world / "loose") + ":all"}}
    )["tests"]
    assert (every["images"], every["training_images"]) == (20, 20 - held_out)


def test_masks_that_were_changed_are_noticed(world, tmp_path):
    folder = write(tmp_path / "pets", {1: "cat", 2: "dog"}, lists=True)
    nacre.learn(folder, out=tmp_path / "out", config=TINY)
    mask = np.array(Image.open(folder / "masks/001.png"))
    Image.fromarray(np.where(mask > 0, mask, (np.arange(40) < 3).astype(np.uint8))).save(
        folder / "masks/001.png"
    )
    with pytest.raises(NacreError, match=r"other data \(training images or masks of pets\)"):
        nacre.learn(folder, out=tmp_path / "out", config=TINY)
