"""Small data sets in the layout of real ones."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from nacre.data.index import Pair

PALETTE = [value for label in range(256) for value in (label, 255 - label, label * 7 % 256)]


def blocks(height: int, width: int, labels: list[int]) -> NDArray[np.uint8]:
    """Return a mask of vertical bars, one per label."""
    return np.array(labels, np.uint8)[np.arange(width) * len(labels) // width][None].repeat(
        height, axis=0
    )


def turned(value: int) -> Image.Exif:
    """Return EXIF data with an orientation."""
    tags = Image.Exif()
    tags[0x0112] = value
    return tags


def save_mask(path: Path, mask: NDArray[np.integer], mode: str = "P") -> Path:
    """Write a mask as a palette (P), gray (L) or 16-bit (I;16) PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    image = Image.fromarray(mask.astype(np.uint16 if mode == "I;16" else np.uint8))
    if mode == "P":
        image.putpalette(PALETTE)
    image.save(path)
    return path


def save_image(
    path: Path, height: int = 12, width: int = 16, seed: int = 0, **options: object
) -> Path:
    """Write an image of smooth noise."""
    path.parent.mkdir(parents=True, exist_ok=True)
    noise = np.random.default_rng(seed).integers(0, 256, (4, 4, 3), np.uint8)
    Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).save(path, **options)
    return path


def make_pairs(root: Path, masks: dict[str, NDArray[np.integer]], mode: str = "P") -> list[Pair]:
    """Write images and masks into ``images/`` and ``masks/``."""
    return [
        Pair(
            name,
            save_image(root / "images" / f"{name}.jpg", *mask.shape, seed=i),
            save_mask(root / "masks" / f"{name}.png", mask, mode),
        )
        for i, (name, mask) in enumerate(masks.items())
    ]
