"""What can be said about a network in a config file. Importing this does not import torch."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.backbones import BACKBONES, NormName
from nacre.utils.config import Config


class ModelConfig(Config):
    """What the configs of all kinds of networks have in common: the kind."""

    kind: str = Field(description="deeplab (ours), hf, timm, smp, torchvision, or a package's")
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


class HeadConfig(ModelConfig):
    """The DeepLabv3 head, which other backbones can have too."""

    output_stride: Literal[8, 16, 32] | None = Field(
        default=None,
        description="input pixels per feature; by default 16, or the only one that a backbone has",
    )
    norm: NormName = Field(
        default="abn",
        description="bn: batch norm + ReLU, as public ResNet weights were trained; "
        "abn: batch norm + leaky ReLU 0.01; iabn: the paper's, as abn but keeping half as much "
        "for the backward pass. Small backbones have a norm of their own and cannot have iabn",
    )
    decoder_channels: int = Field(
        default=256, ge=1, le=8192, description="channels of each branch of the head"
    )


class DeepLabConfig(HeadConfig):
    """Our network: backbone, DeepLabv3 head, normalisation and the weights to start from."""

    kind: Literal["deeplab"] = Field(default="deeplab", description="our own network")
    backbone: str = Field(
        default="resnet101",
        description=f"the network that makes the features: {', '.join(BACKBONES)}",
    )
    decoder: Literal["aspp", "light", "stages"] = Field(
        default="aspp",
        description="aspp: DeepLabv3's, the paper's; light: for small machines, of several stages, "
        "with logits at half the output stride; stages: no weights, all stages on one grid, which "
        "the method `ledger` chooses itself",
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
        if name not in BACKBONES:
            hint = did_you_mean(name, BACKBONES)
            raise ValueError(f"unknown backbone{hint}; known: {', '.join(BACKBONES)}")
        return name

    @model_validator(mode="after")
    def _fits_the_backbone(self) -> DeepLabConfig:
        row, name = BACKBONES[self.backbone], self.backbone
        if row.strides is None and self.output_stride is not None:
            raise ValueError(f"output_stride cannot be chosen for backbone {name!r}: leave it out")
        if self.norm not in row.norms:
            allowed = " or ".join(repr(norm) for norm in row.norms)
            raise ValueError(
                f"norm {self.norm!r} cannot invert the activations of backbone {name!r}: "
                f"use {allowed}"
            )
        return self
