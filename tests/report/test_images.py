"""Images of a page: chosen by rule, the same every time, predicted as tests do."""

import io
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import nacre
from nacre.api.model import load
from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import IGNORE_INDEX
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.report.images import (
    PredictedImage,
    Sheet,
    TestImage,
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


def test_the_first_are_those_with_the_largest_differences(runs: Path) -> None:
    everything = make_sheet([runs], 100)
    scores = {seen.image.name: seen.disagreement for seen in everything.images}
    assert len(scores) == everything.candidates
    few = make_sheet([runs], 4)
    first = sorted(scores.values(), reverse=True)[:2]
    assert [seen.disagreement for seen in few.images[:2]] == first


def test_disagreement_is_counted_among_incremental_methods_only(runs: Path) -> None:
    sheet = make_sheet([runs / "mib", runs / "joint"], 3)
    assert all(seen.disagreement == 0 for seen in sheet.images)


def mask_of(path: Path, pixels: Any, *how: Any) -> Any:
    """Return the mask that the network of a run predicts."""
    batch = torch.from_numpy(pixels).permute(2, 0, 1)[None]
    return Predictor(load(path, "cpu").network, *how).classes(batch)[0].numpy()


def test_masks_are_what_the_networks_say(runs: Path) -> None:
    sheet = make_sheet([runs], 1)
    seen = sheet.images[0]
    assert np.array_equal(seen.masks[2], mask_of(runs / "mib", seen.image.pixels))
    assert set(sheet.shown_classes()) >= set(np.unique(seen.masks[2]).tolist())


def test_right_counts_tested_pixels_only() -> None:
    truth = np.array([[0, 1], [2, IGNORE_INDEX]], np.uint8)
    mask = np.array([[0, 1], [1, 1]], np.uint8)
    seen = PredictedImage(TestImage("x", np.zeros((2, 2, 3), np.uint8), truth), (mask,), 0.0, "")
    assert seen.accuracy(0) == pytest.approx(2 / 3)


def test_paint_uses_the_palette() -> None:
    mask = np.array([[0, 1, IGNORE_INDEX]], np.uint8)
    black = np.zeros((1, 3, 3), np.uint8)
    painted = colorize(mask, [(0, 0, 0), (200, 100, 50)], black)
    assert painted[0, 0].tolist() == [0, 0, 0]
    assert painted[0, 1].tolist() == [160, 80, 40]
    assert len(set(painted[0, 2].tolist())) == 1
    assert painted[0, 2, 0] > 150


def test_data_uri_holds_the_picture() -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (64, 32, 3), dtype=np.uint8)
    uri = data_uri(pixels, 128)
    head, _, body = uri.partition(",")
    assert head == "data:image/webp;base64"
    shown = Image.open(io.BytesIO(b64decode(body)))
    assert np.array_equal(np.asarray(shown.convert("RGB")), pixels)
    smaller = data_uri(pixels, 16).partition(",")[2]
    assert Image.open(io.BytesIO(b64decode(smaller))).size == (8, 16)


def test_pictures_are_seen_through_windows_where_tests_are(make_run: Any, tmp_path: Path) -> None:
    images = {"crop_size": 16, "eval_mode": "sliding"}
    path = make_run("a", networks=True, images=images)
    (seen,) = make_sheet([path], 1).images
    assert np.array_equal(seen.masks[0], mask_of(path, seen.image.pixels, "sliding", 16))


@pytest.fixture
def unknowing() -> DeepLab:
    """A network to which everything is unknown."""
    torch.manual_seed(0)
    model = DeepLabConfig(backbone="tiny", decoder_channels=8)
    network = build_network(model, 3, 32).eval()
    assert isinstance(network, DeepLab)
    with torch.no_grad():
        network.classifier.rows[0].bias[1] += 6
        network.classifier.add_row("unknown")
        network.classifier.unknown.bias += 12
    return network


def test_a_picture_shows_what_is_unknown_as_background(unknowing: DeepLab) -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    image = TestImage("one", pixels, np.zeros((32, 32), np.uint8))
    assert not predict_masks(Predictor(unknowing), [image])[0].any()
    unknowing.classifier.keep_rows(frozenset())
    assert (predict_masks(Predictor(unknowing), [image])[0] == 1).all()


def test_a_report_of_forgetting_counts_what_is_unknown_as_background(unknowing: DeepLab) -> None:
    images, targets = torch.zeros(1, 3, 32, 32), torch.zeros(1, 32, 32, dtype=torch.long)
    report = nacre.report_forgetting(unknowing, unknowing, [(images, targets)])
    assert report.after[0] == 1
