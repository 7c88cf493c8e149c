"""Mirror image and edges: whether a model sees them is decided by images that are held out."""

from types import SimpleNamespace

import pytest

import nacre
from nacre.data.scenes import ScenesConfig
from nacre.data.transforms import ImagesConfig
from nacre.evaluation import choose
from nacre.evaluation.predictor import Predictor
from nacre.training import loop as learn_one_step
from partial_data import write_folder

PLAIN, MIRROR, EDGES, BOTH = (False, False), (True, False), (False, True), (True, True)
AUTO = {"mirror": "auto", "edges": "auto"}


def step_of(images, history=(), held=(1,)):
    return SimpleNamespace(
        config=SimpleNamespace(images=ImagesConfig(**images)), history=history, held_data=held
    )


def answer(monkeypatch, figures):
    """Let ways to see images have the figures of a table; return those that were tried."""
    tried = []

    def ious(step, images):
        tried.append((images.mirror, images.edges))
        return figures[tried[-1]]

    monkeypatch.setattr(choose, "_ious", ious)
    return tried


@pytest.mark.parametrize(
    ("figures", "best"),
    [
        ([[0.5, 0.5], [0.5, 0.5], [0.5, 0.5], [0.5, 0.5]], PLAIN),
        ([[0.5, 0.5], [0.504, 0.504], [0.5, 0.5], [0.503, 0.503]], PLAIN),
        ([[0.5, 0.5], [0.53, 0.5], [0.5, 0.5], [0.5, 0.5]], EDGES),
        ([[0.5, 0.5], [0.53, 0.5], [0.53, 0.5], [0.53, 0.506]], EDGES),
        ([[0.5, 0.5], [0.53, 0.5], [0.53, 0.5], [0.53, 0.52]], BOTH),
        ([[0.5, 0.5], [0.7, 0.44], [0.53, 0.5], [0.8, 0.44]], MIRROR),
        ([[None, 0.5], [None, 0.52], [None, 0.5], [None, 0.5]], EDGES),
    ],
)
def test_an_option_is_kept_that_gains_and_costs_no_class(monkeypatch, figures, best):
    tried = answer(monkeypatch, dict(zip((PLAIN, EDGES, MIRROR, BOTH), figures, strict=True)))
    found = choose.choose_options(step_of(AUTO))
    assert found.options == dict(zip(("mirror", "edges"), best, strict=True))
    assert tried == [PLAIN, EDGES, MIRROR, BOTH]


def test_what_a_user_sets_is_not_tried(monkeypatch):
    tried = answer(monkeypatch, {MIRROR: [0.5], BOTH: [0.6]})
    found = choose.choose_options(step_of({"mirror": True, "edges": "auto"}))
    assert found.options == {"edges": True}
    assert tried == [MIRROR, BOTH]


def test_what_an_earlier_step_refused_stays_refused(monkeypatch):
    tried = answer(monkeypatch, {PLAIN: [0.5], MIRROR: [0.6]})
    history = [{}, {"chosen": {"mirror": True, "edges": False}}, {"chosen": {"mirror": True}}]
    found = choose.choose_options(step_of(AUTO, history))
    assert found.options == {"mirror": True, "edges": False}
    assert tried == [PLAIN, MIRROR]


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    world = ScenesConfig(train=40, val=4, size=32, seed=3)
    return [write_folder(root / one, [one], world=world) for one in ("pearl", "starfish")]


RECIPE = {
    "method": {"name": "duo"},
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32, **AUTO},
    "train": {"batch_size": 8, "iterations": 1},
}


@pytest.fixture
def few_are_held_out(monkeypatch):
    monkeypatch.setattr(learn_one_step, "MIN_IMAGES_TO_HOLD_OUT", 2)
    monkeypatch.setattr(learn_one_step, "HELD_OUT_EVERY", 3)


@pytest.mark.usefixtures("few_are_held_out")
def test_a_model_sees_images_as_held_out_ones_decided(folders, tmp_path, monkeypatch):
    answer(monkeypatch, {PLAIN: [0.5], EDGES: [0.5], MIRROR: [0.6], BOTH: [0.7]})
    out = tmp_path / "first"
    model = nacre.learn(folders[0], out=out, config=RECIPE)
    assert model.info.history[0]["chosen"] == {"mirror": True, "edges": True}
    predictor = model.predictor()
    assert (predictor.mirror, predictor.edges) == BOTH
    assert not model.predictor(mirror=False).mirror
    tested = model.evaluate(f"{folders[0]}:all")
    (out / "metrics.json").unlink()  # as if it had been interrupted before the tests
    again = nacre.learn(folders[0], out=out, config=RECIPE)
    assert again.evaluate(f"{folders[0]}:all").iou == tested.iou
    assert '"mirror": true' in (out / "metrics.json").read_text()
    monkeypatch.setattr(learn_one_step, "MIN_IMAGES_TO_HOLD_OUT", 100)
    info = nacre.learn(folders[1], start=out, out=tmp_path / "second", config=RECIPE).info
    assert (info.mirror, info.edges) == BOTH, "none is held out: as before the step"


@pytest.mark.usefixtures("few_are_held_out")
def test_held_out_images_are_seen_in_every_way(folders, tmp_path, monkeypatch):
    seen = []
    classes = Predictor.classes

    def watched(predictor, images):
        seen.append((predictor.mirror, predictor.edges))
        return classes(predictor, images)

    monkeypatch.setattr(Predictor, "classes", watched)
    info = nacre.learn(folders[0], out=tmp_path / "m", config=RECIPE).info
    assert set(seen) >= {PLAIN, EDGES, MIRROR, BOTH}
    assert info.config["images"]["mirror"] is info.mirror
    assert set(seen[-1:]) == {(info.mirror, info.edges)}
