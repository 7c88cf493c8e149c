"""Networks of torchvision that segment.

model: {kind: torchvision, name: lraspp_mobilenet_v3_large, weights: imagenet}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic import Field
from torch import nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.foreign.adapter import Adapter
from nacre.models.kinds.base import ForeignConfig, Kind, adapt, num_outputs
from nacre.utils.system import import_extra


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
    config: TorchvisionConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Make a network of torchvision."""
    weights = "IMAGENET1K_V1" if load and config.weights == "imagenet" else None
    model = make(config, num_outputs(config, classes_per_step), weights)
    again = config.model_copy(update={"weights": "none"})
    return adapt(model, again, classes_per_step)


def make(
    config: TorchvisionConfig, num_classes: int, backbone_weights: str | None = None
) -> nn.Module:
    """Make torchvision's module."""
    import_extra("torchvision", "torchvision")
    models = import_extra("torchvision.models", "torchvision")
    _check_name(config.name, models.list_models(models.segmentation))
    try:
        model: nn.Module = models.get_model(
            config.name, weights=None, weights_backbone=backbone_weights, num_classes=num_classes
        )
    except Exception as error:  # such as weights that cannot be had
        raise NacreError(
            f"torchvision cannot make {config.name}: {' '.join(str(error).split())[:300]}"
        ) from error
    return model


def _check_name(name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise NacreError(
            f"model.name={shown(name)}: torchvision has no such segmentation network"
            f"{did_you_mean(name, known)}; known: {', '.join(known)}"
        )


KIND = Kind(TorchvisionConfig, build, "torchvision's deeplabv3, fcn and lraspp", make)
