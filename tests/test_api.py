import os
import pydoc
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image, ImageOps

import nacre
from nacre.data.scenes import ScenesConfig
from nacre.errors import NacreError
from nacre.evaluation.metrics import confusion_matrix, iou_by_class
from nacre.models.io import load_model, save_model
from nacre.training.events import Saved
from partial_data import LABELS, write_folder
from tiny_runs import TINY


@pytest.fixture(scope="module")
def model(finished):
    return nacre.load(finished)


def test_paths_images_and_arrays_are_the_same_picture(model, tmp_path):
    pixels = np.random.default_rng(1).integers(0, 255, (50, 70, 3), np.uint8)
    Image.fromarray(pixels).save(tmp_path / "a.png")
    seen = [
        model.predict(one)
        for one in (tmp_path / "a.png", str(tmp_path / "a.png"), Image.fromarray(pixels), pixels)
    ]
    seen += model.predict([pixels, torch.from_numpy(pixels).permute(2, 0, 1)])
    assert all(np.array_equal(one.mask, seen[0].mask) for one in seen)
    assert seen[0].mask.shape == (50, 70)
    assert seen[0].classes == model.classes
    assert len(model.classes) == 9


ARRAY = "an array must be uint8 or uint16 of height x width x 3"
TENSOR = "a tensor must be uint8 of 3 x height x width, not"


@pytest.mark.parametrize(
    ("pixels", "says"),
    [
        *((np.zeros(shape, np.uint8), ARRAY) for shape in ((3, 8, 8), (8, 8, 3, 1), (8, 8, 5))),
        (np.zeros((8, 8, 3), np.float32), ARRAY),
        (torch.zeros(1, 3, 8, 8).byte(), TENSOR),
        (torch.zeros(3, 8, 8), TENSOR),
        (torch.zeros(8, 8, 3).byte(), TENSOR),
        (None, "an image must be a file, a Pillow image, an array or a tensor, not None"),
    ],
)
def test_pixels_of_another_form_are_refused(model, pixels, says):
    with pytest.raises(NacreError, match=says):
        model.predict(pixels)


@pytest.mark.parametrize("window", [None, 32])
def test_scores_are_the_probabilities_of_the_mask(model, window):
    pixels = np.random.default_rng(1).integers(0, 255, (50, 70, 3), np.uint8)
    plain, scored = (model.predict(pixels, window=window, scores=one) for one in (False, True))
    assert plain.scores is None
    assert scored.scores.shape == (len(model.classes), 50, 70)
    assert np.allclose(scored.scores.sum(0), 1, atol=1e-5)
    assert (scored.scores.argmax(0) == scored.mask).all()
    assert (scored.mask == plain.mask).mean() > 0.999


@pytest.mark.parametrize("window", [31, 65_537])
def test_windows_that_make_no_sense_are_refused(model, window):
    with pytest.raises(
        NacreError, match=f"the window of {window} pixels is not allowed; give 32 to 65,536 pixels"
    ):
        model.predict(np.zeros((8, 8, 3), np.uint8), window=window)


def test_a_model_of_any_run_is_tested_on_a_folder(model, tmp_path):
    world = ScenesConfig(train=16, val=16, size=32, seed=5)
    folder = write_folder(tmp_path / "data", [*model.classes[1:3]], world=world, lists=True)
    found = model.to("cpu").evaluate(folder)
    names = (folder / "val.txt").read_text().split()
    labels = [0] + [LABELS[name] for name in model.classes[1:]]
    counts = torch.zeros(len(labels), len(labels), dtype=torch.int64)
    for name in names:
        seen = model.predict(folder / "images" / f"{name}.png").mask
        truth = np.asarray(Image.open(folder / "masks" / f"{name}.png"))
        targets = np.select([truth == one for one in labels], range(len(labels)), 255)
        # What the folder does not label may be in its background
        seen = np.where(seen > 2, 0, seen)
        counts += confusion_matrix(torch.from_numpy(targets), torch.from_numpy(seen), len(labels))
    assert found.images == len(names)
    wanted = dict(zip(model.classes[1:3], iou_by_class(counts)[1:3], strict=True))
    assert {name: found.iou[name] for name in wanted} == wanted


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_turned_photograph_is_upright_in_every_form(model, tmp_path, orientation):
    pixels = np.zeros((40, 60, 3), np.uint8)
    pixels[:12, :25] = (250, 40, 30)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "turned.png"
    Image.fromarray(pixels).save(path, exif=exif)
    with Image.open(path) as opened:
        upright = np.asarray(ImageOps.exif_transpose(opened))
        seen = [model.predict(one) for one in (path, opened, upright)]
        overlays = [np.asarray(seen[0].overlay(one)) for one in (path, opened, upright)]
    assert all(one.mask.shape == upright.shape[:2] for one in seen)
    assert all(np.array_equal(one.mask, seen[0].mask) for one in seen)
    assert all(np.array_equal(one, overlays[0]) for one in overlays)


