"""The page of a step of `nacre learn`."""

import shutil

import pytest

import nacre
from nacre.data.sources.scenes import ScenesConfig
from nacre.errors import NacreError
from nacre.report.learn_page import is_learn_folder, write_learn_page
from partial_data import write_folder

WORLD = ScenesConfig(train=16, val=8, size=32, seed=3)
TINY = {
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32, "crop": "plain"},
    "train": {"iterations": 3, "batch_size": 4},
}


@pytest.fixture(scope="module")
def steps(tmp_path_factory):
    root = tmp_path_factory.mktemp("page")
    write_folder(root / "pets", ["pearl", "starfish"], world=WORLD)
    write_folder(root / "birds", ["crate"], world=WORLD)
    nacre.learn(root / "pets", out=root / "first", config=TINY)
    nacre.learn(root / "birds", start=root / "first", out=root / "second", config=TINY)
    return root


def test_a_page_shows_classes_before_and_after_with_pictures(steps, tmp_path):
    assert is_learn_folder(steps / "second")
    page = write_learn_page(steps / "second", tmp_path, images=2).read_text()
    for text in ("pearl", "crate <em>new</em>", "agreement", "before", "after", "no test images"):
        assert text in page
    assert page.count("<figure>") == 2 * 4
    assert "of the pixels right" not in page, "a folder labels only some of the classes"
    assert "http" not in page.replace("http-equiv", ""), "it needs nothing beside it"


def test_a_first_model_has_no_before(steps, tmp_path):
    page = write_learn_page(steps / "first", tmp_path, images=2).read_text()
    assert "before on" not in page
    assert page.count("<figure>") == 2 * 3


def test_without_the_data_the_figures_are_still_there(steps, tmp_path):
    moved = tmp_path / "moved"
    shutil.copytree(steps / "second", moved)
    config = moved / "config.yaml"
    config.write_text(config.read_text().replace("birds", "gone"))
    page = write_learn_page(moved, tmp_path / "out").read_text()
    assert "No images: " in page
    assert "crate <em>new</em>" in page


def test_an_unfinished_step_is_one_sentence(steps, tmp_path):
    shutil.copytree(steps / "second", tmp_path / "cut")
    (tmp_path / "cut" / "metrics.json").unlink()
    with pytest.raises(NacreError, match="is not finished: resume it with"):
        write_learn_page(tmp_path / "cut", tmp_path / "out")
