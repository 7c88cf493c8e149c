"""Predictions as images, polygons and files."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nacre.errors import NacreError
from nacre.predict import prediction, rasters
from nacre.predict.prediction import Prediction, count_classes, labelme, write_mask
from nacre.predict.rasters import make_class_map

COLORS = ((0, 0, 0), (200, 0, 0), (0, 200, 0))


@pytest.fixture
def classes() -> np.ndarray:
    rng = np.random.default_rng(3)
    return rng.integers(0, 3, (7, 5)).repeat(4, 0).repeat(4, 1).astype(np.uint8)


def test_an_overlay_needs_an_image_of_the_same_size(classes) -> None:
    found = Prediction(classes, ("background", "a", "b"), COLORS)
    assert found.overlay(Image.new("RGB", (20, 28))).size == (20, 28)
    with pytest.raises(NacreError, match="has 28 x 20 pixels, the prediction 20 x 28"):
        found.overlay(Image.new("RGB", (28, 20)))


@pytest.mark.parametrize("limit", [1, 10**6])
def test_a_class_map_in_a_file_is_written_as_one_in_memory(
    classes, limit: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rasters, "MAX_PIXELS_IN_MEMORY", limit)
    monkeypatch.setattr(prediction, "_PIXELS_PER_COUNT", 40)
    parts = make_class_map(classes.shape, 3, tmp_path / "work")
    assert isinstance(parts, np.memmap) == (limit == 1)
    parts[3:28, 0:9], parts[0:3, 0:9] = classes[3:, :9], classes[:3, :9]
    parts[0:28, 9:20] = classes[:, 9:]
    assert (count_classes(parts, 4) == np.bincount(classes.ravel(), minlength=4)).all()
    write_mask(tmp_path / "mask.png", parts, COLORS)
    assert list(tmp_path.glob("work/*")) == []
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == "P"
        assert (np.asarray(image) == classes).all()
        assert image.getpalette()[:9] == [value for color in COLORS for value in color]


def test_more_than_256_channels_are_written_with_16_bits(tmp_path: Path) -> None:
    classes = np.arange(300, dtype=np.uint16).reshape(20, 15)
    write_mask(tmp_path / "mask.png", classes, COLORS)
    assert (np.asarray(Image.open(tmp_path / "mask.png")) == classes).all()


def test_background_below_all_polygons_has_none(classes) -> None:
    content = labelme(classes, ("background", "cat", "dog"), "a.png", 0.0)
    assert (content["imageHeight"], content["imageWidth"]) == classes.shape
    assert {shape["label"] for shape in content["shapes"]} == {"_background_", "cat", "dog"}
    assert content["shapes"][0]["label"] != "_background_"


def test_a_prediction_has_class_names_a_palette_image_and_an_overlay(classes) -> None:
    seen = Prediction(classes, ("background", "cat", "dog"), COLORS)
    assert (seen.names == np.array(seen.classes)[classes]).all()
    assert seen.class_fractions() == {
        name: (classes == i).mean() for i, name in enumerate(seen.classes)
    }
    image = seen.image()
    assert image.mode == "P"
    assert (np.asarray(image) == classes).all()
    assert (np.asarray(image.convert("RGB")) == np.array(COLORS)[classes]).all()
    mixed = np.asarray(seen.overlay(np.full((*classes.shape, 3), 100, np.uint8), alpha=0.5))
    assert (mixed[classes == 0] == 100).all(), "the background stays as it is"
    assert (mixed[classes == 1] == (150, 50, 50)).all()
