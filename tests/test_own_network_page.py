"""The examples of docs/own-network.md are carried out, on networks of a few channels."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nacre
from models.small_networks import Small
from models.test_odd_networks import Unet
from nacre.api.model import _new_folder
from nacre.errors import NacreError
from nacre.models.adapter import Adapter
from nacre.models.io import load_model
from noise_data import noise_folder

PAGE = Path(__file__).parents[1] / "docs" / "own-network.md"
ONE_CALL, OWN_DATA, LOOP, BY_STRIPS, HUGGING_FACE = re.findall(
    r"^```python\n(.*?)^```", PAGE.read_text(encoding="utf-8"), flags=re.M | re.S
)
SIDE = 64
SHORT: dict[str, Any] = {
    "images": {"crop_size": SIDE},
    "train": {"iterations": 2, "batch_size": 4},
}


def network(num_classes: int = 3) -> Small:
    torch.manual_seed(0)
    made = Small(torch.nn.Conv2d(6, num_classes, 1))
    with torch.no_grad():
        for _ in range(20):
            made(torch.randn(4, 3, SIDE, SIDE))
    return made


def segformer(**values: Any) -> Any:
    """A SegFormer of a few channels."""
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_sizes": [8] * 4, "depths": [1] * 4, "decoder_hidden_size": 8}
    settings = transformers.SegformerConfig(**sizes, **values)
    return transformers.SegformerForSemanticSegmentation(settings)


def batches(side: int = SIDE) -> list[tuple[torch.Tensor, torch.Tensor]]:
    images = torch.randn(4, 3, side, side, generator=torch.Generator().manual_seed(1))
    labels = torch.zeros(4, side, side, dtype=torch.uint8)
    labels[:, :20, :20] = 3
    labels[:, 30:, :] = 255
    return [(images, labels)] * 3


@pytest.fixture
def cracks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that labels one new class."""
    root = noise_folder(tmp_path / "cracks", 12, (SIDE, SIDE), {1: "crack"})
    shutil.copy(root / "images" / "p0.png", tmp_path / "image.png")
    monkeypatch.chdir(tmp_path)
    return root


def test_one_call_teaches_a_network(cracks: Path) -> None:
    mine = network()
    before = {name: value.clone() for name, value in mine.state_dict().items()}
    names: dict[str, Any] = {"nacre": nacre, "my_network": mine}
    exec(compile(ONE_CALL, str(PAGE), "exec"), names)
    assert isinstance(names["taught"].model, Small)
    assert names["taught"].num_classes == 4
    assert names["model"].classes == ("background", "road", "car", "crack")
    assert [entry["classes"] for entry in names["model"].info.history] == [
        ["road", "car"],
        ["crack"],
    ]
    for name, value in mine.state_dict().items():
        assert torch.equal(value, before[name]), "the given network does not change"
    again = nacre.load("models/with-cracks", "cpu", network=network())
    assert again.predict("image.png").mask.shape == (SIDE, SIDE)


def test_a_step_on_a_torch_data_set_needs_no_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {"nacre": nacre, "torch": torch}
    exec(compile(OWN_DATA, str(PAGE), "exec"), names)
    assert capsys.readouterr().out == "('background', 'nucleus', 'membrane')\n"
    assert {path.name for path in tmp_path.iterdir()} == {"cells.safetensors", "cells.json"}
    first, second = names["first"], names["second"]
    assert first.network.num_classes == 2, "the first step does not change"
    model = nacre.load("cells.safetensors", "cpu")
    for name, value in second.network.state_dict().items():
        assert torch.equal(value, model.network.state_dict()[name])
    assert [entry["classes"] for entry in model.info.history] == [["nucleus"], ["membrane"]]
    loaded = nacre.make_step(names["Cells"](), ["nucleus", "wall"], start=model)
    assert loaded.channels.names == ("background", "nucleus", "membrane", "wall")
    seeded = nacre.make_step(names["Cells"](), ["nucleus"], config={"seed": 5})
    assert seeded.config.seed == seeded.data.seed == 5
    with pytest.raises(NacreError, match=r"no new class in nucleus"):
        nacre.make_step(names["Cells"](), ["nucleus"], start=second)
    with pytest.raises(NacreError, match=r"was learned or begun before; make another"):
        nacre.learn_step(second)
    for use in (lambda: nacre.save_step(seeded, "x"), lambda: given(PAIR, ["b"], start=seeded)):
        with pytest.raises(NacreError, match=r"was not learned yet; call nacre\.learn_step"):
            use()


