"""What can be said about a network in a config file. Importing this does not import torch."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from nacre.utils.config import Config

Rate = Annotated[int, Field(ge=1, le=1024)]
BackboneName = Literal["tiny", "resnet18", "resnet34", "resnet50", "resnet101", "lite0"]


class ModelConfig(Config):
    """The network: backbone, DeepLabv3 head, normalisation and the weights to start from."""

    backbone: BackboneName = Field(
        default="resnet101", description="the network that makes the features"
    )
    output_stride: Literal[8, 16, 32] | None = Field(
        default=None,
        description="input pixels per feature; by default 16, and the backbone's own for `tiny`",
    )
    norm: Literal["bn", "abn", "iabn"] = Field(
        default="abn",
        description="bn: batch norm + ReLU, as public ResNet weights were trained; "
        "abn: batch norm + leaky ReLU 0.01; iabn: the paper's, as abn but keeping half as much "
        "for the backward pass. `lite0` has ReLU6 in its backbone and cannot have iabn",
    )
    decoder_channels: int = Field(
        default=256, ge=1, le=8192, description="channels of each branch of the head"
    )
    atrous_rates: tuple[Rate, Rate, Rate] | None = Field(
        default=None,
        description="of the head's 3x3 convolutions; by default 6, 12, 18 at output stride 16, "
        "and in proportion at others",
    )
    weights: str = Field(
        default="none",
        description="what the backbone starts from: `none` (random), `imagenet` (where a package "
        "brings them: lite0), or the path of a weight file",
    )

    grad_checkpointing: bool = Field(
        default=False,
        description="keep only the input of each block of the backbone and compute the rest "
        "again in the backward pass: less memory, about a third more time",
    )

    @model_validator(mode="after")
    def _check_backbone(self) -> ModelConfig:
        if self.backbone == "tiny" and self.output_stride is not None:
            raise ValueError("output_stride cannot be chosen for backbone 'tiny': leave it out")
        if self.backbone == "tiny" and self.grad_checkpointing:
            raise ValueError("grad_checkpointing is not needed by backbone 'tiny': leave it out")
        if self.backbone == "lite0" and self.norm == "iabn":
            raise ValueError(
                "norm 'iabn' cannot invert the ReLU6 of backbone 'lite0': use 'bn' or 'abn'"
            )
        return self
