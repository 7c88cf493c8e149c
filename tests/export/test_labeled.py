"""Test pictures of a folder: classes by name, at the scale at which a model sees them."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from nacre.errors import NacreError
from nacre.export.labeled import mean_iou, measure_iou, open_labeled


@pytest.fixture
def folder(tmp_path: Path, model) -> Path:
    _, info = model
    for part in ("images", "masks"):
        (tmp_path / part).mkdir()
    for name in "ab":
        Image.new("RGB", (96, 64), "red").save(tmp_path / "images" / f"{name}.png")
    mask = np.zeros((64, 96), np.uint8)
    mask[:, :48], mask[:, 90:] = 7, 9
    for name in "ab":
        Image.fromarray(mask).save(tmp_path / "masks" / f"{name}.png")
    names = f"background: 0\nclasses: {{7: {info.classes[2]}, 9: something else}}\n"
    (tmp_path / "classes.yaml").write_text(names)
    (tmp_path / "val.txt").write_text("a\n")
    (tmp_path / "train.txt").write_text("b\n")
    return tmp_path


def test_labels_become_channels_by_name(folder: Path, model) -> None:
    _, info = model
    ((picture, truth),) = open_labeled(str(folder), info, 5).read()
    assert picture.shape == (64, 96, 3)
    assert (truth[:, :48] == 2).all()
    assert (truth[:, 48:90] == 0).all()
    assert (truth[:, 90:] == 255).all()


def test_pictures_are_scaled_for_a_model_that_was_tested_so(folder: Path, model) -> None:
    _, info = model
    scaled = replace(info, predict_mode="crop", crop=32)
    ((picture, truth),) = open_labeled(str(folder), scaled, 5).read()
    assert picture.shape == (32, 48, 3)
    assert truth.shape == (32, 48)


def test_the_iou_is_that_of_the_tested_pixels(folder: Path, model) -> None:
    _, info = model
    pictures = open_labeled(str(folder), info, 5)

    def all_background(picture):
        return np.zeros(picture.shape[:2], np.uint8)

    ious = measure_iou(pictures, all_background, len(info.classes), "testing")
    assert ious[0] == pytest.approx(42 / 90)
    assert ious[2] == 0
    assert mean_iou(ious) == pytest.approx(21 / 90)


def test_a_folder_of_other_classes_is_refused(folder: Path, model) -> None:
    _, info = model
    (folder / "classes.yaml").write_text("classes: {7: horse, 9: cart}\n")
    with pytest.raises(NacreError, match=r"labels horse, cart; the model knows none of them"):
        open_labeled(str(folder), info, 5)
    other = replace(info, config={})
    with pytest.raises(NacreError, match="no scenario made this model"):
        open_labeled("own", other, 5)
