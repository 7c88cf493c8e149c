"""Files of a hub on loopback: fetched once, checked, refused by name, absent, and garbage."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save
from torch import Tensor, nn

from models.file_server import COMMIT, CONTENT, Site, answering, sha256
from models.test_download import HEADS
from nacre.errors import NacreError
from nacre.models.build import build_network, read_model_config
from nacre.models.weights import find_weights, hub_file, hub_model

PLACE = "/timm/resnet50.a1_in1k/resolve/main/model.safetensors"
NAME = "timm/resnet50.a1_in1k"


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_files_are_fetched_once_into_the_hubs_cache(site: Site, tmp_path: Path) -> None:
    site.files[PLACE] = CONTENT
    path = find_weights("resnet50", NAME)
    assert path.read_bytes() == CONTENT
    assert path == tmp_path / f"hub/models--timm--resnet50.a1_in1k/snapshots/{COMMIT}" / path.name
    asked = len(site.asked)
    assert find_weights("resnet50", NAME) == path
    assert hub_model(f"hf://{NAME}") == path
    assert len(site.asked) == asked


def test_files_are_fetched_where_the_hub_stores_them(site: Site) -> None:
    """As the hub answers for a large file: elsewhere, with what the file there hashes to."""
    elsewhere = site.address.replace("127.0.0.1", "localhost")
    site.moved[PLACE] = f"{elsewhere}/weights.pth"
    site.headers[PLACE] = {
        "X-Linked-ETag": f'"{sha256(CONTENT)}"',
        "X-Linked-Size": str(len(CONTENT)),
        "X-Repo-Commit": COMMIT,
        "ETag": '"else"',
    }
    assert hub_file(NAME, "model.safetensors").read_bytes() == CONTENT


def test_a_revision_is_asked_for(site: Site) -> None:
    site.files[PLACE.replace("main", "v1.0")] = CONTENT
    assert hub_model(f"hf://{NAME}@v1.0").read_bytes() == CONTENT


def test_another_file_than_the_hub_says_is_not_kept(site: Site, tmp_path: Path) -> None:
    site.files[PLACE] = CONTENT
    site.headers[PLACE] = {"ETag": f'"{"0" * 64}"'}
    with pytest.raises(NacreError, match="what came is not the published file"):
        hub_file(NAME, "model.safetensors")
    assert not [path for path in files_of(tmp_path) if path.read_bytes() == CONTENT]


def test_offline_mode_uses_the_cache_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files[PLACE] = CONTENT
    path = hub_file(NAME, "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(site.asked)
    assert hub_file(NAME, "model.safetensors") == path
    with pytest.raises(NacreError, match=r"could not get config\.json.*HF_HUB_OFFLINE"):
        hub_file(NAME, "config.json")
    assert len(site.asked) == asked


HOSTILE = [
    "..",
    ".",
    "",
    "../../x",
    "/etc/x",
    "a/../b",
    "a b",
    "a\\b",
    "a..b",
    "é",
    "a\n",
    "~",
    "-",
]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_could_leave_the_cache_are_refused(
    name: str, site: Site, tmp_path: Path
) -> None:
    for repository, file, revision in (
        (name, "x", "main"),
        (f"{name}/n", "x", "main"),
        (f"o/{name}", "x", "main"),
        ("o/n", name, "main"),
        ("o/n", "x", name),
    ):
        with pytest.raises(NacreError, match=r"is no (repository|file|revision)"):
            hub_file(repository, file, revision=revision)
    for address in (f"hf://o/n@{name}", f"hf://o/n/{name}", f"hf://o/{name}@main"):
        with pytest.raises(NacreError, match=r"is no (repository|file|revision)"):
            hub_model(address)
    assert site.asked == []
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("name", ["../../../../escaped", "TMP/escaped", "a/b"])
@pytest.mark.parametrize("header", ["ETag", "X-Repo-Commit"])
def test_answers_that_could_leave_the_cache_are_refused(
    header: str, name: str, site: Site, tmp_path: Path
) -> None:
    """The client makes paths of what the hub answers."""
    site.files[PLACE] = CONTENT
    site.headers[PLACE] = {header: f'"{name.replace("TMP", str(tmp_path))}"'}
    with pytest.raises(NacreError, match=r"the hub.s answer holds .* which is no checksum"):
        hub_file(NAME, "model.safetensors")
    assert files_of(tmp_path) == []


def test_a_cache_that_leads_elsewhere_is_refused(site: Site, tmp_path: Path) -> None:
    site.files[PLACE] = CONTENT
    path = hub_file(NAME, "model.safetensors")
    path.unlink()
    (tmp_path / "elsewhere").write_bytes(CONTENT)
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NacreError, match=r"lies outside the hub's cache"):
        hub_file(NAME, "model.safetensors")


@pytest.mark.parametrize(
    ("status", "reason"),
    [(404, "answers 404"), (401, "hf auth login"), (403, "hf auth login"), (500, "answers 500")],
)
def test_a_refusal_is_one_sentence(status: int, reason: str, site: Site) -> None:
    site.status = status
    message = (
        rf"^could not get model\.safetensors of o/n, .* from {site.address} \(.*{reason}.*\): "
    )
    with pytest.raises(NacreError, match=message) as caught:
        hub_model("hf://o/n")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))
def test_garbage_is_one_sentence(head: bytes, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    with answering(head) as address:
        monkeypatch.setenv("HF_ENDPOINT", address)
        with pytest.raises(
            NacreError, match=r"^could not get model\.safetensors of o/n, "
        ) as caught:
            hub_model("hf://o/n")
    assert "\n" not in str(caught.value)


def test_without_a_network_it_is_one_sentence(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(NacreError, match=r"from http://127\.0\.0\.1:9 \(.*refused.*\): check"):
        hub_model("hf://o/n")


@pytest.mark.parametrize(
    ("endpoint", "call", "said"),
    [
        ("x", "hub_model('hf://o/n')", "could not get model.safetensors of o/n, revision main, fr"),
        ("http://[::1", "import_extra('transformers', 'hf')", "transformers, which cannot be impo"),
    ],
)
def test_what_is_no_endpoint_is_one_sentence(
    endpoint: str, call: str, said: str, tmp_path: Path
) -> None:
    """In a process of its own, since the client reads the variable when it is imported."""
    code = f"""
