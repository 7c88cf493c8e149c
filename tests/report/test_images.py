"""Images of a page: chosen by a rule, and predicted as in tests."""

import io
from base64 import b64decode
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch import nn

from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import IGNORE_INDEX
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.io import find_model, load_model, save_model
from nacre.report.images import (
    Sheet,
    SheetRow,
    TestImage,
    choose_rows,
    colorize,
    comparison_sheet,
    data_uri,
    open_data,
    predict_masks,
)
from nacre.report.results import load_results


def make_sheet(paths: list[Path], count: int) -> Sheet:
    (results,) = load_results(paths)
    return comparison_sheet(results, open_data(results), count)


def test_the_first_half_of_the_images_has_the_largest_disagreement() -> None:
    truth = np.full((1, 8), IGNORE_INDEX, np.uint8)
    truth[0, :6] = 0
    pixels, zeros = np.zeros((1, 8, 3), np.uint8), np.zeros((1, 8), np.uint8)
    other = (np.arange(8) >= np.array([6, 3, 5, 0, 4])[:, None, None]).astype(np.uint8)
    other[1, 0, 6:] = 0  # the others differ there, too, but these pixels are not tested
    images = [TestImage(name, pixels, truth) for name in "abcde"]
    columns = {"ft": [zeros] * 5, "mib": list(other)}
    rows = choose_rows(images, columns, [*columns.values()], 3, np.random.default_rng(0))
    assert [row.image.name for row in rows[:2]] == ["d", "b"]
    assert [row.why for row in rows] == ["predictions differ most"] * 2 + ["drawn at random"]


def test_joint_training_does_not_count_for_the_disagreement(
    runs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts: list[int] = []

    def choose(images: Any, columns: Any, compared: Any, *_: Any) -> tuple[SheetRow, ...]:
        counts.append(len(compared))
        return ()

    monkeypatch.setattr("nacre.report.images.choose_rows", choose)
    assert make_sheet([runs / "mib", runs / "joint"], 3).columns[1] == "Joint"
    assert counts == [1]


@pytest.mark.parametrize(
    ("images", "settings"),
    [
        ({}, {}),
        ({"crop_size": 16, "eval_mode": "sliding"}, {"window": 16}),
        ({}, {"mirror": True}),
        ({}, {"edges": True}),
    ],
    ids=["whole", "windows", "mirror", "edges"],
)
@torch.no_grad()
def test_masks_are_predicted_as_in_tests(make_run: Any, images: Any, settings: Any) -> None:
    path = make_run("a", networks=True, images={"crop_size": 32, **images})
    pixels = make_sheet([path], 1).rows[0].image.pixels
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    network, info, _ = load_model(find_model(path))
    assert isinstance(network, DeepLab)
    # An untrained network predicts one class everywhere, unless all have the same mean score.
    means = network(batch).logits.mean((0, 2, 3))
    classifier = network.classifier
    classifier.set_rows(classifier.weight(slice(None)), classifier.bias(slice(None)) - means)
    flags = {key: value for key, value in settings.items() if key != "window"}
    save_model(find_model(path), network, replace(info, **flags), {})
    sheet = make_sheet([path], 1)
    mask = Predictor(network, **settings).classes(batch)[0].numpy()
    assert np.array_equal(sheet.rows[0].masks[0], mask)
    assert set(sheet.shown_channels()) >= set(np.unique(mask).tolist())
    plain = Predictor(network).classes(batch)[0].numpy()
    assert np.array_equal(mask, plain) == (not settings)


def test_unknown_pixels_are_shown_as_background() -> None:
    torch.manual_seed(0)
    network = build_network(DeepLabConfig(backbone="tiny", decoder_channels=8), 3, 32).eval()
    assert isinstance(network, DeepLab)
    network.classifier.rows[0].bias.data[1] += 6
    network.classifier.add_row("unknown")
    assert isinstance(network.classifier.unknown, nn.Conv2d)
    network.classifier.unknown.bias.data += 12
    black = TestImage("x", np.zeros((32, 32, 3), np.uint8), np.zeros((32, 32), np.uint8))
    assert not predict_masks(Predictor(network), [black])[0].any()
    network.classifier.keep_rows(frozenset())
    assert (predict_masks(Predictor(network), [black])[0] == 1).all()


def test_accuracy_counts_tested_pixels_only() -> None:
    truth = np.array([[0, 1], [2, IGNORE_INDEX]], np.uint8)
    mask = np.array([[0, 1], [1, 1]], np.uint8)
    image = TestImage("x", np.zeros((2, 2, 3), np.uint8), truth)
    assert SheetRow(image, (mask,), "").accuracy(0) == pytest.approx(2 / 3)


def test_masks_are_painted_with_the_palette() -> None:
    mask = np.array([[0, 1, IGNORE_INDEX]], np.uint8)
    black = np.zeros((1, 3, 3), np.uint8)
    painted = colorize(mask, [(0, 0, 0), (200, 100, 50)], black)
    assert painted[0, 0].tolist() == [0, 0, 0]
    assert painted[0, 1].tolist() == [160, 80, 40]
    assert len(set(painted[0, 2].tolist())) == 1
    assert painted[0, 2, 0] > 150


def test_a_data_uri_contains_the_image() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 32, 3), dtype=np.uint8)
    kind, _, body = data_uri(pixels, 128).partition(",")
    assert kind == "data:image/webp;base64"
    shown = Image.open(io.BytesIO(b64decode(body)))
    assert np.array_equal(np.asarray(shown.convert("RGB")), pixels)
    smaller = data_uri(pixels, 16).partition(",")[2]
    assert Image.open(io.BytesIO(b64decode(smaller))).size == (8, 16)
