"""The base class of backbones, and timm's."""

from __future__ import annotations

import math
import re
from abc import abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.config import TIMM
from nacre.utils.system import import_extra

Color = tuple[float, float, float]

IMAGENET_MEAN = (0.485, 0.456, 0.406)
IMAGENET_STD = (0.229, 0.224, 0.225)


class Backbone(nn.Module):
    """A module from normalized pixels N,3,H,W to features N,channels,H/stride,W/stride.

    Attributes:
        channels: channels of the features.
        stride: input pixels per feature; the size of the features is rounded up.
        mean: RGB mean, in 0..1, that its weights expect to be subtracted.
        std: RGB standard deviation, in 0..1, by which its weights expect pixels to be divided.
        stages: channels and stride of each output of `forward_stages`; empty if decoders cannot
            read them.
        atrous_rates: rates of the decoder, if they are not the default of its stride.
    """

    channels: int
    stride: int
    mean: Color
    std: Color
    stages: tuple[tuple[int, int], ...] = ()
    atrous_rates: tuple[int, int, int] | None = None

    @abstractmethod
    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and those of each stage before its last activation."""


def initialize(backbone: nn.Module) -> None:
    """Draw the weights of all convolutions such that the variance stays about the same."""
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = module.out_channels // module.groups * math.prod(module.kernel_size)
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))


class TimmBackbone(Backbone):
    """A backbone of timm: all feature maps as stages, the last one as features.

    It keeps its own norms; `model.norm` is only for the decoder.
    """

    def __init__(self, model: nn.Module, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.model = model
        info: Any = model.feature_info
        self.stages = tuple(zip(info.channels(), info.reduction(), strict=True))
        self.channels, self.stride = self.stages[-1]
        self.mean, self.std = (mean[0], mean[1], mean[2]), (std[0], std[1], std[2])

    def forward(self, x: Tensor) -> Tensor:
        """Return the features of normalized pixels."""
        return self.forward_stages(x)[0]

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and those of each stage."""
        maps = []
        for features, (channels, _) in zip(self.model(x), self.stages, strict=True):
            # Some networks, such as Swin, have their channels last.
            is_first = features.shape[1] == channels
            maps.append(features if is_first else features.permute(0, 3, 1, 2))
        return maps[-1], tuple(maps)


def make_timm_backbone(
    backbone: str, output_stride: int | None, weights: Path | None
) -> TimmBackbone:
    """Make the backbone ``timm/NAME``, with the weights of a file if there is one."""
    timm, name = import_extra("timm", "timm"), backbone.removeprefix(TIMM)
    check_timm_name(timm, name)
    options: dict[str, Any] = {}
    if output_stride is not None:
        options["output_stride"] = output_stride
    if weights is not None:
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(weights)}}
    try:
        model = timm.create_model(name, features_only=True, **options)
    except Exception as error:  # a stride or weights that timm does not accept
        reason = " ".join(str(error).split())[:300]
        raise NacreError(f"model.backbone={backbone!r}: timm says {reason}") from error
    config = getattr(model, "pretrained_cfg", None) or {}
    return TimmBackbone(model, config.get("mean", IMAGENET_MEAN), config.get("std", IMAGENET_STD))


def check_timm_name(timm: Any, name: str) -> None:
    """Refuse anything but a name of a network of timm, with or without a tag of its weights.

    timm itself also accepts a folder or a repository of the hub as a name.
    """
    if not re.fullmatch(r"\w+(\.\w+)?", name) or not timm.is_model(name.partition(".")[0]):
        hint = did_you_mean(name, timm.list_models())
        raise NacreError(f"timm has no network {shown(name)}{hint}")
