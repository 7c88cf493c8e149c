"""Augmentation: what chance changes of a crop, one function for each operation.

`Augment` says which operations there are and how strong. They come in one order, after the crop
has been drawn (`nacre.data.transforms`): flip, rotate90, color_jitter, gray, blur. One that is off
draws no number, so that it changes nothing for the others. What lies beside the image in a crop is
changed with it.
"""

import math

import numpy as np
import numpy.typing as npt
from pydantic import Field

from nacre.data.image_io import Mask
from nacre.utils.config import Config

Pixels = npt.NDArray[np.uint8]
"""An image (3, H, W)."""

_LUMA = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]
"""How bright red, green and blue look."""


class Augment(Config):
    """The operations of the augmentation; 0 switches one off."""

    flip: float = Field(
        0.5, ge=0, le=1, description="how often a crop is mirrored, left and right exchanged"
    )
    rotate90: float = Field(
        0.0, ge=0, le=1, description="how often a crop is turned by 90, 180 or 270 degrees"
    )
    color_jitter: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="greatest change of brightness, contrast and saturation: 0.3 is 0.7 to 1.3 "
        "times, drawn for each crop",
    )
    gray: float = Field(0.0, ge=0, le=1, description="how often a crop loses its colors")
    blur: float = Field(
        0.0,
        ge=0,
        le=16,
        description="greatest standard deviation of a Gaussian blur in pixels, drawn for each crop",
    )

    def draw_flip(self, rng: np.random.Generator) -> bool:
        """Draw whether a crop is mirrored, which is done where it is scaled."""
        return rng.random() < self.flip

    def apply(self, pixels: Pixels, labels: Mask, rng: np.random.Generator) -> tuple[Pixels, Mask]:
        """Change a crop by all operations but the flip.

        Args:
            pixels: The crop, (3, H, H).
            labels: Its labels, (H, H).
            rng: The only source of chance.
        """
        if self.rotate90 and rng.random() < self.rotate90:
            pixels, labels = rotate90(pixels, labels, int(rng.integers(1, 4)))
        if self.color_jitter:
            low, high = 1 - self.color_jitter, 1 + self.color_jitter
            brightness, contrast, saturation = rng.uniform(low, high, 3).tolist()
            pixels = jitter_colors(pixels, brightness, contrast, saturation)
        if self.gray and rng.random() < self.gray:
            pixels = jitter_colors(pixels, 1, 1, 0)
        if self.blur:
            pixels = blur(pixels, rng.uniform(0, self.blur))
        return pixels, labels


def rotate90(pixels: Pixels, labels: Mask, turns: int) -> tuple[Pixels, Mask]:
    """Turn a square image and its mask to the left by so many right angles."""
    turned = np.rot90(pixels, turns, axes=(1, 2)), np.rot90(labels, turns)
    return np.ascontiguousarray(turned[0]), np.ascontiguousarray(turned[1])


def jitter_colors(pixels: Pixels, brightness: float, contrast: float, saturation: float) -> Pixels:
    """Multiply an image's brightness, contrast and saturation by factors; 1 changes nothing."""
    x = pixels.astype(np.float32) * np.float32(brightness)
    mean = (x * _LUMA).sum(0).mean()
    x = mean + (x - mean) * np.float32(contrast)
    gray = (x * _LUMA).sum(0)
    x = gray + (x - gray) * np.float32(saturation)
    return x.round().clip(0, 255).astype(np.uint8)


def blur(pixels: Pixels, sigma: float) -> Pixels:
    """Blur an image by a Gaussian with a standard deviation in pixels; its edge is continued."""
    import torch
    import torch.nn.functional as functional

    radius = math.ceil(3 * sigma)
    if not radius:
        return pixels
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (offsets / sigma).square())
    kernel = (kernel / kernel.sum()).view(1, 1, -1, 1)
    x = torch.from_numpy(pixels).float().unsqueeze(1)
    x = functional.pad(x, (radius,) * 4, mode="replicate")
    x = functional.conv2d(functional.conv2d(x, kernel), kernel.transpose(2, 3))
    found: Pixels = x.squeeze(1).round().clamp(0, 255).byte().numpy()
    return found
