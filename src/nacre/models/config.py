"""Configs of networks. Importing this does not import torch."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.backbones import BACKBONES, TIMM, NormName
from nacre.utils.config import Config
from nacre.utils.system import import_extra


class ModelConfig(Config):
    """The common part of the configs of all kinds of networks: the kind."""

    kind: str = Field(description="deeplab (ours), external (another library's), or a package's")
    weights: str = Field(default="none", description="what it starts from; `none` is random")

    def check_file(self) -> None:
        """Refuse what a user's own config may ask for and a model file may not.

        Raises:
            NacreError: the file names weights, which would be read or fetched.
        """
        if self.weights != "none":
            raise NacreError(
                f"its header names the weights {shown(self.weights)}; a model file has its own"
            )


class DeepLabConfig(ModelConfig):
    """Our network: backbone, decoder, normalization and the weights to start from."""

    kind: Literal["deeplab"] = Field(default="deeplab", description="our own network")
    backbone: str = Field(
        default="resnet101",
        description=f"the network that makes the features: {', '.join(BACKBONES)}, or one of timm, "
        "such as timm/convnext_tiny",
    )
    output_stride: Literal[8, 16, 32] | None = Field(
        default=None,
        description="input pixels per feature; by default 16, or the one that a backbone of timm "
        "has by itself, or the only one that a backbone has",
    )
    norm: NormName = Field(
        default="abn",
        description="bn: batch norm + ReLU, as public ResNet weights were trained; "
        "abn: batch norm + leaky ReLU 0.01; iabn: the paper's, as abn but keeping half as much "
        "for the backward pass. Small backbones have a norm of their own and cannot have iabn; "
        "those of timm keep theirs",
    )
    decoder: Literal["aspp", "light", "stages"] = Field(
        default="aspp",
        description="aspp: DeepLabv3's, the paper's; light: for small machines, of several stages, "
        "with logits at half the output stride; stages: no weights, all stages on one grid, which "
        "the method `ledger` chooses itself",
    )
    decoder_channels: int = Field(
        default=256, ge=1, le=8192, description="channels of each branch of the decoder"
    )
    grid_stride: Literal[8, 16] | None = Field(
        default=None,
        description="input pixels per point of the grid of stages: with decoder=stages 16 by "
        "default; with another decoder the grid of the ledger beside it, which the method `duo` "
        "chooses itself",
    )
    weights: str = Field(
        default="none",
        description="what the backbone starts from: `none` (random), `imagenet` (from a package, "
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
            raise ValueError(f"norm 'iabn' cannot be that of backbone {name!r}: use 'bn' or 'abn'")
        return self


Channel = Annotated[int, Field(ge=0, le=100_000)]


class PixelsConfig(Config):
    """The form of pixels that a network expects."""

    mean: tuple[float, float, float] | None = Field(
        default=None,
        description="subtracted from RGB in 0..1; null leaves pixels in 0..255, for a network that "
        "normalizes them itself",
    )
    std: tuple[float, float, float] = Field(
        default=(1.0, 1.0, 1.0), description="what they are divided by"
    )


class BesideConfig(Config):
    """The ledger beside a network that is not nacre's, which the method `ledger` adds."""

    maps: tuple[str, ...] = Field(min_length=1, description="the modules whose maps it reads")
    stride: int = Field(ge=1, le=64, description="input pixels per point of its grid")
    crop: int = Field(ge=1, le=8192, description="side of the training crops")
    own: int = Field(ge=1, description="channels of the network itself, with the background")


class AdapterConfig(ModelConfig):
    """The config of any network that is not nacre's."""

    background: Channel | None = Field(
        default=0,
        description="channel of the background in the network's own scores; null for a network "
        "that has none, which can be started from but not learned from nothing",
    )
    scoring_layers: tuple[str, ...] = Field(
        default=(), description="names of the layers that score the classes, if they are not found"
    )
    stages: tuple[str, ...] = Field(
        default=(),
        description="names of modules whose features methods may compare, the first ones first",
    )
    pixels: PixelsConfig | None = Field(
        default=None, description="normalization of pixels; by default its own, or ImageNet's"
    )
    ledger: BesideConfig | None = Field(
        default=None, description="the ledger beside it, in model files: the method adds it"
    )

    def own_steps(self, classes_per_step: Sequence[int]) -> list[int]:
        """Return the channels of the steps that the network itself learned, without a ledger's."""
        if self.ledger is None:
            return list(classes_per_step)
        for count in range(1, len(classes_per_step) + 1):
            if sum(classes_per_step[:count]) == self.ledger.own:
                return list(classes_per_step[:count])
        raise NacreError(
            f"its network has {self.ledger.own} channels of its own, with which none of its steps "
            "ends"
        )


class ExternalConfig(AdapterConfig):
    """A network of another library."""

    kind: Literal["external"] = Field(default="external", description="another library's network")
    library: Literal["transformers", "smp", "torchvision", "python"] = Field(
        description="whose it is; `python` stands in files of networks that were given in Python"
    )
    name: str = Field(
        max_length=300,
        description="the library's name: a model type of transformers such as segformer, a "
        "repository of the Hugging Face hub or a folder; architecture and encoder of smp, such as "
        "Unet/resnet34; a segmentation network of torchvision",
    )
    weights: str = Field(
        default="pretrained",
        description="`pretrained` (those of the folder or repository, or ImageNet's), `none` "
        "(random), or smp's name of weights of an encoder",
    )
    options: dict[str, Any] = Field(
        default_factory=dict,
        description="sizes and settings that transformers' config of that model type knows, such "
        "as hidden_sizes",
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
        """Refuse a repository, a folder or weights, which a user's own config may name."""
        super().check_file()
        if (
            self.library == "transformers"
            and self.name not in import_extra("transformers", "hf").CONFIG_MAPPING
        ):
            raise NacreError(f"its header names {shown(self.name)}, no model type of transformers")


_WORD = re.compile(r"[\w.+ -]{0,64}", re.ASCII)
_LARGEST, _LONGEST, _DEEPEST = 65_536, 256, 4


def check_plain(value: Any, depth: int = 0) -> None:
    """Refuse a value other than numbers, words, and lists and mappings of these.

    Raises:
        ValueError: it is a path, an address, or too large.
    """
    if isinstance(value, str):
        if not _WORD.fullmatch(value):
            raise ValueError(f"{shown(value)} is no word of letters, digits and . _ + -")
    elif isinstance(value, int | float) and not math.isfinite(value):
        raise ValueError(f"{value} is no number")
    elif isinstance(value, int | float) and abs(value) > _LARGEST:
        raise ValueError(f"{shown(value)} is larger than {_LARGEST:,}")
    elif isinstance(value, list | tuple | dict):
        if depth == _DEEPEST or len(value) > _LONGEST:
            raise ValueError(f"more than {_LONGEST} values, or more than {_DEEPEST} deep")
        every = [*value, *value.values()] if isinstance(value, dict) else value
        for one in every:
            check_plain(one, depth + 1)
    elif value is not None and not isinstance(value, int | float):
        raise ValueError(f"{shown(value)} is not a number, word, list or mapping")
