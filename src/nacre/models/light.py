"""A light decoder for small machines: several stages of the backbone, at half its output stride.

    x = act_norm(sum of 1x1(late stages) + 1x1(pool(last stage)))
    x = x + act_norm(1x1(concat of depthwise 3x3 convolutions of x, dilated by 1, 2, 3))
    x = act_norm(up(x) + 1x1(early stage))
    out = x + act_norm(1x1(depthwise 3x3(x)))

The late stages have the backbone's stride; the early one, which knows where edges are, is the last
that has a smaller one. `pool` is that of `nacre.models.head`.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.abn import ABN, NormFactory
from nacre.models.backbone import Backbone
from nacre.models.head import WindowPool, initialize_head

LATE = 3
"""Late stages that are read, at most."""
DILATIONS = (1, 2, 3)


class LightDecoder(nn.Module):
    """From stages of a backbone to features at the stride of an early one.

    Args:
        backbone: whose stages are read.
        width: channels of the output.
        crop: side of the training crops; None always pools over the whole image.
        norm: makes the normalization layers.

    Attributes:
        reads: which stages `forward` takes: the early one, then the late ones.
        stride: input pixels per feature of the output.
    """

    def __init__(
        self, backbone: Backbone, *, width: int, crop: int | None, norm: NormFactory = ABN
    ) -> None:
        super().__init__()
        strides = [stride for _, stride in backbone.stages]
        early = [i for i, stride in enumerate(strides) if stride < backbone.stride]
        late = [i for i, stride in enumerate(strides) if stride == backbone.stride][-LATE:]
        if not early or not late:
            raise NacreError(
                f"model.decoder=light needs stages of two strides, and {type(backbone).__name__} "
                f"at output stride {backbone.stride} has not: use model.decoder=aspp"
            )
        self.reads = (early[-1], *late)
        self.stride = strides[early[-1]]
        self.channels = width
        fine, *coarse = (backbone.stages[i][0] for i in self.reads)
        self.laterals = nn.ModuleList(nn.Conv2d(one, width, 1, bias=False) for one in coarse)
        self.pool = WindowPool(None if crop is None else -(-crop // backbone.stride))
        self.pooled = nn.Conv2d(coarse[-1], width, 1, bias=False)
        self.lateral_norm = norm(width)
        self.dilated = nn.ModuleList(_depthwise(width, dilation) for dilation in DILATIONS)
        self.reduce = nn.Conv2d(len(DILATIONS) * width, width, 1, bias=False)
        self.reduce_norm = norm(width)
        self.early = nn.Conv2d(fine, width, 1, bias=False)
        self.early_norm = norm(width)
        self.refine = nn.Sequential(_depthwise(width, 1), nn.Conv2d(width, width, 1, bias=False))
        self.norm = norm(width)
        initialize_head(self)

    def forward(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Return features of the early stage's size."""
        early, *late = stages
        x = self.pooled(self.pool(late[-1]))
        for lateral, stage in zip(self.laterals, late, strict=True):
            x = x + lateral(stage)
        x = self.lateral_norm(x)
        x = x + self.reduce_norm(self.reduce(torch.cat([one(x) for one in self.dilated], dim=1)))
        size = (early.shape[-2], early.shape[-1])
        x = F.interpolate(x, size, mode="bilinear", align_corners=False)
        x = self.early_norm(x + self.early(early))
        out: Tensor = x + self.norm(self.refine(x))
        return out


def _depthwise(width: int, dilation: int) -> nn.Conv2d:
    return nn.Conv2d(width, width, 3, padding=dilation, dilation=dilation, groups=width, bias=False)
