"""Predictions as files of other tools, read back by the importers."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from nacre.importers.shapes import parse_compressed
from nacre.predict.writers import (
    CocoWriter,
    Legend,
    compress_runs,
    encode_runs,
    labelme,
    overlay,
)

LEGEND = Legend(("background", "cat", "dog"), ((0, 0, 0), (200, 0, 0), (0, 200, 0)))


@pytest.fixture
def classes():
    return (
        np.random.default_rng(3).integers(0, 3, (7, 5)).repeat(4, 0).repeat(4, 1).astype(np.uint8)
    )


@given(st.lists(st.integers(0, 5000) | st.integers(0, 2**31), max_size=30))
def test_compressed_runs_are_read_back(runs: list[int]) -> None:
    assert parse_compressed(compress_runs(runs)).tolist() == runs


def test_runs_go_down_the_columns_zeros_first() -> None:
    classes = np.array([[1, 0], [1, 1]], np.uint8)
    assert encode_runs(classes, 1).tolist() == [0, 2, 1, 1]
    assert encode_runs(classes, 0).tolist() == [2, 1, 1]


def test_coco_holds_every_pixel(tmp_path: Path, classes) -> None:
    writer = CocoWriter(tmp_path / "coco.json", LEGEND)
    writer.add("a/b.png", classes)
    writer.close()
    content = json.loads((tmp_path / "coco.json").read_text())
    assert content["images"][0]["file_name"] == "a/b.png"
    found = np.zeros_like(classes)
    for one in content["annotations"]:
        runs = parse_compressed(one["segmentation"]["counts"])
        flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
        mask = flat.reshape(classes.shape, order="F")
        assert one["area"] == mask.sum()
        found[mask] = one["category_id"]
    assert (found == classes).all()


def test_labelme_paints_later_shapes_over_earlier_ones(classes) -> None:
    content = labelme(classes, LEGEND, "a.png", 0.0)
    assert content["imageHeight"], content["imageWidth"] == classes.shape
    assert {shape["label"] for shape in content["shapes"]} <= {"_background_", "cat", "dog"}
    assert content["shapes"][0]["label"] != "_background_"


def test_overlays_leave_the_background_as_it_is(classes) -> None:
    pixels = np.full((*classes.shape, 3), 100, np.uint8)
    mixed = np.asarray(overlay(pixels, classes, LEGEND, 0.5))
    assert (mixed[classes == 0] == 100).all()
    assert (mixed[classes == 1] == (150, 50, 50)).all()
    assert isinstance(overlay(pixels, classes, LEGEND), Image.Image)
