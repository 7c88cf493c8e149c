"""The ledger: what one pass counts, what its head is, and which models it continues."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from typer.testing import CliRunner

import nacre
from nacre.cli.app import program
from nacre.data.scenes import ScenesConfig
from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import from_background
from nacre.methods import METHODS, Batch
from nacre.methods.ledger import SCALE, check_sums, from_state, mask_known, set_head
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig, ModelConfig
from nacre.models.io import find_model, load_model
from nacre.runs.edit import open_ledger
from nacre.runs.run import run_scenario
from nacre.training.config import build_config
from nacre.training.events import Iterated
from partial_data import write_folder
from small_steps import OLD, SIDE, GivenStep, may_be, random_images
from tiny_runs import tiny_config

LEDGER = METHODS["ledger"]
TWO_STEPS = {"scenario": "scenes/4-4/overlapped", "method": {"name": "ledger"}}
WORLD = ScenesConfig(train=40, val=6, size=32, seed=3)
RECIPE = {
    "model": {"backbone": "tiny"},
    "images": {"crop_size": 32, "crop": "plain"},
    "train": {"batch_size": 8},
}


def first_step(batches, num_classes=OLD, crop=SIDE, **values):
    """A first step of the ledger in float64, with images in batches; return method and network."""
    torch.manual_seed(1)
    method = LEDGER(LEDGER.Config(**values), from_background(0, num_classes))
    model = method.network_config(DeepLabConfig(backbone="tiny"))
    network = build_network(model, num_classes, crop).double().eval()
    step = GivenStep(growth=method.growth, network=network, given=batches)
    method.fit(step)
    return method, network


def explicit_scores(network, images, targets, ridge=0.01):
    """Weighted ridge regression on the features of every single pixel."""
    head = network.decoder
    joined = head.join(network.read_maps(images))
    full = F.interpolate(joined, targets.shape[1:], mode="bilinear", align_corners=False)
    x = full.movedim(1, -1).flatten(0, 2)
    y, counted = targets.flatten().long(), targets.flatten() != 255
    mine, labels = x[counted], y[counted]
    counts = torch.bincount(labels, minlength=network.num_classes).double()
    balance = counts.sqrt() / counts.sqrt().sum()
    weights = (balance / counts)[labels]
    mean = weights @ mine
    around = mine - mean
    covariance = around.T @ (around * weights[:, None])
    shrunk = covariance + ridge * covariance.diagonal().diag()
    right = around.T @ (F.one_hot(labels, network.num_classes).double() * weights[:, None])
    solution = torch.linalg.solve(shrunk, right)
    return ((x - mean) @ solution + balance).view(*targets.shape, -1).movedim(-1, 1)


@pytest.mark.parametrize("crop", [SIDE, SIDE // 2], ids=["one mean", "means of windows"])
def test_the_head_is_ridge_regression_on_every_pixel(crop):
    samples = [random_images([0, 0, 1, 2, 255], seed, count) for seed, count in ((0, 4), (1, 3))]
    _, network = first_step([Batch(*one) for one in samples], crop=crop)
    images, targets = (torch.cat(part) for part in zip(*samples, strict=True))
    wanted = explicit_scores(network, images, targets)
    assert torch.allclose(Predictor(network).scores(images), SCALE * wanted, atol=1e-4)
    assert float(wanted.abs().max()) > 0.1


def test_background_that_is_taken_for_a_known_class_is_not_counted():
    targets = torch.tensor([[[0, 0, 1, 255]], [[0, 0, 2, 0]]], dtype=torch.uint8)
    scores = torch.tensor([[0.0, 1, 1, 1], [1, 0, 0, 0], [0, 0, 0, 0]])[None, :, None]
    batch = Batch(torch.zeros(2, 3, 1, 4), targets)
    both = scores.repeat(2, 1, 1, 1)
    assert mask_known(batch, both).tolist() == [[[255, 0, 1, 255]], [[255, 0, 2, 0]]]
    hidden = torch.tensor([[False, False, True], [False, True, False]])
    found = mask_known(replace(batch, may_be=may_be(hidden)), both)
    assert found.tolist() == [[[0, 0, 1, 255]], [[255, 0, 2, 0]]], "only what may hide there"
    assert targets.tolist() == [[[0, 0, 1, 255]], [[0, 0, 2, 0]]]


def test_every_image_is_seen_once_and_each_class_has_its_row_per_step(tmp_path):
    seen = []
    config = tiny_config(**TWO_STEPS, labels={"unlabeled": "background"})
    run_scenario(config, tmp_path, observers=[seen.append])
    iterations = [(one.step, one.iteration) for one in seen if isinstance(one, Iterated)]
    counts = [
        json.loads(find_model(tmp_path / f"step-{k}").with_suffix(".json").read_text())
        for k in (0, 1)
    ]
    images = [one["history"][-1]["images"] for one in counts]
    assert iterations == [(k, i + 1) for k in (0, 1) for i in range(-(-images[k] // 8))]
    sums = open_ledger(tmp_path).sums
    assert list(zip(sums.step.tolist(), sums.channel.tolist(), strict=True)) == [
        *((0, c) for c in range(5)),
        *((1, c) for c in (0, 5, 6, 7, 8)),
    ]
    for step in (0, 1):  # nothing is masked: all pixels of all images
        assert float(sums.count[sums.step == step].sum()) == images[step] * 32 * 32


def test_masks_leave_background_out_after_step_0(tmp_path):
    runs = {}
    for rule in ("hidden", "background"):
        run_scenario(tiny_config(**TWO_STEPS, labels={"unlabeled": rule}), tmp_path / rule)
        sums = open_ledger(tmp_path / rule).sums
        background = sums.keep(sums.channel == 0)
        runs[rule] = background.count.tolist()
    assert runs["hidden"][0] == runs["background"][0]
    assert runs["hidden"][1] < runs["background"][1]


def test_the_file_of_a_model_is_all_that_a_later_step_needs(tmp_path):
    config = tiny_config(**TWO_STEPS)
    run_scenario(config, tmp_path)
    network, _, state = load_model(find_model(tmp_path))
    again = LEDGER(LEDGER.Config(), from_background(5, 7))
    again.load_state(state)
    assert {name: value.tolist() for name, value in again.state().items()} == {
        name: value.tolist() for name, value in state.items()
    }
    kept = [value.clone() for value in network.state_dict().values()]
    set_head(network, from_state(state), 0.01)
    assert all(torch.equal(a, b) for a, b in zip(kept, network.state_dict().values(), strict=True))


def test_folders_that_label_different_classes_are_learned_together(tmp_path):
    parts = [write_folder(tmp_path / name, [name], world=WORLD) for name in ("pearl", "crate")]
    model = nacre.learn(parts, out=tmp_path / "model", method="ledger", config=RECIPE)
    plain = {**RECIPE, "train": {"batch_size": 8}, "labels": {"unlabeled": "background"}}
    other = nacre.learn(parts, out=tmp_path / "plain", method="ledger", config=plain)
    tables = [open_ledger(one.path).sums for one in (model, other)]
    for sums in tables:
        places = zip(sums.folder.tolist(), sums.channel.tolist(), strict=True)
        assert list(places) == [(0, 0), (0, 1), (1, 0), (1, 2)], "a row per folder and class"
    masked, plain = (sums.count.tolist() for sums in tables)
    assert masked[1::2] == plain[1::2], "labeled pixels count alike"
    assert masked[0] + masked[2] < plain[0] + plain[2], "the other folder's class is no background"
    grown = model.learn(
        write_folder(tmp_path / "again", ["pearl", "starfish"], world=WORLD),
        out=tmp_path / "grown",
        method="ledger",
        config=RECIPE,
    )
    sums = open_ledger(grown.path).sums
    assert sorted(sums.channel[sums.step == 1].tolist()) == [0, 1, 3], "pearl is labeled again"


def test_without_a_background_every_pixel_gets_a_class(tmp_path):
    """As in street scenes, whose masks leave nothing unnamed."""
    root = tmp_path / "street"
    rng = np.random.default_rng(1)
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for i in range(12):
        mask = np.kron(rng.integers(0, 3, (4, 4)), np.ones((8, 8))).astype(np.uint8)
        shade = rng.normal(0, 20, (32, 32, 3)) + 100 * mask[..., None]
        Image.fromarray(shade.clip(0, 255).astype(np.uint8)).save(root / "images" / f"{i}.png")
        Image.fromarray(mask).save(root / "masks" / f"{i}.png")
    (root / "classes.yaml").write_text(
        "classes: {0: sky, 1: road, 2: car}\nbackground: null\nignored: 11\n"
    )
    model = nacre.learn(root, out=tmp_path / "model", method="ledger", config=RECIPE)
    assert 0 not in open_ledger(model.path).sums.channel.tolist()
    shown = model.predict(root / "images" / "0.png")
    assert 0 not in np.unique(shown.mask)
    truth = np.array(Image.open(root / "masks" / "0.png")) + 1
    assert (shown.mask == truth).mean() > 0.6


def test_it_continues_only_what_it_learned_itself(tmp_path):
    pearls = write_folder(tmp_path / "pearl", ["pearl"], world=WORLD)
    crates = write_folder(tmp_path / "crate", ["crate"], world=WORLD)
    once = {**RECIPE, "train": {"batch_size": 8, "iterations": 1}}
    mib = nacre.learn(pearls, out=tmp_path / "mib", method="mib", config=once)
    with pytest.raises(NacreError, match="has no sums of its classes"):
        mib.learn(crates, out=tmp_path / "x", method="ledger", config=RECIPE)
    model = nacre.learn(pearls, out=tmp_path / "ledger", method="ledger", config=RECIPE)
    fine = {**RECIPE, "method": {"grid_stride": 8}}
    with pytest.raises(
        NacreError, match=r"grid_stride: 8, but the model's sums have the stride 16"
    ):
        model.learn(crates, out=tmp_path / "y", method="ledger", config=fine)
    after = model.learn(crates, out=tmp_path / "z", method="mib", config=once)
    assert after.classes == ("background", "pearl", "crate"), "others may continue by gradients"


def test_networks_of_others_and_parts_of_gradients_are_refused():
    method = LEDGER(LEDGER.Config(), from_background(0, 3))
    with pytest.raises(NacreError, match="cannot learn step 0 with an external network"):
        method.network_config(ModelConfig(kind="external"))
    with pytest.raises(ValueError, match="fusion cannot be set for ledger"):
        LEDGER.Config(fusion="sqrt")


def test_damaged_sums_are_refused(tmp_path):
    run_scenario(tiny_config(**TWO_STEPS), tmp_path)
    _, _, state = load_model(find_model(tmp_path))
    with pytest.raises(NacreError, match="has no sums: scatter is missing"):
        from_state({k: v for k, v in state.items() if k != "sums.scatter"})
    with pytest.raises(NacreError, match="scatter has the wrong size"):
        from_state({**state, "sums.scatter": state["sums.scatter"][:, 1:]})
    with pytest.raises(NacreError, match="has the wrong type"):
        from_state({**state, "sums.channel": state["sums.channel"].float()})
    network, _, _ = load_model(find_model(tmp_path))
    for changes, message in (
        ({"channel": state["sums.channel"] + 4}, "channels up to 12"),
        (
            {"mean": state["sums.mean"][:, :1], "scatter": state["sums.scatter"][:, :1]},
            "1 features",
        ),
    ):
        named = {f"sums.{name}": value for name, value in changes.items()}
        with pytest.raises(NacreError, match=message):
            check_sums(network, from_state({**state, **named}))
    wrong = from_state({**state, "sums.scatter": torch.randn_like(state["sums.scatter"]) * 1e6})
    with pytest.raises(NacreError, match="no covariance"):
        set_head(network, wrong, 0.01)


def test_the_papers_preset_gives_it_the_papers_network_and_crop(tmp_path):
    chosen = {"scenario": "voc/15-1/overlapped", "method": {"name": "ledger"}}
    given = {"data": {"root": "x"}, "model": {"weights": "none"}}
    config = build_config(preset="paper", overrides={**chosen, **given})
    model = LEDGER(config.method, from_background(0, 1)).network_config(config.model)
    assert (model.backbone, model.output_stride, model.decoder) == ("resnet101", 16, "stages")
    assert config.images.crop_size == 512
    stand_in = {
        **TWO_STEPS,
        "data": {"train": 12, "val": 4, "size": 32},
        "model": {"backbone": "resnet18", "weights": "none"},
        "images": {"crop_size": 32},
    }
    run_scenario(build_config(preset="paper", overrides=stand_in), tmp_path)
    assert len(open_ledger(tmp_path).sums) == 10


def test_a_dry_run_shows_the_network_that_it_would_learn():
    given = ["scenes/4-4/overlapped", "--method", "ledger", "--preset", "demo", "--dry-run"]
    shown = " ".join(CliRunner().invoke(program, ["run", *given]).output.split())
    assert "decoder=stages" in shown
    assert "batches by step" in shown
