"""The base class of backbones, the smallest backbone, and timm's."""

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
from nacre.models.norm import ABN, NormFactory
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


class ResidualBlock(nn.Module):
    """A block whose last norm adds the shortcut before it activates."""

    @abstractmethod
    def summands(self, x: Tensor) -> tuple[ABN, Tensor, Tensor]:
        """Return the last norm, its input, and the shortcut."""

    def forward(self, x: Tensor) -> Tensor:
        """Return the activated sum of the last norm's output and the shortcut."""
        norm, y, shortcut = self.summands(x)
        out: Tensor = norm(y, shortcut)
        return out

    def forward_both(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum after and before its activation."""
        norm, y, shortcut = self.summands(x)
        return norm.forward_both(y, shortcut)


def _convolution(
    in_channels: int, out_channels: int, kernel: int = 3, stride: int = 1
) -> nn.Conv2d:
    return nn.Conv2d(in_channels, out_channels, kernel, stride, padding=kernel // 2, bias=False)


class _Block(ResidualBlock):
    """A residual block of two 3x3 convolutions."""

    def __init__(
        self, in_channels: int, out_channels: int, *, stride: int, norm: NormFactory
    ) -> None:
        super().__init__()
        self.first = _convolution(in_channels, out_channels, stride=stride)
        self.first_norm = norm(out_channels)
        self.second = _convolution(out_channels, out_channels)
        self.second_norm = norm(out_channels)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or in_channels != out_channels:
            self.shortcut = nn.Sequential(
                _convolution(in_channels, out_channels, kernel=1, stride=stride),
                norm(out_channels, activation="identity"),
            )

    def summands(self, x: Tensor) -> tuple[ABN, Tensor, Tensor]:
        return self.second_norm, self.second(self.first_norm(self.first(x))), self.shortcut(x)


class Tiny(Backbone):
    """A small backbone for generated scenes, which learns on a CPU in minutes.

    Two strided convolutions and two residual blocks

        y = act(norm(conv(act(norm(conv(x))))) + shortcut(x))

    of which the second halves the size once more, so that the output stride is 8.

    The convolutions keep torch's default weights, which are smaller by sqrt(6) than those of
    `initialize`. Before a normalization the scale of a weight does not change the output but
    divides the gradient, so learning is 6 times as fast.
    """

    stride = 8
    atrous_rates = (1, 2, 4)  # scenes are 64 pixels wide: maps of 8 x 8
    # In generated scenes no color is more frequent than another.
    mean = (0.5, 0.5, 0.5)
    std = (0.25, 0.25, 0.25)

    def __init__(self, *, norm: NormFactory = ABN) -> None:
        super().__init__()
        first, second, third = 16, 48, 96
        self.channels = third
        self.stages = ((second, 4), (third, 8))
        self.stem = nn.Sequential(
            _convolution(3, first, stride=2),
            norm(first),
            _convolution(first, second, stride=2),
            norm(second),
        )
        self.fine = _Block(second, second, stride=1, norm=norm)
        self.coarse = _Block(second, third, stride=2, norm=norm)

    def forward(self, x: Tensor) -> Tensor:
        """Return features at an eighth of the size."""
        y: Tensor = self.coarse(self.fine(self.stem(x)))
        return y

    def forward_stages(self, x: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Return the features, and the sums at the end of the two residual blocks."""
        fine, before_fine = self.fine.forward_both(self.stem(x))
        coarse, before_coarse = self.coarse.forward_both(fine)
        return coarse, (before_fine, before_coarse)


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