IMAGE, MASK = np.zeros((8, 8, 3), np.uint8), np.zeros((8, 8), np.uint8)
PAIR: list[Any] = [(IMAGE, MASK)]


def given(data: Any, classes: Any = ("a",), **values: Any) -> Any:
    return nacre.make_step(data, classes, **values).data[0, 0]


@pytest.mark.parametrize(
    ("data", "values", "message"),
    [
        ([], {}, "data: list has no images"),
        (iter(PAIR), {}, "data: list_iterator has no length"),
        (PAIR, {"classes": "cat"}, "classes: 'cat' is not a list of names"),
        (PAIR, {"classes": ["a", 3]}, "is not a list of names"),
        (PAIR, {"start": torch.nn.Conv2d(3, 3, 1)}, "start: Conv2d is neither a model nor"),
        (PAIR, {"config": 3}, "config: 3 is not a mapping"),
        ([(IMAGE, MASK + 7)], {}, "the mask of image 0 contains the value 7"),
        ([(IMAGE, torch.zeros(1, 8, 8))], {}, "the mask of image 0 has shape 1 x 8 x 8"),
        ([(IMAGE, MASK[1:])], {}, "the image of this data set is 8 x 8, its mask is 8 x 7"),
        (
            [(IMAGE.astype(float), MASK)],
            {},
            "image 0 is float64 of 8 x 8 x 3; it must be 8-bit",
        ),
    ],
)
def test_invalid_data_is_one_sentence(data: Any, values: dict[str, Any], message: str) -> None:
    with pytest.raises(NacreError, match=message):
        given(data, **values)


def test_torchs_loader_takes_a_data_folder(cracks: Path) -> None:
    data = nacre.ImageFolder(cracks, crop_size=32)
    assert data.classes == ("background", "crack")
    (images, targets), *_ = torch.utils.data.DataLoader(data, batch_size=4)
    assert images.shape == (4, 3, 32, 32)
    assert targets.shape == (4, 32, 32)
    assert set(targets.unique().tolist()) <= {0, 1, 255}
    again = data[0][0]
    assert torch.equal(images[0], again)
    data.epoch = 1
    assert not torch.equal(data[0][0], again), "another epoch cuts otherwise"
    tested = nacre.ImageFolder(cracks, "val", crop_size=32)
    assert len(tested) + len(data) == 12
    assert len(list(tested)) == len(tested)


def test_a_network_of_few_sizes_predicts_images_of_any_size(cracks: Path) -> None:
    """A U-Net, whose sides must be multiples of 8, with pixels of 0 to 1."""
    torch.manual_seed(0)
    pixels = {"mean": [0, 0, 0], "std": [1, 1, 1]}
    model = nacre.learn(
        cracks,
        start=Unet(classes=3),
        old=["road", "car"],
        config={"images": {"crop_size": 60}, "train": {"iterations": 2, "batch_size": 4}}
        | {"model": {"pixels": pixels}},
    )
    assert model.classes == ("background", "road", "car", "crack")
    assert model.info.model["pixels"]["std"] == [1, 1, 1]
    seen = model.predict(np.zeros((61, 83, 3), np.uint8))
    assert seen.mask.shape == (61, 83)
    assert isinstance(model.network.model, Unet)
    assert model.path is not None
    assert model.path.is_relative_to("models/cracks")  # no folder was named
    assert _new_folder([cracks]) == Path("models/cracks-2")


