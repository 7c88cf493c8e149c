"""Class maps that are too large to be held: in parts they are what they are as a whole."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nacre.predict import class_map
from nacre.predict.class_map import StoredMap, count_classes, make_class_map, write_png
from nacre.predict.polygons import trace_rings
from nacre.predict.writers import CocoWriter, Legend, encode_runs, write_mask

LEGEND = Legend(("background", "cat", "dog"), ((0, 0, 0), (200, 0, 0), (0, 200, 0)))


@pytest.fixture(params=["array", "file"])
def pair(request, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """Give a class map as an array, and the same as what is looked at ten pixels at a time."""
    monkeypatch.setattr(class_map, "STRIP_PIXELS", 40)
    monkeypatch.setattr(class_map, "IN_MEMORY", 1 if request.param == "file" else 10**6)
    whole = np.random.default_rng(0).integers(0, 3, (23, 17)).astype(np.uint8)
    with make_class_map(whole.shape, 3, tmp_path / "work") as parts:
        assert isinstance(parts, StoredMap) == (request.param == "file")
        parts[3:23, 0:9] = whole[3:, :9]
        parts[0:3, 0:9] = whole[:3, :9]
        parts[0:23, 9:17] = whole[:, 9:]
        yield whole, parts
    assert list(tmp_path.glob("work/.*")) == []


def test_parts_are_what_was_written(pair) -> None:
    whole, parts = pair
    assert (parts[2:20, 4:15] == whole[2:20, 4:15]).all()
    assert (count_classes(parts, 4) == np.bincount(whole.ravel(), minlength=4)).all()


def test_a_png_written_in_strips_is_read_by_pillow(pair, tmp_path: Path) -> None:
    whole, parts = pair
    write_mask(tmp_path / "mask.png", parts, LEGEND)
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == "P"
        assert (np.asarray(image) == whole).all()
        assert image.getpalette()[:9] == [value for color in LEGEND.colors for value in color]


def test_more_than_256_channels_are_16_bits_of_grey() -> None:
    classes = np.arange(300, dtype=np.uint16).reshape(20, 15)
    file = io.BytesIO()
    write_png(file, classes, b"")
    assert (np.asarray(Image.open(file)) == classes).all()
    assert {ring.channel for ring in trace_rings(classes)} == set(range(300))


def test_runs_and_boxes_of_parts_are_those_of_the_whole(pair, tmp_path: Path) -> None:
    whole, parts = pair
    for channel in range(3):
        runs = encode_runs(parts, channel)
        flat = np.repeat(np.arange(len(runs)) % 2 == 1, runs)
        assert (flat.reshape(whole.shape, order="F") == (whole == channel)).all()
    writer = CocoWriter(tmp_path / "coco.json", LEGEND)
    alone = np.zeros((23, 17), np.uint8)
    alone[5:9, 7:12] = 2
    parts[0:23, 0:17] = alone
    writer.add("a.png", parts)
    writer.close()
    (found,) = json.loads((tmp_path / "coco.json").read_text())["annotations"]
    assert (found["bbox"], found["area"]) == ([7, 5, 5, 4], 20)
