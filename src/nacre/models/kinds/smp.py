"""Networks of segmentation_models.pytorch.

model: {kind: smp, architecture: Unet, encoder: resnet18, weights: imagenet}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import nn

from nacre.errors import NacreError
from nacre.models.foreign.adapter import Adapter
from nacre.models.kinds.base import ForeignConfig, Kind, adapt, num_outputs
from nacre.utils.packages import need

_DIVISOR = 32


class SmpConfig(ForeignConfig):
    """A network of segmentation_models.pytorch."""

    kind: Literal["smp"] = Field(default="smp", description="of segmentation_models.pytorch")
    architecture: str = Field(default="Unet", description="such as Unet, FPN, DeepLabV3Plus")
    encoder: str = Field(default="resnet34", description="smp's name of the encoder")
    weights: str = Field(
        default="none", description="`none` (random), or smp's name of weights, such as imagenet"
    )


def build(config: SmpConfig, classes: Sequence[int], crop: int | None, load: bool) -> Adapter:
    """Make a network of smp."""
    smp = need("segmentation_models_pytorch", "smp")
    weights = config.weights if load and config.weights != "none" else None
    try:
        model: nn.Module = smp.create_model(
            config.architecture,
            encoder_name=config.encoder,
            encoder_weights=weights,
            classes=num_outputs(config, classes),
            **config.options,
        )
    except Exception as error:  # wrong names, weights that cannot be had
        reason = " ".join(str(error).split())[:300]
        raise NacreError(
            f"smp cannot make {config.architecture} with the encoder {config.encoder!r} and "
            f"weights {config.weights!r}: {reason}"
        ) from error
    again = config.model_copy(update={"weights": "none"})
    return adapt(model, again, classes, divisor=_DIVISOR)


KIND = Kind(SmpConfig, build, "segmentation_models.pytorch: Unet, FPN, DeepLabV3Plus, …")