@pytest.mark.usefixtures("cracks")
def test_a_network_without_background_is_taught() -> None:
    names = ["road", "car"]
    model = nacre.learn("cracks", start=network(2), old=names, background=None, config=SHORT)
    assert model.classes == ("background", "road", "car", "crack")
    assert not model.network.has_background
    assert "background" not in model.predict("image.png").class_fractions(), (
        "no pixel is of no class"
    )


@pytest.mark.usefixtures("cracks")
def test_a_network_of_transformers_is_built_again_from_its_file() -> None:
    start = segformer(id2label={0: "background", 1: "road", 2: "car"})
    model = nacre.learn("cracks", start=start, out="taught", config=SHORT)
    assert model.classes == ("background", "road", "car", "crack")
    assert model.info.model["library"] == "transformers"
    assert isinstance(model.network.model, type(start))
    before, after = start.base_model.state_dict(), model.network.model.base_model.state_dict()
    assert all(torch.equal(value, after[name]) for name, value in before.items()), "it is frozen"


class Up(torch.nn.Module):
    """A network that scores by a transposed convolution, and two of whose layers are tied."""

    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Conv2d(3, 8, 3, 2, padding=1)
        self.one = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.other = torch.nn.Conv2d(8, 8, 3, padding=1)
        self.other.weight = self.one.weight
        self.up = torch.nn.ConvTranspose2d(8, 3, 2, stride=2)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.up(self.other(self.one(self.first(x).relu()).relu()).relu())


@pytest.mark.usefixtures("cracks")
def test_tied_weights_and_transposed_scores_are_learned_fused_and_loaded() -> None:
    torch.manual_seed(0)
    mine = Up()
    config = {**SHORT, "method": {"fusion": "sqrt"}}
    model = nacre.learn("cracks", start=mine, old=["a", "b"], out="up", method="mib", config=config)
    assert model.path is not None
    taught = load_model(model.path, network=Up())[0].model  # type: ignore[attr-defined]
    assert taught.up.weight.shape == (8, 4, 2, 2)
    assert taught.other.weight is taught.one.weight
    assert not torch.equal(taught.one.weight, mine.one.weight)


