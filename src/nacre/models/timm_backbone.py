"""Backbones of timm under our decoders: model.backbone=timm/convnext_tiny.

Their norms stay their own; `model.norm` is the decoder's alone.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from nacre.errors import NacreError, did_you_mean, shown
from nacre.models.backbone import Backbone
from nacre.models.backbones import TIMM
from nacre.models.resnet import IMAGENET_MEAN, IMAGENET_STD
from nacre.models.weights import find_weights
from nacre.utils.system import import_extra


class TimmBackbone(Backbone):
    """The last feature map of ``timm.create_model(…, features_only=True)``, and all as stages."""

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
        found = zip(self.model(x), self.stages, strict=True)
        # Some, such as Swin, have their channels last
        maps = tuple(
            one if one.shape[1] == width else one.permute(0, 3, 1, 2) for one, (width, _) in found
        )
        return maps[-1], maps


def make_backbone(backbone: str, output_stride: int | None, weights: str) -> TimmBackbone:
    """Make a backbone of timm, whose name stands after ``timm/``."""
    timm, name = import_extra("timm", "timm"), backbone.removeprefix(TIMM)
    check_name(timm, name)
    options: dict[str, Any] = {}
    if output_stride is not None:
        options["output_stride"] = output_stride
    if weights != "none":
        path = find_weights(backbone, weights)
        options |= {"pretrained": True, "pretrained_cfg_overlay": {"file": str(path)}}
    try:
        model = timm.create_model(name, features_only=True, **options)
    except Exception as error:  # whatever timm says to a stride or weights it does not take
        reason = " ".join(str(error).split())[:300]
        raise NacreError(f"model.backbone={backbone!r}: timm says {reason}") from error
    about = getattr(model, "pretrained_cfg", None) or {}
    return TimmBackbone(model, about.get("mean", IMAGENET_MEAN), about.get("std", IMAGENET_STD))


def check_name(timm: Any, name: str) -> None:
    """Refuse what is not the name of a network of timm, with or without a tag of its weights.

    timm itself takes more for a name: a folder, a repository of the hub.
    """
    if not re.fullmatch(r"\w+(\.\w+)?", name) or not timm.is_model(name.partition(".")[0]):
        hint = did_you_mean(name, timm.list_models())
        raise NacreError(f"timm has no network {shown(name)}{hint}")
