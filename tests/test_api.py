import numpy as np
import pytest
from PIL import Image

import nacre
from nacre.api.model import Prediction
from tiny_runs import tiny_run

MASK = np.array([[0, 1], [1, 2]], np.uint8)
SEEN = Prediction(MASK, ("background", "cat", "dog"), ((0, 0, 0), (255, 0, 0), (0, 255, 0)))


def test_a_prediction_speaks_in_class_names():
    assert SEEN.names.tolist() == [["background", "cat"], ["cat", "dog"]]
    assert SEEN.shares() == {"cat": 0.5, "background": 0.25, "dog": 0.25}


def test_a_prediction_is_a_palette_picture_and_an_overlay():
    picture = SEEN.picture()
    assert picture.mode == "P"
    assert np.array(picture).tolist() == MASK.tolist()
    assert np.array(picture.convert("RGB"))[0, 1].tolist() == [255, 0, 0]
    over = np.array(SEEN.over(np.full((2, 2, 3), 100, np.uint8), strength=0.5))
    assert over[0, 0].tolist() == [100, 100, 100]
    assert over[0, 1].tolist() == [178, 50, 50]


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    out = tmp_path_factory.mktemp("runs") / "mib"
    tiny_run(out)
    return nacre.load(out)


def test_paths_images_and_arrays_are_the_same_picture(model, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 255, (50, 70, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    seen = [
        model.predict(one)
        for one in (tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(pixels), pixels)
    ]
    assert all(np.array_equal(one.mask, seen[0].mask) for one in seen)
    assert seen[0].mask.shape == (50, 70)
    assert seen[0].classes == model.classes
    assert len(model.classes) == 9


def test_a_prediction_is_that_of_the_test(model):
    from nacre.data.sources.scenes import Scenes
    from nacre.data.sources.scenes_render import ScenesConfig
    from nacre.evaluation.inference import predict_classes

    scene = Scenes(ScenesConfig(train=1, val=1, size=32, seed=3)).image("val", "scene-00000")
    import torch

    with torch.inference_mode():
        pixels = torch.from_numpy(np.array(scene)).permute(2, 0, 1)[None]
        expected = predict_classes(model.network(pixels).logits, (32, 32))[0].numpy()
    assert np.array_equal(model.predict(scene).mask, expected)


@pytest.mark.parametrize("shape", [(3, 8, 8), (8, 8, 3, 1)])
@pytest.mark.parametrize("dtype", [np.uint8, np.float32])
def test_arrays_of_another_form_are_refused(model, shape, dtype):
    with pytest.raises(nacre.NacreError, match="an array must be uint8 of height x width x 3"):
        model.predict(np.zeros(shape, dtype))


@pytest.mark.parametrize("content", [None, b"not a picture"])
def test_a_picture_that_is_not_there_or_damaged(model, tmp_path, content):
    path = tmp_path / "a.jpg"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(nacre.NacreError, match=r"a\.jpg"):
        model.predict(path)
