"""Backbones of timm under our head.

model: {kind: timm, name: convnext_tiny, weights: imagenet, decoder_channels: 128}
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal

from pydantic import Field
from torch import Tensor, nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.backbone import Backbone
from nacre.models.config import HeadConfig
from nacre.models.deeplab import DeepLab
from nacre.models.hub import hub_file
from nacre.models.kinds.base import Kind
from nacre.models.kinds.deeplab import on_backbone
from nacre.models.pretrained import find_weights
from nacre.utils.system import import_extra


class TimmConfig(HeadConfig):
    """A backbone of timm under our head; `norm` is the head's alone."""

    kind: Literal["timm"] = Field(default="timm", description="a backbone of timm under our head")
    name: str = Field(description="timm's name of the backbone, such as convnext_tiny")
    output_stride: Literal[8, 16, 32] | None = Field(
        default=None, description="input pixels per feature, where it can be chosen"
    )
    weights: str = Field(
        default="none",
        description="`none` (random), `imagenet` (timm's own, from the Hugging Face hub), a "
        "repository of the hub, or the path of a file",
    )


class TimmBackbone(Backbone):
    """The last feature map of a timm network, and those before as stages.

    Args:
        model: of ``timm.create_model(…, features_only=True)``.
        mean: of the pixels that its weights expect.
        std: of the pixels that its weights expect.
    """

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        info: Any = model.feature_info
        self.widths: list[int] = list(info.channels())
        self.channels, self.stride = self.widths[-1], int(info.reduction()[-1])
        self.mean, self.std = (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of normalised pixels."""
        return self.forward_stages(x)[0]

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and those of each stage."""
        found = zip(self.model(x), self.widths, strict=True)
        # Some, such as Swin, have their channels last
        maps = tuple(
            one if one.shape[1] == width else one.permute(0, 3, 1, 2) for one, width in found
        )
        return maps[-1], maps


def build(
    config: TimmConfig, classes_per_step: Sequence[int], crop: int | None, load: bool
) -> DeepLab:
    """Make our network on a backbone of timm."""
    timm = import_extra("timm", "timm")
    check_name(timm, config.name)
    options: dict[str, Any] = {}
    if config.output_stride is not None:
        options["output_stride"] = config.output_stride
    if load and config.weights != "none":
        path = _weight_file(timm, config)
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(path)}}
    try:
        model = timm.create_model(config.name, features_only=True, **options)
    except Exception as error:  # whatever timm says to a stride or weights it does not take
        reason = " ".join(str(error).split())[:300]
        raise NacreError(f"model.name={config.name!r}: timm says {reason}") from error
    about = getattr(model, "pretrained_cfg", None) or {}
    mean = about.get("mean", (0.485, 0.456, 0.406))
    backbone = TimmBackbone(model, mean, about.get("std", (0.229, 0.224, 0.225)))
    network = on_backbone(backbone, config, classes_per_step, crop)
    network.uses_all_parameters = False
    return network


def check_name(timm: Any, name: str) -> None:
    """Refuse what is not the name of a network of timm, with or without a tag of its weights.

    timm itself takes more for a name: a folder, a repository of the hub.
    """
    if not re.fullmatch(r"\w+(\.\w+)?", name) or not timm.is_model(name.partition(".")[0]):
        hint = did_you_mean(name, timm.list_models())
        raise NacreError(f"timm has no network {shown(name)}{hint}")


def _weight_file(timm: Any, config: TimmConfig) -> Any:
    if config.weights != "imagenet":
        return find_weights(config.name, config.weights)
    about = timm.get_pretrained_cfg(config.name)
    if about is None or not about.hf_hub_id:
        raise NacreError(f"timm publishes no weights of {config.name!r}: give a file, or 'none'")
    return hub_file(about.hf_hub_id, "model.safetensors")


KIND = Kind(TimmConfig, build, "a backbone of timm under our head")
