"""Predictions of a model, and the forms in which an image may come."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from nacre.data.image_io import load as decode
from nacre.data.image_io import open_image, upright_rgb
from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import is_wide
from nacre.predict.writers import (
    Legend,
    count_classes,
    overlay,
    palette_image,
    share_of_classes,
)

AnyImage = str | Path | Image.Image | npt.NDArray[np.uint8 | np.uint16] | Tensor
"""A file, a Pillow image, an array of height x width (x channels) or a tensor of channels x height
x width: gray or RGB, with or without alpha, of 8 or 16 bits."""


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for an image.

    Attributes:
        mask: Channel of each pixel, of the image's size.
        classes: Class name by channel; channel 0 is the background.
        colors: RGB by channel.
        scores: Channels x height x width: how probable each class is at each pixel, where
            `Model.predict` was asked for it.
    """

    mask: npt.NDArray[Any]
    classes: tuple[str, ...]
    colors: tuple[tuple[int, int, int], ...]
    scores: npt.NDArray[np.float32] | None = None

    @property
    def names(self) -> npt.NDArray[np.str_]:
        """The mask as class names."""
        return np.array(self.classes)[self.mask]

    def shares(self) -> dict[str, float]:
        """Return which share of the image each class covers, largest first."""
        return share_of_classes(count_classes(self.mask, len(self.classes)), self.classes)

    def image(self) -> Image.Image:
        """Return the mask as a palette image: label values are channels."""
        return palette_image(self.mask, Legend(self.classes, self.colors))

    def over(self, image: AnyImage, strength: float = 0.6) -> Image.Image:
        """Return the image with the classes laid over it in color."""
        pixels = np.asarray(to_rgb(image))
        return overlay(pixels, self.mask, Legend(self.classes, self.colors), strength)


@torch.inference_mode()
def predict_image(
    predictor: Predictor, image: AnyImage, legend: Legend, scores: bool = False
) -> Prediction:
    """Return what a network sees in an image, with the scores of all classes if asked for."""
    device = next(predictor.network.parameters()).device
    pixels = torch.from_numpy(np.array(to_rgb(image))).permute(2, 0, 1)[None].to(device)
    dtype = np.uint16 if is_wide(len(legend.classes)) else np.uint8
    if not scores:
        mask = predictor.classes(pixels)[0].cpu().numpy().astype(dtype)
        return Prediction(mask, legend.classes, legend.colors)
    found = predictor.probabilities(pixels)[0]
    mask = found.argmax(0).cpu().numpy().astype(dtype)
    return Prediction(mask, legend.classes, legend.colors, found.float().cpu().numpy())


def to_rgb(image: AnyImage) -> Image.Image:
    """Return an image as upright RGB, whatever form it has."""
    if isinstance(image, str | Path):
        return decode(open_image(Path(image)))
    if isinstance(image, Tensor):
        image = _from_tensor(image)
    return upright_rgb(_from_array(image) if isinstance(image, np.ndarray) else image)


def _from_tensor(image: Tensor) -> npt.NDArray[Any]:
    if image.ndim != 3 or image.dtype != torch.uint8 or image.shape[0] > 4:
        raise NacreError(
            f"a tensor must be uint8 of 3 x height x width, not {_dtype(image.dtype)} of "
            f"{_sizes(image.shape)}; give several images as a list"
        )
    return image.detach().permute(1, 2, 0).cpu().numpy()


def _from_array(array: npt.NDArray[np.uint8 | np.uint16]) -> Image.Image:
    """Return an array as an image: gray, gray and alpha, RGB or RGBA."""
    channels = array.shape[2] if array.ndim == 3 else 1
    if array.dtype not in (np.uint8, np.uint16) or array.ndim not in (2, 3) or channels > 4:
        raise NacreError(
            f"an array must be uint8 or uint16 of height x width x 3, not {array.dtype} of "
            f"{_sizes(array.shape)}"
        )
    if not array.size:
        raise NacreError(f"an array of {_sizes(array.shape)} holds no pixel")
    values = array if array.dtype == np.uint8 else (array >> 8).astype(np.uint8)
    # Alpha, the second or fourth channel, is left out.
    values = values[..., :3] if channels > 2 else values.reshape(*array.shape[:2], -1)[..., 0]
    return Image.fromarray(np.ascontiguousarray(values))


def _dtype(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))