def test_a_model_with_weights_that_are_not_finite_is_refused(finished, tmp_path):
    path = shutil.copytree(finished / "step-2", tmp_path / "step-2") / "model.safetensors"
    network, info, state = load_model(path)
    with torch.no_grad():
        next(network.parameters()).view(-1)[0] = float("nan")
    save_model(path, network, info, state)
    with pytest.raises(NacreError, match="has values that are not finite, because training div"):
        nacre.load(path)


def test_arguments_lie_over_the_config_and_beside_its_values(monkeypatch, tmp_path):
    import nacre.api.model as api

    class Built(Exception):
        pass

    def built(*, overrides, **_):
        raise Built(overrides["method"], overrides["seed"])

    monkeypatch.setattr(api, "learn_config", built)
    config = {"method": {"weight": 3}, "seed": 5}
    with pytest.raises(Built, match=r"\{'weight': 3, 'name': 'mib'\}, 5"):
        nacre.learn("x", out=tmp_path, method="mib", config=config)
    config = {"method": {"name": "ft", "freeze": []}, "seed": 5}
    with pytest.raises(Built, match=r"\{'name': 'mib'\}, 7"):
        nacre.learn("x", out=tmp_path, method="mib", seed=7, config=config)


def run_of(out, **options):
    values = {key: value for key, value in TINY.items() if key != "scenario"}
    return nacre.run("scenes/4-4/overlapped", out, config=values, **options)


def learned_of(out, **options):
    data = out.parent / "data"
    if not data.exists():
        write_folder(data, ["pearl"], world=ScenesConfig(train=40, val=6, size=32, seed=3))
    values = {key: TINY[key] for key in ("model", "images", "train")}
    values["train"] = {**values["train"], "epochs": 3}
    nacre.learn(data, out=out, config=values, **options)
    return (out / "metrics.json").read_bytes()


@pytest.mark.parametrize(("call", "shown"), [(run_of, "step 1"), (learned_of, "step 0")])
def test_ctrl_c_saves_and_the_same_call_goes_on(
    call, shown, tmp_path, monkeypatch, capsys, request
):
    from nacre.training import loop

    def interrupted(trainer, *arguments, update=loop.update, **options):
        if trainer.iteration == 1:  # before the first there is nothing to save
            monkeypatch.setattr(loop, "update", update)
            os.kill(os.getpid(), signal.SIGINT)
        return update(trainer, *arguments, **options)

    # Where the tests run in the background, SIGINT may be ignored from the start.
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    request.addfinalizer(lambda: signal.signal(signal.SIGINT, before))
    seen = []
    given = {"observers": [seen.append], "progress": True}
    monkeypatch.setattr(loop, "update", interrupted)
    out = tmp_path / "run"
    with pytest.raises(nacre.Interrupted, match=r"saved in .*run, and the same call resumes"):
        call(out, **given)
    assert any(isinstance(event, Saved) for event in seen)
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert call(out, **given) == call(tmp_path / "whole", progress=False)
    assert shown in capsys.readouterr().err


def test_all_names_are_listed_before_they_are_used():
    code = "import nacre, sys; print(*dir(nacre)); assert 'torch' not in sys.modules"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert set(nacre.__all__) <= set(found.stdout.split())
    text = pydoc.render_doc(nacre, renderer=pydoc.plaintext)
    assert [name for name in nacre.__all__ if name not in text] == ["__version__"]
