"""The same tests for every kind of network: growing, learning, resuming, saving, loading."""

import json
import re
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import nacre
from models.conftest import import_foreign
from models.kinds_of_networks import MODELS
from nacre.errors import NacreError
from nacre.methods import METHODS
from nacre.models.build import build_network, read_model_config
from nacre.models.config import ExternalConfig
from nacre.models.io import find_model
from nacre.runs.folder import RunFolder
from nacre.runs.run import run_scenario
from nacre.training.config import RunConfig, build_config, deep_merge
from nacre.training.events import Event, Iterated
from nacre.utils.signals import Interrupted
from one_and_two import assert_equal_runs, learn_by_one_and_two

LEARN = Path(__file__).with_name("learn_kinds.py")
SIDE = 64
TRANSFORMERS = {"kind": "external", "library": "transformers"}
SMP = {"kind": "external", "library": "smp"}
PYTHON = {"kind": "external", "library": "python"}
FROZEN = ["transformers, frozen"]
NAMES = [name for name in MODELS if name != "deeplab"] + FROZEN
LARGE = [name for name in NAMES if name.startswith("smp")]
BY_TWO = ["plain", "timm", "transformers, frozen"]

RUN: dict[str, Any] = {
    "scenario": "scenes/4-4/overlapped",
    "data": {"train": 16, "val": 6, "size": SIDE, "seed": 3},
    "images": {"crop_size": SIDE, "crop": "plain"},
    "train": {"epochs": 1, "batch_size": 4, "lr": 0.0005, "incremental_lr": 0.0005},
    "method": {"name": "mib"},
}


def values_of(name: str) -> dict[str, Any]:
    model, _, frozen = name.partition(", ")
    values = deep_merge(RUN, {"model": MODELS[model]})
    if frozen:
        chosen = {"freeze": ["backbone", "batch_norm"]}
        values = deep_merge(values, {"method": chosen})
    if model == "smp":  # halved five times: of small images too few values are left to normalize
        return deep_merge(values, {"data": {"size": 128}, "images": {"crop_size": 128}})
    return values


def config_of(name: str) -> RunConfig:
    return build_config(overrides=values_of(name))


def is_there(name: str) -> bool:
    """Tell whether the library of a kind is installed."""
    whose = name.partition(", ")[0]
    if whose == "transformers":
        return find_spec("transformers") is not None
    return whose not in ("timm", "smp", "torchvision") or import_foreign()


def need(name: str) -> None:
    if not is_there(name):
        pytest.skip("its library is not installed: make test does it")


@pytest.fixture(
    scope="module",
    params=[pytest.param(name, marks=[pytest.mark.slow] * (name in LARGE)) for name in NAMES],
)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A finished run of two steps with each kind."""
    need(request.param)
    out = tmp_path_factory.mktemp("kinds") / "run"
    run_scenario(config_of(request.param), out)
    return request.param, out


@pytest.fixture(scope="module")
def by_two(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Folders of the runs of each kind, carried out by one process and by two."""
    configs = {name: values_of(name) for name in BY_TWO if is_there(name)}
    return learn_by_one_and_two(configs, tmp_path_factory.mktemp("both"), LEARN)


