"""Predictions: from an image in any form to a class map, and the forms of the class map."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from PIL import Image
from torch import Tensor

from nacre.data.image_io import Pixels, open_image, upright_rgb
from nacre.data.image_io import load as decode
from nacre.errors import NacreError, shown
from nacre.evaluation.predictor import Predictor
from nacre.labels.channels import Channels, Color, is_wide
from nacre.predict.polygons import ClassMap, leave_out_small, simplify, trace_rings
from nacre.utils.io import save

AnyImage = str | Path | Image.Image | npt.NDArray[np.uint8 | np.uint16] | Tensor
"""A file, a Pillow image, an array of height x width (x channels) or a tensor of channels x height
x width: gray or RGB, with or without alpha, of 8 or 16 bits."""

# Limits of the memory for large images
_PIXELS_PER_COUNT = 1 << 24
_ROWS_PER_STRIP = 256


@dataclass(frozen=True)
class Prediction:
    """A model's prediction for an image.

    Attributes:
        mask: Channel of each pixel, with the size of the image.
        classes: Class name by channel; channel 0 is the background.
        colors: RGB by channel.
        scores: Probability of each class at each pixel (channels x height x width), if
            `Model.predict` was called with ``scores=True``.
    """

    mask: npt.NDArray[Any]
    classes: tuple[str, ...]
    colors: tuple[tuple[int, int, int], ...]
    scores: npt.NDArray[np.float32] | None = None

    @property
    def names(self) -> npt.NDArray[np.str_]:
        """The mask as class names."""
        return np.array(self.classes)[self.mask]

    def class_fractions(self) -> dict[str, float]:
        """Return the fraction of the image that each class covers, largest first."""
        return class_fractions(count_classes(self.mask, len(self.classes)), self.classes)

    def image(self) -> Image.Image:
        """Return the mask as a palette image: label values are channels."""
        return palette_image(self.mask, self.colors)

    def overlay(self, image: AnyImage, alpha: float = 0.6) -> Image.Image:
        """Return the image with the colors of the classes over it."""
        pixels = np.asarray(to_rgb(image))
        if pixels.shape[:2] != self.mask.shape:
            raise NacreError(
                f"the image has {pixels.shape[1]} x {pixels.shape[0]} pixels, the prediction "
                f"{self.mask.shape[1]} x {self.mask.shape[0]}; give the image that was predicted"
            )
        return overlay(pixels, self.mask, self.colors, alpha)


@torch.inference_mode()
def predict_image(
    predictor: Predictor, image: AnyImage, channels: Channels, scores: bool = False
) -> Prediction:
    """Predict an image; add the scores of all classes on request."""
    device = next(predictor.network.parameters()).device
    pixels = torch.from_numpy(np.array(to_rgb(image))).permute(2, 0, 1)[None].to(device)
    dtype = np.uint16 if is_wide(len(channels)) else np.uint8
    if not scores:
        mask = predictor.classes(pixels)[0].cpu().numpy().astype(dtype)
        return Prediction(mask, channels.names, channels.colors)
    probabilities = predictor.probabilities(pixels)[0]
    mask = probabilities.argmax(0).cpu().numpy().astype(dtype)
    return Prediction(mask, channels.names, channels.colors, probabilities.float().cpu().numpy())


def to_rgb(image: AnyImage) -> Image.Image:
    """Return an image in any form as upright RGB."""
    if isinstance(image, str | Path):
        return decode(open_image(Path(image)))
    if isinstance(image, Tensor):
        image = _from_tensor(image)
    if isinstance(image, np.ndarray):
        image = _from_array(image)
    if not isinstance(image, Image.Image):
        raise NacreError(
            f"an image must be a file, a Pillow image, an array or a tensor, not {shown(image)}"
        )
    return upright_rgb(image)


def _from_tensor(image: Tensor) -> npt.NDArray[Any]:
    if image.ndim != 3 or image.dtype != torch.uint8 or image.shape[0] > 4:
        dtype = str(image.dtype).removeprefix("torch.")
        raise NacreError(
            f"a tensor must be uint8 of 3 x height x width, not {dtype} of {_sizes(image.shape)}; "
            "give several images as a list"
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
        raise NacreError(f"an array of {_sizes(array.shape)} has no pixels")
    values = array if array.dtype == np.uint8 else (array >> 8).astype(np.uint8)
    # Alpha, the second or fourth channel, is dropped.
    values = values[..., :3] if channels > 2 else values.reshape(*array.shape[:2], -1)[..., 0]
    return Image.fromarray(np.ascontiguousarray(values))


def _sizes(shape: Sequence[int]) -> str:
    return " x ".join(map(str, shape))


def palette_image(classes: ClassMap, colors: Sequence[Color]) -> Image.Image:
    """Return a class map as an image whose values are channels, with a palette up to 8 bits."""
    image = Image.fromarray(classes)
    if classes.dtype != np.uint16:
        image.putpalette([value for color in colors for value in color])
    return image


def write_mask(path: Path, classes: ClassMap, colors: Sequence[Color]) -> None:
    """Write a class map as a PNG whose values are channels."""
    image = palette_image(classes, colors)
    save(path, lambda temporary: image.save(temporary, "PNG"))


def overlay(
    pixels: Pixels, classes: ClassMap, colors: Sequence[Color], alpha: float = 0.6
) -> Image.Image:
    """Return an image with the colors of its classes over it, except the background."""
    paint = np.array(colors, np.float32) * alpha
    mixed = np.empty_like(pixels)
    for top in range(0, len(pixels), _ROWS_PER_STRIP):
        rows = slice(top, top + _ROWS_PER_STRIP)
        strip, channels = pixels[rows], classes[rows]
        mixture = strip * np.float32(1 - alpha) + paint[channels]
        mixed[rows] = np.where(channels[..., None] > 0, mixture.round().astype(np.uint8), strip)
    return Image.fromarray(mixed)


def write_overlay(path: Path, pixels: Pixels, classes: ClassMap, colors: Sequence[Color]) -> None:
    """Write an image with its classes over it as a JPEG."""
    image = overlay(pixels, classes, colors)
    save(path, lambda file: image.save(file, "JPEG", quality=90))


def labelme(
    classes: ClassMap, names: Sequence[str], image: str, tolerance: float, smallest: float = 0.0
) -> dict[str, Any]:
    """Return a class map as the JSON of LabelMe, larger polygons first.

    Args:
        classes: Channel of each pixel.
        names: Class name by channel.
        image: Path of the image relative to the JSON.
        tolerance: Largest distance in pixels of a polygon from the edge of its region.
        smallest: Area in pixels below which regions are left out (`leave_out_small`).
    """
    shapes = [
        {
            "label": names[ring.channel] if ring.channel else "_background_",
            "points": simplify(ring.points, tolerance).tolist(),
            "group_id": None,
            "shape_type": "polygon",
            "flags": {},
        }
        for ring in leave_out_small(trace_rings(classes), smallest)
    ]
    # Background below all other polygons needs none.
    while shapes and shapes[0]["label"] == "_background_":
        shapes.pop(0)
    height, width = classes.shape
    return {
        "version": "5.5.0",
        "flags": {},
        "shapes": shapes,
        "imagePath": image,
        "imageData": None,
        "imageHeight": height,
        "imageWidth": width,
    }


def count_classes(classes: ClassMap, channels: int) -> npt.NDArray[np.int64]:
    """Return the number of pixels of each channel; count a large map in parts."""
    counts = np.zeros(channels, np.int64)
    step = max(1, _PIXELS_PER_COUNT // classes.shape[1])
    for top in range(0, len(classes), step):
        counts += np.bincount(classes[top : top + step].ravel(), minlength=channels)
    return counts


def class_fractions(counts: npt.NDArray[np.int64], names: Sequence[str]) -> dict[str, float]:
    """Return the fraction of the pixels that each class covers, largest first."""
    total = max(1, int(counts.sum()))
    order = np.argsort(-counts, kind="stable")
    return {names[i]: int(counts[i]) / total for i in order if counts[i]}
