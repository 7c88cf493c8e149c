"""Pictures: chosen by rule, the same every time, in the data's colours."""

import io
from base64 import b64decode
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nacre.labels.channels import IGNORE_INDEX
from nacre.report.pictures.predict import TestImage, colorize, data_uri, open_data
from nacre.report.pictures.sheet import DIFFERENT, RANDOM, PredictedImage, Sheet, comparison_sheet
from nacre.report.results.aggregate import load_results


def make_sheet(paths: list[Path], count: int) -> Sheet:
    (results,) = load_results(paths)
    return comparison_sheet(results, open_data(results.rows), count)


def test_the_same_pictures_are_chosen_every_time(runs: Path) -> None:
    one, two = make_sheet([runs], 4), make_sheet([runs], 4)
    assert [seen.image.name for seen in one.pictures] == [seen.image.name for seen in two.pictures]
    assert len({seen.image.name for seen in one.pictures}) == 4
    assert [seen.why for seen in one.pictures] == [DIFFERENT] * 2 + [RANDOM] * 2
    assert one.columns == ("FT", "LwF", "MiB", "Joint")


def test_the_first_are_those_with_the_largest_differences(runs: Path) -> None:
    everything = make_sheet([runs], 100)
    scores = {seen.image.name: seen.disagreement for seen in everything.pictures}
    assert len(scores) == everything.candidates
    few = make_sheet([runs], 4)
    first = sorted(scores.values(), reverse=True)[:2]
    assert [seen.disagreement for seen in few.pictures[:2]] == first


def test_disagreement_is_counted_among_incremental_methods_only(runs: Path) -> None:
    sheet = make_sheet([runs / "mib", runs / "joint"], 3)
    assert all(seen.disagreement == 0 for seen in sheet.pictures)


def test_masks_are_what_the_networks_say(runs: Path) -> None:
    import torch

    from nacre.api.model import load
    from nacre.evaluation.predictor import Predictor

    sheet = make_sheet([runs], 1)
    seen = sheet.pictures[0]
    network = load(runs / "mib").network
    batch = torch.from_numpy(seen.image.pixels).permute(2, 0, 1)[None]
    expected = Predictor(network).scores(batch).argmax(1)[0].numpy()
    assert np.array_equal(seen.masks[2], expected)
    assert set(sheet.shown_classes()) >= set(np.unique(seen.masks[2]).tolist())


def test_right_counts_tested_pixels_only() -> None:
    truth = np.array([[0, 1], [2, IGNORE_INDEX]], np.uint8)
    mask = np.array([[0, 1], [1, 1]], np.uint8)
    seen = PredictedImage(TestImage("x", np.zeros((2, 2, 3), np.uint8), truth), (mask,), 0.0, "")
    assert seen.right(0) == pytest.approx(2 / 3)


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