from nacre.errors import NacreError
from nacre.models.weights import hub_model
from nacre.utils.system import import_extra
try:
    {call}
except NacreError as error:
    print(error)
"""
    settings = {"HF_ENDPOINT": endpoint, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | settings, capture_output=True, text=True
    )
    assert said in done.stdout, done.stderr


# Weights that timm and smp know by name


@dataclass(frozen=True)
class Library:
    """How a library's weights are asked for, where they lie, and what is in them."""

    config: dict[str, Any]
    place: Callable[[], str]
    state: Callable[[], dict[str, Tensor]]
    part: Callable[[Any], nn.Module]


def timm_state() -> dict[str, Tensor]:
    import timm

    return dict(timm.create_model("test_resnet").state_dict())


def smp_encoder() -> dict[str, Any]:
    import segmentation_models_pytorch as smp

    return dict(smp.encoders.encoders["mobilenet_v2"])


def smp_place() -> str:
    where = smp_encoder()["pretrained_settings"]["imagenet"]
    return f"/{where['repo_id']}/resolve/{where['revision']}/model.safetensors"


def smp_state() -> dict[str, Tensor]:
    about = smp_encoder()
    return dict(about["encoder"](**about["params"], depth=5).state_dict())


LIBRARIES = {
    "timm": Library(
        {"backbone": "timm/test_resnet", "decoder_channels": 8, "weights": "imagenet"},
        lambda: "/timm/test_resnet.r160_in1k/resolve/main/model.safetensors",
        timm_state,
        lambda network: network.backbone.model,
    ),
    "smp": Library(
        {"kind": "external", "library": "smp", "name": "Unet/mobilenet_v2"},
        smp_place,
        smp_state,
        lambda network: network.model.encoder,
    ),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest, foreign_libraries: None) -> Library:
    return LIBRARIES[request.param]


@pytest.fixture
def published(library: Library, site: Site) -> dict[str, Tensor]:
    """The weights that the hub has, with what it says of them."""
    torch.manual_seed(3)
    state = {
        name: torch.rand_like(one) if one.is_floating_point() else one
        for name, one in library.state().items()
    }
    site.files[library.place()] = save(state)
    return state


def build(library: Library) -> nn.Module:
    return library.part(build_network(read_model_config(library.config), [3], crop=64))


def assert_loaded(part: nn.Module, state: dict[str, Tensor]) -> None:
    found = part.state_dict()
    common = [name for name in found if name in state and found[name].ndim == 4]
    assert len(common) > 5
    for name in common:
        assert torch.equal(found[name], state[name]), name


def test_they_are_downloaded_once_and_loaded(library: Library, published: Any, site: Site) -> None:
    assert_loaded(build(library), published)
    asked = len(site.asked)
    assert_loaded(build(library), published)
    assert len(site.asked) == asked


@pytest.mark.usefixtures("foreign_libraries")
def test_weights_that_smp_does_not_have_are_named() -> None:
    config = LIBRARIES["smp"].config | {"weights": "ssl"}
    with pytest.raises(NacreError, match=r"smp has no such weights of 'mobilenet_v2'; it has imag"):
        build_network(read_model_config(config), [3], crop=64)
