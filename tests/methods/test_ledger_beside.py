"""The ledger beside networks of others: what they knew stays, and what it learned can be undone."""

import copy

import pytest
import torch
from torch import nn

import nacre
from nacre.data.scenes import ScenesConfig
from nacre.errors import NacreError
from nacre.models.adapter import Adapter
from partial_data import write_folder
from test_own_network_page import segformer

WORLD = ScenesConfig(train=40, val=6, size=64, seed=3)
RECIPE = {
    "images": {"crop_size": 64, "crop": "plain"},
    "train": {"batch_size": 8},
    "labels": {"unlabeled": "background"},
}
OLD = ("sky", "sea")


class Levels(nn.Module):
    """A network whose levels are called one by one: no module holds its backbone."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(3, width, 3, 2, 1), nn.ReLU())
        self.second = nn.Sequential(
            nn.Conv2d(width, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, 12, 1)
        )
        self.third = nn.Sequential(nn.Conv2d(12, width, 3, 2, 1), nn.ReLU())
        self.score = nn.Conv2d(width, num_classes, 1)

    def forward(self, x):
        return nn.functional.interpolate(
            self.score(self.third(self.second(self.first(x)))), size=x.shape[-2:], mode="bilinear"
        )


def levels(num_classes=3, width=8):
    torch.manual_seed(0)
    return Levels(num_classes, width)


def known(channels):
    """Names of what a network of so many channels with a background knows."""
    return {"id2label": dict(enumerate(("background", *OLD[: channels - 1])))}


NETS = {
    "segformer": lambda: segformer(**known(3)),
    "levels": levels,
}


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("data")
    names = ("pearl", "starfish", "crate")
    return {name: write_folder(root / name, [name], world=WORLD) for name in names}


@pytest.fixture(scope="module")
def learned(folders, tmp_path_factory):
    """Learn folders one after another beside a network; each chain is learned once."""
    root, done = tmp_path_factory.mktemp("models"), {}

    def learn(kind, *names):
        if not names:
            return NETS[kind]()
        key = (kind, *names)
        if key not in done:
            start = learn(kind, *names[:-1])
            old = OLD if isinstance(start, Levels) else None
            out = root / "-".join(key)
            done[key] = nacre.learn(
                folders[names[-1]], start=start, out=out, old=old, config=RECIPE
            )
        return done[key]

    return learn


def images(*size):
    return torch.randint(0, 256, (2, 3, *size), generator=torch.Generator().manual_seed(1)).byte()


@pytest.mark.parametrize("kind", NETS)
def test_the_network_stays_as_it_is(learned, kind):
    model = learned(kind, "pearl", "starfish")
    net, adapter = NETS[kind](), model.network
    assert model.classes == ("background", *OLD, "pearl", "starfish")
    assert all(
        torch.equal(value, adapter.model.state_dict()[name])
        for name, value in net.state_dict().items()
    )
    x = images(70, 45)
    before, after = Adapter(copy.deepcopy(net)).eval()(x).scores, adapter(x)
    assert torch.equal(after.logits, before)
    kept, found = before.argmax(1), after.scores.argmax(1)
    if after.scores.shape != before.shape:
        kept = nn.functional.interpolate(before, found.shape[1:], mode="bilinear").argmax(1)
    of_network = found < before.shape[1]
    assert torch.equal(found[of_network], kept[of_network]), "new classes take pixels, none moves"
    assert torch.equal(found[kept > 0], kept[kept > 0]), "and they take them from background alone"


def test_it_learns_from_features_of_any_network(folders, tmp_path):
    """Random features tell colors apart."""
    net = levels(width=16)
    nn.init.zeros_(net.score.weight)
    net.score.bias.data.copy_(torch.tensor([2.0, 0, 0]))  # it finds nothing: all is background
    out = tmp_path / "m"
    model = nacre.learn(folders["crate"], start=net, old=OLD, out=out, config=RECIPE)
    assert model.evaluate(folders["crate"]).iou["crate"] > 0.1


def test_its_files_open_and_its_graph_says_the_same(learned, tmp_path):
    model = learned("segformer", "pearl")
    again = nacre.load(model.path)
    assert torch.equal(again.network(images(64, 64)).scores, model.network(images(64, 64)).scores)
    pytest.importorskip("onnxruntime")
    pytest.importorskip("onnxscript")
    model.export(tmp_path / "model.onnx")  # which compares them


def test_a_network_given_in_python_opens_its_file(learned):
    model = learned("levels", "pearl", "starfish")
    again = nacre.load(model.path, network=levels())
    x = images(64, 64)
    assert torch.equal(again.network(x).scores, model.network(x).scores)


@pytest.mark.parametrize("kind", NETS)
def test_order_undo_and_merge_are_exact(learned, kind, tmp_path):
    both, other = learned(kind, "pearl", "starfish"), learned(kind, "starfish", "pearl")
    alone = learned(kind, "pearl")
    undone = both.forget(step=2, out=tmp_path / "undone")
    assert torch.allclose(rows(undone), rows(alone), atol=1e-6)
    assert undone.classes == alone.classes
    gone = both.forget(class_name="starfish", out=tmp_path / "gone")
    assert gone.classes == alone.classes
    merged = nacre.merge([alone, learned(kind, "starfish")], out=tmp_path / "merged")
    assert torch.allclose(rows(merged), rows(both), atol=1e-6)
    places = [other.classes.index(name) for name in both.classes]
    x = images(64, 64)
    assert torch.allclose(both.network(x).scores, other.network(x).scores[:, places], atol=1e-4)
    again = nacre.load(merged.path, network=levels() if kind == "levels" else None)
    assert torch.equal(again.network(x).scores, merged.network(x).scores)


def rows(model):
    ledger = model.network.ledger
    return ledger.classifier.weight(slice(None)) / ledger.grid.std


def test_what_the_network_knew_cannot_be_forgotten(learned, tmp_path):
    model = learned("segformer", "pearl")
    with pytest.raises(NacreError, match="'sky' was not learned by the ledger"):
        model.forget(class_name="sky", out=tmp_path / "a")
    with pytest.raises(NacreError, match="step 0 was not learned by the ledger"):
        model.forget(step=0, out=tmp_path / "b")
    with pytest.raises(NacreError, match="no class would be left"):
        model.forget(step=1, out=tmp_path / "c")


def test_without_a_background_new_classes_start_from_the_mean_score_and_beat_the_greatest(
    folders, tmp_path
):
    model = nacre.learn(
        folders["pearl"], start=levels(), old=["a", "b", "c"], background=None,
        out=tmp_path / "m", config=RECIPE,
    )  # fmt: skip
    x, network = images(64, 64), model.network
    rest, pearl = network.ledger(network.read_stages(x)).split(1, 1)
    found = network(x).scores.argmax(1)
    z, evidence = (
        nn.functional.interpolate(one, found.shape[1:], mode="bilinear")
        for one in (network(x).logits[:, 1:], pearl - rest)
    )
    ahead = evidence[:, 0] + z.mean(1) - z.amax(1)
    sure = ahead.abs() > 1e-3
    assert torch.equal((found == 4)[sure], (ahead > 0)[sure])
    assert (found == 4).any()
    assert found.min() > 0, "no pixel is of a background that is not there"


def test_without_a_background_unlike_images_keep_their_classes_by_default(folders, tmp_path):
    """The step's images say nothing of noise and of spots; the network is fairly sure of them."""
    draw = torch.Generator().manual_seed(1)
    noise = torch.rand(8, 3, 64, 64, generator=draw)
    spots = torch.rand(8, 3, 4, 4, generator=draw)
    spots = nn.functional.interpolate(spots, noise.shape[2:], mode="bilinear")
    x = (255 * torch.cat([noise, spots])).byte()
    net = levels(4, width=16)
    with torch.no_grad():
        net.score.bias -= Adapter(net, background=None)(x).logits[:, 1:].mean((0, 2, 3))
        scores = Adapter(net, background=None)(x).logits[:, 1:]
        times = 2.5 / (scores.amax(1) - scores.mean(1)).mean()
        net.score.weight *= times
        net.score.bias *= times
    before = Adapter(copy.deepcopy(net), background=None).eval()(x).scores.argmax(1)
    model = nacre.learn(
        folders["crate"], start=net, old=["a", "b", "c", "d"], background=None,
        out=tmp_path / "m", config=RECIPE,
    )  # fmt: skip
    kept = model.network(x).scores.argmax(1) == before
    assert float(kept.float().mean()) >= 0.95


def test_other_methods_continue_the_model_before_it(learned, folders, tmp_path):
    model = learned("segformer", "pearl")
    with pytest.raises(NacreError, match="continue it with method 'ledger'"):
        nacre.learn(
            folders["crate"], start=model, out=tmp_path / "m", method="mib",
            config={**RECIPE, "train": {"iterations": 1, "batch_size": 2}},
        )  # fmt: skip


def test_a_network_that_has_learned_nothing_is_refused(folders, tmp_path):
    config = {**RECIPE, "model": {"kind": "external", "library": "transformers"}}
    config["model"] |= {"name": "segformer", "weights": "none"}
    with pytest.raises(NacreError, match="cannot learn step 0 with an external network"):
        nacre.learn(folders["pearl"], out=tmp_path / "m", method="ledger", config=config)
