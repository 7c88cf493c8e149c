"""Networks of torchvision that segment.

model: {kind: torchvision, name: lraspp_mobilenet_v3_large, weights: imagenet}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import nn

from nacre.errors import NacreError, did_you_mean
from nacre.models.foreign.adapter import Adapter
from nacre.models.kinds.base import ForeignConfig, Kind, adapt, num_outputs
from nacre.utils.packages import need


class TorchvisionConfig(ForeignConfig):
    """A network of torchvision."""

    kind: Literal["torchvision"] = Field(default="torchvision", description="of torchvision")
    name: str = Field(
        default="deeplabv3_resnet50", description="torchvision's name of the segmentation network"
    )
    weights: Literal["none", "imagenet"] = Field(
        default="none", description="`none` (random), or torchvision's ImageNet weights"
    )


def build(
    config: TorchvisionConfig, classes: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Make a network of torchvision."""
    need("torchvision", "torchvision")
    models = need("torchvision.models", "torchvision")
    known = models.list_models(models.segmentation)
    if config.name not in known:
        hint = did_you_mean(config.name, known)
        raise NacreError(
            f"model.name={config.name!r}: torchvision has no such segmentation network{hint}; "
            f"known: {', '.join(known)}"
        )
    weights = "IMAGENET1K_V1" if load and config.weights == "imagenet" else None
    try:
        model: nn.Module = models.get_model(
            config.name,
            weights=None,
            weights_backbone=weights,
            num_classes=num_outputs(config, classes),
            **config.options,
        )
    except (OSError, TypeError, ValueError) as error:
        raise NacreError(
            f"torchvision cannot make {config.name}: {' '.join(str(error).split())[:300]}"
        ) from error
    again = config.model_copy(update={"weights": "none"})
    return adapt(model, again, classes)


KIND = Kind(TorchvisionConfig, build, "torchvision's deeplabv3, fcn and lraspp")
