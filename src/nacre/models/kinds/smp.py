"""Networks of segmentation_models.pytorch.

model: {kind: smp, architecture: Unet, encoder: resnet18, weights: imagenet}
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.foreign.adapter import Adapter
from nacre.models.hub import hub_file
from nacre.models.kinds.base import ForeignConfig, Kind, adapt, num_outputs
from nacre.models.kinds.timm import check_name
from nacre.utils.system import import_extra

_DIVISOR = 32


class SmpConfig(ForeignConfig):
    """A network of segmentation_models.pytorch."""

    kind: Literal["smp"] = Field(default="smp", description="of segmentation_models.pytorch")
    architecture: str = Field(default="Unet", description="such as Unet, FPN, DeepLabV3Plus")
    encoder: str = Field(default="resnet34", description="smp's name of the encoder")
    weights: str = Field(
        default="none", description="`none` (random), or smp's name of weights, such as imagenet"
    )


def build(
    config: SmpConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> Adapter:
    """Make a network of smp."""
    wanted = config.weights if load and config.weights != "none" else None
    of_timm = config.encoder.startswith(("tu-", "timm-"))
    model = make(config, num_outputs(config, classes_per_step), wanted if of_timm else None)
    if wanted and not of_timm:
        smp = import_extra("segmentation_models_pytorch", "smp")
        _load_encoder(smp.encoders.encoders[config.encoder], model, config)
    again = config.model_copy(update={"weights": "none"})
    return adapt(model, again, classes_per_step, divisor=_DIVISOR)


def make(config: SmpConfig, num_classes: int, encoder_weights: str | None = None) -> nn.Module:
    """Make smp's module."""
    smp = import_extra("segmentation_models_pytorch", "smp")
    if config.encoder.startswith("tu-"):
        check_name(import_extra("timm", "timm"), config.encoder.removeprefix("tu-"))
    elif config.encoder not in smp.encoders.encoders:
        hint = did_you_mean(config.encoder, smp.encoders.encoders)
        raise NacreError(f"smp has no encoder {shown(config.encoder)}{hint}")
    try:
        model: nn.Module = smp.create_model(
            config.architecture,
            encoder_name=config.encoder,
            encoder_weights=encoder_weights,
            classes=num_classes,
        )
    except Exception as error:  # wrong names, weights that cannot be had
        reason = " ".join(str(error).split())[:300]
        raise NacreError(
            f"smp cannot make {shown(config.architecture)} with the encoder {config.encoder!r} and "
            f"weights {config.weights!r}: {reason}"
        ) from error
    return model


def _load_encoder(about: dict[str, Any], model: Any, config: SmpConfig) -> None:
    """Load what smp publishes of an encoder, from the cache or the hub, checked.

    Raises:
        NacreError: there are no such weights, or they cannot be had.
    """
    known = about["pretrained_settings"]
    if config.weights not in known:
        raise NacreError(
            f"model.weights={config.weights!r}: smp has no such weights of {config.encoder!r}; it "
            f"has {', '.join(known)}"
        )
    where = known[config.weights]
    path = hub_file(where["repo_id"], "model.safetensors", revision=where["revision"])
    try:
        model.encoder.load_state_dict(load_file(path))
    except (RuntimeError, SafetensorError) as error:
        reason = " ".join(str(error).split())[:200]
        raise NacreError(f"{path} does not fit the encoder {config.encoder!r}: {reason}") from error


KIND = Kind(SmpConfig, build, "segmentation_models.pytorch: Unet, FPN, DeepLabV3Plus, …", make)
