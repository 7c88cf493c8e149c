"""Predictions as files: masks, overlays, polygons, and class maps that lie in a file."""

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


def test_an_image_of_another_size_is_not_drawn_over(classes) -> None:
    found = Prediction(classes, ("background", "a", "b"), COLORS)
    assert found.overlay(Image.new("RGB", (20, 28))).size == (20, 28)
    with pytest.raises(NacreError, match="is 28 x 20, the prediction is of one of 20 x 28"):
        found.overlay(Image.new("RGB", (28, 20)))


@pytest.mark.parametrize("most", [1, 10**6])
def test_a_class_map_in_a_file_is_written_as_one_in_memory(
    classes, most: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rasters, "IN_MEMORY", most)
    monkeypatch.setattr(prediction, "_PIXELS_AT_ONCE", 40)
    with make_class_map(classes.shape, 3, tmp_path / "work") as parts:
        assert isinstance(parts, np.memmap) == (most == 1)
        parts[3:28, 0:9], parts[0:3, 0:9] = classes[3:, :9], classes[:3, :9]
        parts[0:28, 9:20] = classes[:, 9:]
        assert (count_classes(parts, 4) == np.bincount(classes.ravel(), minlength=4)).all()
        write_mask(tmp_path / "mask.png", parts, COLORS)
        del parts
    assert list(tmp_path.glob("work/.*")) == []
    with Image.open(tmp_path / "mask.png") as image:
        assert image.mode == "P"
        assert (np.asarray(image) == classes).all()
        assert image.getpalette()[:9] == [value for color in COLORS for value in color]


def test_more_than_256_channels_are_16_bits_of_grey(tmp_path: Path) -> None:
    classes = np.arange(300, dtype=np.uint16).reshape(20, 15)
    write_mask(tmp_path / "mask.png", classes, COLORS)
    assert (np.asarray(Image.open(tmp_path / "mask.png")) == classes).all()


def test_background_beneath_everything_has_no_polygon(classes) -> None:
    content = labelme(classes, ("background", "cat", "dog"), "a.png", 0.0)
    assert (content["imageHeight"], content["imageWidth"]) == classes.shape
    assert {shape["label"] for shape in content["shapes"]} == {"_background_", "cat", "dog"}
    assert content["shapes"][0]["label"] != "_background_"


def test_a_prediction_speaks_in_class_names_and_is_a_palette_image_and_an_overlay(classes) -> None:
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
