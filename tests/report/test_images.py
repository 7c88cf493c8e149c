"""Images of a page: chosen by a rule, and predicted as in tests."""

import io
from base64 import b64decode
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from nacre.api.model import load
from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import IGNORE_INDEX
from nacre.report.images import (
    Sheet,
    SheetRow,
    TestImage,
    colorize,
    comparison_sheet,
    data_uri,
    open_data,
)
from nacre.report.results import load_results


def make_sheet(paths: list[Path], count: int) -> Sheet:
    (results,) = load_results(paths)
    return comparison_sheet(results, open_data(results), count)


def test_the_first_images_have_the_largest_disagreement(runs: Path) -> None:
    all_rows = make_sheet([runs], 100)
    scores = {row.image.name: row.disagreement for row in all_rows.rows}
    assert len(scores) == all_rows.num_candidates
    first = sorted(scores.values(), reverse=True)[:2]
    assert [row.disagreement for row in make_sheet([runs], 4).rows[:2]] == first


def test_joint_training_does_not_count_for_the_disagreement(runs: Path) -> None:
    sheet = make_sheet([runs / "mib", runs / "joint"], 3)
    assert all(row.disagreement == 0 for row in sheet.rows)


@pytest.mark.parametrize(
    ("images", "how"),
    [
        ({"crop_size": 32}, ()),
        ({"crop_size": 16, "eval_mode": "sliding"}, ("sliding", 16)),
    ],
)
def test_masks_are_predicted_as_in_tests(make_run: Any, images: Any, how: Any) -> None:
    path = make_run("a", networks=True, images=images)
    sheet = make_sheet([path], 1)
    (row,) = sheet.rows
    batch = torch.from_numpy(row.image.pixels).permute(2, 0, 1)[None]
    mask = Predictor(load(path, "cpu").network, *how).classes(batch)[0].numpy()
    assert np.array_equal(row.masks[0], mask)
    assert set(sheet.shown_channels()) >= set(np.unique(mask).tolist())


def test_accuracy_counts_tested_pixels_only() -> None:
    truth = np.array([[0, 1], [2, IGNORE_INDEX]], np.uint8)
    mask = np.array([[0, 1], [1, 1]], np.uint8)
    image = TestImage("x", np.zeros((2, 2, 3), np.uint8), truth)
    assert SheetRow(image, (mask,), 0.0, "").accuracy(0) == pytest.approx(2 / 3)


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
