"""A network of one's own for `model.kind=python`: a small FPN on all maps of EfficientNet-Lite0.

nacre run voc-animals-4-2 --root VOC2012 --config examples/fpn.yaml --method graft --out fpn

What nacre asks of it: a function with `num_classes`, scores of the size of the pictures or smaller,
and, for methods that keep the backbone as it is, a module named `encoder` that comes first.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.models.backbones import BACKBONES
from nacre.models.kinds.deeplab import NORMS
from nacre.models.weights import load_backbone


class Encoder(nn.Module):
    """Maps of the backbone, from a quarter of the picture on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = BACKBONES["lite0"].make(16, NORMS["bn"])
        load_backbone(self.body, "lite0", "imagenet")

    def forward(self, images: Tensor) -> list[Tensor]:
        """Return them, the finest first."""
        features, stages = self.body.forward_stages(images)
        return [*stages[1:-1], features]


class Fpn(nn.Module):
    """From the coarsest map to the finest, each is added to the one before."""

    def __init__(self, num_classes: int, width: int) -> None:
        super().__init__()
        self.encoder = Encoder()
        with torch.no_grad():
            maps = self.encoder.eval()(torch.zeros(1, 3, 64, 64))
        self.encoder.train()
        self.side = nn.ModuleList(nn.Conv2d(one.shape[1], width, 1) for one in maps)
        self.mix = nn.Sequential(*_conv_norm_relu(width), *_conv_norm_relu(width))
        self.score = nn.Conv2d(width, num_classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """Return the scores of normalised pictures, at their size."""
        sides = [side(one) for side, one in zip(self.side, self.encoder(images), strict=True)]
        top: Tensor = sides[-1]
        for one in reversed(sides[:-1]):
            top = one + F.interpolate(top, one.shape[-2:], mode="nearest")
        scores = self.score(self.mix(top))
        return F.interpolate(scores, images.shape[-2:], mode="bilinear", align_corners=False)


def _conv_norm_relu(width: int) -> list[nn.Module]:
    return [nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU()]


def make(num_classes: int, width: int = 64) -> nn.Module:
    """Return the network, as nacre asks for it."""
    return Fpn(num_classes, width)
