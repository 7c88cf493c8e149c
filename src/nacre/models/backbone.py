"""What all backbones have in common."""

from __future__ import annotations

from torch import nn

Colour = tuple[float, float, float]


class Backbone(nn.Module):
    """A module from normalised pixels N,3,H,W to features N,channels,H/stride,W/stride.

    Attributes:
        channels: of the features.
        stride: input pixels a feature; sizes that it does not divide are rounded up.
        mean: of the pixels that its weights expect, RGB in 0..1.
        std: of the pixels that its weights expect, RGB in 0..1.
    """

    channels: int
    stride: int
    mean: Colour
    std: Colour