@pytest.mark.usefixtures("cracks")
def test_what_cannot_be_fused_is_refused_before_the_first_update(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    grow = Adapter.grow

    def grow_too_much(self: Adapter, *args: Any) -> None:
        grow(self, *args)
        self.model.one = torch.nn.Conv2d(9, 9, 3)  # type: ignore[assignment]

    monkeypatch.setattr(Adapter, "grow", grow_too_much)
    monkeypatch.setattr("nacre.training.loop.update", lambda *_, **__: pytest.fail("an update"))
    config = {"images": {"crop_size": SIDE}, "method": {"fusion": 0.5}}
    with pytest.raises(NacreError, match=r"one\.weight was 8 x 8 x 3 x 3 and is now 9 x 9 x 3 x 3"):
        nacre.learn("cracks", start=Up(), old=["a", "b"], out="up", method="mib", config=config)


@pytest.mark.usefixtures("cracks")
def test_names_that_do_not_fit_are_refused() -> None:
    with pytest.raises(NacreError, match="scores 2 classes beside the background, and 1 names"):
        nacre.learn("cracks", start=network(), old=["road"], out="taught")
    with pytest.raises(NacreError, match="name the classes of the network"):
        nacre.learn("cracks", start=network(), out="taught")
    with pytest.raises(NacreError, match="are only valid if `start` is a torch network"):
        nacre.learn("cracks", old=["road"], out="taught")


@pytest.mark.usefixtures("cracks")
def test_a_file_of_a_given_network_opens_with_such_a_network_and_no_other() -> None:
    model = nacre.learn("cracks", start=network(), old=["a", "b"], out="mine", config=SHORT)
    assert model.path is not None
    with pytest.raises(NacreError, match=r"a Python program made: build one .* network="):
        nacre.load("mine")
    with pytest.raises(NacreError, match=r"network=Small does not fit .* of 3 classes: score\."):
        nacre.load("mine", network=network(5))
    with pytest.raises(
        NacreError, match=r"network=Linear does not fit .*: it has no tensor weight"
    ):
        nacre.load("mine", network=torch.nn.Linear(2, 2))
    for given in (network(), model.network.model):  # as it was before, and as it is now
        again = nacre.load("mine", "cpu", network=given).network
        for name, value in model.network.state_dict().items():
            assert torch.equal(again.state_dict()[name], value.cpu())
    own = nacre.learn("cracks", out="ours", config={"model": {"backbone": "tiny"}, **SHORT})
    with pytest.raises(NacreError, match=r"says how to build its network .* leave out network="):
        nacre.load(own.path or "", network=network())


@pytest.mark.usefixtures("cracks")
def test_a_model_of_a_given_network_learns_more(cracks: Path) -> None:
    nacre.learn(cracks, start=network(), old=["a", "b"], out="mine", config=SHORT)
    (cracks / "classes.yaml").write_text("classes: {1: dent}")
    again = nacre.load("mine", network=network()).learn(cracks, out="more", config=SHORT)
    assert again.classes == ("background", "a", "b", "crack", "dent")
    once_more = nacre.load("more", "cpu", network=network())
    assert once_more.network.num_classes == 5


def test_three_lines_make_a_loop_remember(capsys: pytest.CaptureFixture[str]) -> None:
    mine = network()
    names: dict[str, Any] = {"nacre": nacre, "torch": torch, "network": mine, "batches": batches()}
    exec(compile(LOOP, str(PAGE), "exec"), names)
    assert mine.score.out_channels == 4
    shown = capsys.readouterr().out
    assert "crack" in shown
    assert "agreement" in shown


@pytest.mark.filterwarnings("ignore:'pin_memory' argument is set as true:UserWarning")
def test_a_trainer_of_hugging_face_remembers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers")
    if not transformers.utils.is_accelerate_available():
        pytest.skip("transformers' Trainer needs accelerate, which is not installed")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("WANDB_DISABLED", "true")
    model = segformer(num_labels=3)
    images, labels = batches()[0]
    pairs = zip(images, labels, strict=True)
    cracks = [{"pixel_values": image, "labels": label} for image, label in pairs]
    names: dict[str, Any] = {"nacre": nacre, "transformers": transformers}
    names |= {"segformer": model, "cracks": cracks}
    exec(compile(HUGGING_FACE, str(PAGE), "exec"), names)
    assert names["trainer"].state.global_step == 6
    teacher = names["teacher"].model
    assert teacher.decode_head.classifier.out_channels == 3
    assert not any(one.requires_grad for one in teacher.parameters())
    saved = transformers.AutoModelForSemanticSegmentation.from_pretrained(
        "models/segformer-with-cracks"
    )
    assert saved.config.id2label[3] == "crack"
    with torch.no_grad():
        old, learned, again = teacher(images), model.eval()(images), saved(images)
    torch.testing.assert_close(learned.logits.cpu(), again.logits)
    moved = learned.logits[:, :3].cpu() - old.logits.cpu()
    assert moved.abs().max() > 1e-4  # six updates did something


def test_a_loss_by_strips_equals_that_of_upsampled_logits() -> None:
    g = torch.Generator().manual_seed(0)
    logits, old_logits = (torch.randn(2, c, 5, 5, generator=g).requires_grad_() for c in (4, 3))
    labels = torch.randint(0, 4, (2, 40, 40), generator=g)
    labels[:, :9] = 255
    names: dict[str, Any] = {"nacre": nacre, "logits": logits, "old_logits": old_logits}
    names["labels"] = labels
    exec(BY_STRIPS, names)
    x, z = (nacre.losses.upsample(one, (40, 40)) for one in (logits, old_logits))
    plain = (nacre.losses.binary_cross_entropy(x, labels), nacre.losses.binary_distillation(x, z))
    for found, expected in zip(names["losses"].values(), plain, strict=True):
        torch.testing.assert_close(found, expected)
        slopes = [
            torch.autograd.grad(one, logits, retain_graph=True)[0] for one in (found, expected)
        ]
        torch.testing.assert_close(*slopes, rtol=1e-4, atol=1e-7)
