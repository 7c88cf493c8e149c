"""Forgetting and merging, each against learning the remaining or joined data from scratch."""

import itertools
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

import nacre
from nacre.cli.app import program
from nacre.data.scenes import ScenesConfig
from nacre.errors import NacreError
from nacre.models.io import load_model
from nacre.runs.edit import forget_class, forget_folder, forget_step, merge, open_ledger
from partial_data import LABELS, write_folder

WORLD = ScenesConfig(train=40, val=6, size=32, seed=3)
CLASSES = ("pearl", "starfish", "crate")
# Masks are made by the model of the moment, so what is exact is learned without them.
RECIPE = {
    "model": {"backbone": "tiny"},
    "images": {"crop_size": 32, "crop": "plain"},
    "train": {"batch_size": 8},
    "labels": {"unlabeled": "background"},
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A folder per class, and one that labels a class of another again."""
    root = tmp_path_factory.mktemp("data")
    made = {name: write_folder(root / name, [name], world=WORLD) for name in CLASSES}
    made["both"] = write_folder(root / "both", ["pearl", "crate"], world=WORLD)
    return made


@pytest.fixture(scope="module")
def learned(folders, tmp_path_factory):
    """Learn folders one after another; each chain of steps is learned once."""
    root, done = tmp_path_factory.mktemp("models"), {}

    def learn(*names, **options):
        key = (*names, *options.items())
        if key not in done:
            start = learn(*names[:-1], **options) if names[1:] else None
            out = root / f"{len(done)}-{'-'.join(names)}"
            given = {**RECIPE, "train": {**RECIPE["train"], **options}}
            nacre.learn(folders[names[-1]], start=start, out=out, method="ledger", config=given)
            done[key] = out
        return done[key]

    return learn


def head_by_class(model):
    """Return the constants of the grid, and the rows of the classifier by class name."""
    network = model.network
    rows = torch.cat(
        [network.classifier.weight(slice(None)), network.classifier.bias(slice(None))[:, None]], 1
    )
    by_name = dict(zip(model.info.classes, rows.detach(), strict=True))
    return {"mean": network.decoder.mean, "std": network.decoder.std, **by_name}


def assert_same_head(one, other, near=1e-6):
    heads = head_by_class(one), head_by_class(other)
    assert heads[0].keys() == heads[1].keys()
    for name, value in heads[0].items():
        assert float((value - heads[1][name]).abs().max()) <= near * float(value.abs().max()), name


def test_six_orders_of_three_steps_give_the_same_head(learned):
    models = [open_ledger(learned(*order)) for order in itertools.permutations(CLASSES)]
    for other in models[1:]:
        assert_same_head(models[0], other)


def test_a_forgotten_step_leaves_the_model_that_never_saw_it(learned):
    whole = open_ledger(learned("pearl", "starfish", "both"))
    for step, left in (
        (0, ("starfish", "both")),
        (1, ("pearl", "both")),
        (2, ("pearl", "starfish")),
    ):
        found, wanted = forget_step(whole, step), open_ledger(learned(*left))
        assert_same_head(found, wanted)
        assert [one["step"] for one in found.info.history] == [0, 1]
        assert sum(found.info.steps) == len(found.info.classes)


def test_a_forgotten_folder_leaves_the_model_that_never_saw_it(learned, folders, tmp_path):
    pair = [folders["starfish"], folders["both"]]
    start = learned("pearl")
    nacre.learn(pair, start=start, out=tmp_path / "m", method="ledger", config=RECIPE)
    whole = open_ledger(tmp_path / "m")
    for name, left in (("both", "starfish"), ("starfish", "both")):
        found, wanted = forget_folder(whole, name), open_ledger(learned("pearl", left))
        assert_same_head(found, wanted)
        assert found.info.classes == wanted.info.classes
        for key in ("data", "images", "classes", "folder_images"):
            assert found.info.history[1][key] == wanted.info.history[1][key]
        assert found.sums.folder.tolist() == wanted.sums.folder.tolist()
    assert_same_head(forget_folder(whole, "pearl"), forget_step(whole, 0))


def test_a_forgotten_class_leaves_the_model_of_which_its_pixels_were_ignored(
    learned, folders, tmp_path
):
    ignored = tmp_path / "ignored"
    shutil.copytree(folders["both"], ignored)
    for path in (ignored / "masks").glob("*.png"):
        mask = np.array(Image.open(path))
        mask[mask == LABELS["crate"]] = 255
        Image.fromarray(mask).save(path)
    nacre.learn(ignored, out=tmp_path / "model", method="ledger", config=RECIPE)
    found = forget_class(open_ledger(learned("both")), "crate")
    assert found.info.classes == ["background", "pearl"]
    assert found.info.history[0]["classes"] == ["pearl"]
    assert_same_head(found, open_ledger(tmp_path / "model"))


def test_merged_models_are_the_model_that_saw_all(learned):
    parts = [open_ledger(learned(name)) for name in ("pearl", "starfish", "both")]
    merged = merge(parts)
    assert_same_head(merged, open_ledger(learned("pearl", "starfish", "both")))
    assert merged.info.classes == ["background", "pearl", "starfish", "crate"]
    assert merged.info.steps == [2, 1, 1]
    assert [one["step"] for one in merged.info.history] == [0, 1, 2]


def test_a_start_that_merged_models_share_counts_once(learned):
    one, other = (open_ledger(learned("pearl", name)) for name in ("starfish", "crate"))
    assert_same_head(merge([one, other]), open_ledger(learned("pearl", "starfish", "crate")))


def test_a_merged_model_of_equal_classes_can_learn_on_and_forget_either(learned, folders, tmp_path):
    places = [learned("both"), learned("pearl")]
    merged = nacre.merge(places, out=tmp_path / "merged")
    assert merged.info.steps == [3]
    assert len(merged.info.history) == 2
    grown = merged.learn(
        folders["starfish"], out=tmp_path / "grown", method="ledger", config=RECIPE
    )
    assert [one["step"] for one in grown.info.history] == [0, 1, 2]
    assert_same_head(open_ledger(grown.path), open_ledger(learned("pearl", "both", "starfish")))
    assert_same_head(
        forget_step(open_ledger(grown.path), 1), open_ledger(learned("both", "starfish"))
    )


def test_the_commands_write_models_that_predict(learned, tmp_path):
    run = CliRunner().invoke
    two = str(learned("pearl", "starfish"))
    done = run(program, ["forget", two, "--step", "0", "--out", str(tmp_path / "one")])
    assert done.exit_code == 0, done.output
    done = run(program, ["forget", two, "--class", "pearl", "--out", str(tmp_path / "other")])
    assert done.exit_code == 0, done.output
    done = run(
        program,
        ["merge", str(tmp_path / "one"), str(learned("crate")), "--out", str(tmp_path / "m")],
    )
    assert done.exit_code == 0, done.output
    assert "starfish" in done.output
    assert nacre.load(tmp_path / "other").classes == ("background", "starfish")
    merged = nacre.load(tmp_path / "m")
    assert merged.classes == ("background", "starfish", "crate")
    assert set(
        merged.predict(torch.zeros(32, 32, 3, dtype=torch.uint8).numpy()).class_fractions()
    ) <= set(merged.classes)
    _, _, state = load_model(tmp_path / "m" / "model.safetensors")
    assert sorted(set(state["sums.step"].tolist())) == [0, 1]
    assert json.loads((tmp_path / "m" / "model.json").read_text())["classes"][1] == "starfish"


def test_what_cannot_be_edited_is_said_in_one_sentence(learned, folders, tmp_path):
    path = learned("pearl", "starfish")
    whole = open_ledger(path)
    with pytest.raises(NacreError, match="there is no step 2: the model has steps 0 to 1"):
        forget_step(whole, 2)
    with pytest.raises(NacreError, match=r"did not learn from a folder 'perl'; .* are .*pearl"):
        forget_folder(whole, "perl")
    with pytest.raises(NacreError, match=r"knows no class 'perl'.*pearl"):
        forget_class(whole, "perl")
    with pytest.raises(NacreError, match="no class would be left"):
        forget_class(forget_class(whole, "pearl"), "starfish")
    with pytest.raises(NacreError, match="one model cannot be merged"):
        merge([whole])
    with pytest.raises(
        NacreError, match="nothing to forget: give a step, a data folder or a class"
    ):
        nacre.load(path).forget(out=tmp_path / "x")
    with pytest.raises(NacreError, match="a class is forgotten in all steps: give it without"):
        nacre.load(path).forget(step=0, class_name="pearl", out=tmp_path / "x")
    with pytest.raises(NacreError, match="exists already"):
        nacre.load(path).forget(step=0, out=path)
    values = {**RECIPE, "seed": 7}
    nacre.learn(folders["crate"], out=tmp_path / "else", method="ledger", config=values)
    with pytest.raises(NacreError, match="backbones have different weights"):
        merge([whole, open_ledger(tmp_path / "else")])
    fine = {**RECIPE, "method": {"grid_stride": 8}}
    nacre.learn(folders["crate"], out=tmp_path / "fine", method="ledger", config=fine)
    with pytest.raises(NacreError, match="grid_stride is 16 in one and 8 in the other; learn both"):
        merge([whole, open_ledger(tmp_path / "fine")])
    duo = {**RECIPE, "model": {**RECIPE["model"], "decoder": "light"}}
    duo["train"] = {"batch_size": 8, "iterations": 1}
    nacre.learn(folders["crate"], out=tmp_path / "duo", method="duo", config=duo)
    sentence = "decoder is 'stages' in one and 'light' in the other.*; .* with the same --method$"
    with pytest.raises(NacreError, match=sentence):
        merge([whole, open_ledger(tmp_path / "duo")])
    values = {**RECIPE, "train": {"batch_size": 8, "iterations": 1}}
    nacre.learn(folders["crate"], out=tmp_path / "mib", method="mib", config=values)
    with pytest.raises(NacreError, match="keeps no sums of its classes"):
        open_ledger(Path(tmp_path / "mib"))