def test_it_learns_two_steps_and_its_file_builds_it_again(
    run: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a download or a folder: with what the file says."""
    _, out = run
    monkeypatch.setenv("XDG_CACHE_HOME", str(out / "nothing"))
    model = nacre.load(out, device="cpu")
    assert len(model.classes) == model.network.num_classes == 9
    assert read_model_config(model.info.model) == model.network.config
    image = np.random.default_rng(0).integers(0, 256, (50, 70, 3), dtype=np.uint8)
    seen = model.predict(image)
    assert seen.mask.shape == (50, 70)
    metrics = json.loads((find_model(out).parent / "metrics.json").read_text())
    assert metrics["mean_iou"]


def interrupt(config: RunConfig, folder: RunFolder) -> None:
    """Stop a run after the first iteration of its second step."""
    seen: list[Event] = []

    def stop() -> bool:
        return any(isinstance(event, Iterated) and event.step == 1 for event in seen)

    with pytest.raises(Interrupted):
        run_scenario(config, folder.path, observers=[seen.append], should_stop=stop)
    assert folder.resume.exists(), "stopped in the middle of a step"


@pytest.mark.slow
def test_it_resumes_exactly(run: Any, tmp_path: Path) -> None:
    name, out = run
    again = RunFolder(tmp_path / "run")
    interrupt(config_of(name), again)
    run_scenario(config_of(name), again.path)
    assert find_model(again.path).read_bytes() == find_model(out).read_bytes()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", BY_TWO)
def test_two_processes_learn_what_one_does(name: str, by_two: list[Path]) -> None:
    need(name)
    assert_equal_runs(by_two, name)


@pytest.mark.parametrize(("decoder", "stride"), [("aspp", 32), ("light", 16), ("stages", 16)])
def test_a_backbone_of_timm_takes_every_decoder(decoder: str, stride: int) -> None:
    need("timm")
    config = read_model_config(
        {"backbone": "timm/resnet10t", "decoder": decoder, "decoder_channels": 8}
    )
    network = build_network(config, 3, SIDE).eval()
    images = torch.randint(0, 256, (2, 3, SIDE, 2 * SIDE), dtype=torch.uint8)
    assert network.stride == stride
    assert network(images).logits.shape == (2, 3, SIDE // stride, 2 * SIDE // stride)


def test_dropout_and_drop_path_resume_bit_for_bit(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    random = {"drop_path_rate": 0.3, "classifier_dropout_prob": 0.3}
    values = deep_merge(values_of("transformers"), {"model": {"options": random}})
    config = build_config(overrides=values)
    run_scenario(config, tmp_path / "whole")
    interrupt(config, RunFolder(tmp_path / "cut"))
    run_scenario(config, tmp_path / "cut")
    whole, cut = (find_model(tmp_path / name).read_bytes() for name in ("whole", "cut"))
    assert whole == cut


def test_a_missing_capability_is_an_error_before_the_first_iteration(
    tmp_path: Path,
) -> None:
    values = values_of("plain")
    frozen = {"name": "mib", "freeze": ["backbone"]}
    for method, message in (
        ({"name": "ewc"}, "'ewc' needs classifier"),
        ({"name": "ilt"}, "'ilt' needs features"),
        (frozen, "'mib' needs backbone of a network.* `base_model`, `backbone` or `encoder`"),
        ({"name": "ssul"}, "'ssul' needs backbone and classifier"),
    ):
        changed = deep_merge(values, {"method": method, "model": {"stages": []}})
        with pytest.raises(NacreError, match=message):
            run_scenario(build_config(overrides=changed), tmp_path / str(method["name"]))
    named = deep_merge(values, {"method": {"name": "ilt"}})
    run_scenario(build_config(overrides=named), tmp_path / "named")


def test_a_network_without_background_cannot_begin_a_run(tmp_path: Path) -> None:
    values = deep_merge(values_of("plain"), {"model": {"background": None}})
    with pytest.raises(NacreError, match="can only be continued"):
        run_scenario(build_config(overrides=values), tmp_path / "run")


def test_a_folder_named_like_a_model_type_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("transformers")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "segformer").mkdir()
    config = read_model_config({**TRANSFORMERS, "name": "segformer", "weights": "none"})
    assert build_network(config, 3).num_classes == 3


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no config.json"),
        ("{}", "model_type"),
        ("[", "JSON"),
        ('{"model_type": "x"}', "the model_type of its config.json, 'x'"),
        (
            '{"model_type": "segformer", "hidden_act": "a/b"}',
            "hidden_act: 'a/b' has char",
        ),
        ('{"model_type": "upernet", "backbone": "a/b"}', "builds on backbone='a/b'"),
    ],
)
def test_an_invalid_folder_of_transformers_is_one_sentence(
    tmp_path: Path, content: str | None, message: str
) -> None:
    pytest.importorskip("transformers")
    if content is not None:
        (tmp_path / "config.json").write_text(content)
    config = read_model_config({**TRANSFORMERS, "name": str(tmp_path)})
    with pytest.raises(NacreError, match=message):
        build_network(config, 3)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ({"kind": "extern"}, r"unknown model.kind 'extern' \(did you mean 'external'\?\)"),
        ({**TRANSFORMERS, "name": "segformer"}, "is a model type and has no weights"),
        ({**TRANSFORMERS, "name": "segformr", "weights": "none"}, "neither a model type"),
        ({"kind": "python", "factory": "os:system"}, "unknown model.kind 'python'"),
        ({**PYTHON, "name": "my.Network"}, "a Python program made: build one"),
        (TRANSFORMERS, "name: missing"),
        ({"kind": "external", "name": "x"}, "library: missing"),
        ({**PYTHON, "name": "x", "options": {"a": 1}}, "python takes no options"),
        ({"backbone": "timm/no_such_net"}, "timm has no network 'no_such_net'"),
        ({**SMP, "name": "resnet34"}, "give architecture and encoder, such as Unet/resnet34"),
    ],
)
@pytest.mark.usefixtures("site")
def test_a_mistake_is_one_sentence(model: dict[str, Any], message: str) -> None:
    need("timm" if "timm/" in model.get("backbone", "") else model.get("library", ""))
    with pytest.raises(NacreError, match=message):
        build_network(read_model_config(model), 3)


@pytest.mark.parametrize(
    ("kind", "package", "extra"),
    [
        ("transformers", "transformers", "hf"),
        ("timm", "timm", "timm"),
        ("smp", "segmentation_models_pytorch", "smp"),
        ("torchvision", "torchvision", "torchvision"),
    ],
)
def test_a_missing_library_is_named_with_its_extra(
    kind: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(NacreError, match=rf"the package {package}.*\[{extra}\]'"):
        build_network(read_model_config(MODELS[kind]), 3)


def test_a_network_starts_from_the_weights_and_pixels_of_a_folder(
    tmp_path: Path,
) -> None:
    transformers = pytest.importorskip("transformers")
    settings = transformers.SegformerConfig(num_labels=7, **MODELS["transformers"]["options"])
    torch.manual_seed(0)
    model = transformers.SegformerForSemanticSegmentation(settings)
    model.save_pretrained(tmp_path / "mine")
    about = {"do_rescale": True, "image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}
    (tmp_path / "mine" / "preprocessor_config.json").write_text(json.dumps(about))
    network = build_network(ExternalConfig(library="transformers", name=str(tmp_path / "mine")), 4)
    ours, theirs = network.state_dict(), model.state_dict()
    for key, value in theirs.items():
        if not key.startswith("decode_head.classifier"):
            assert torch.equal(ours[f"model.{key}"], value), key
    assert network.num_classes == 4
    assert network.config.pixels.mean == (0.5, 0.5, 0.5)  # type: ignore[attr-defined]
    again = build_network(network.config, 4, load=False)
    assert again.state_dict().keys() == ours.keys()


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("mib", "joint")])
def test_every_method_learns_an_external_network_or_refuses_it_at_once(
    method: str, tmp_path: Path
) -> None:
    config = build_config(overrides=deep_merge(values_of("plain"), {"method": {"name": method}}))
    seen: list[Event] = []
    refused = ""
    try:
        run_scenario(config, tmp_path / "run", observers=[seen.append])
    except NacreError as error:
        refused = str(error)
    if refused:
        assert re.search(
            r"needs (backbone|classifier|backbone and classifier) .* kind 'plain' does not provide"
            "|cannot learn step 0 with an external network",
            refused,
        )
        assert not any(isinstance(event, Iterated) for event in seen), "before the first iteration"
    else:
        assert nacre.load(tmp_path / "run", "cpu").network.num_classes == 9
