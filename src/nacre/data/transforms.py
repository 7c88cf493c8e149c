"""Crops, scaling and augmentation: from an image and its mask to arrays of one size.

A training crop is a box of the image, scaled and placed on a canvas. The crop policy
(`images.crop`) decides how the box is drawn:

- ``paper``: an area of 0.5 to 2 times the image's and an aspect ratio of 3/4 to 4/3. After ten
  draws of a box that does not fit, it is the largest box of allowed aspect ratio in the center. The
  box is scaled to the crop whatever its shape.
- ``deeplab``: a crop of the image scaled by a factor s in 0.5..2, padded if the image is smaller;
  this is a box of side crop/s.
- ``plain``: a crop at the image's own scale.

The operations of the augmentation follow, one function each, in the order flip, rotate90,
color_jitter, gray, blur. An operation that is off draws no random number, so that it does not
change the others. Padding is augmented, too.

Images are scaled bilinearly with antialiasing. Masks take the label at the nearest pixel center:
row i of n from h rows is row floor((i + 1/2) h / n), rounded as Pillow does. Since the box is drawn
before the image is decoded, training decodes a JPEG at 1/2, 1/4 or 1/8 if that is enough. Tests
always decode it fully, because results must not depend on a decoder's shortcuts.
"""

import math
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from PIL import Image
from pydantic import Field

from nacre.data.image_io import Mask, Pixels, load
from nacre.errors import NacreError
from nacre.labels.mapping import LabelArray, map_labels
from nacre.utils.config import Config

Sample = tuple[Pixels, Mask]
"""An image (3, H, W) and its labels (H, W)."""

AREA = (0.5, 2.0)
ASPECT = (3 / 4, 4 / 3)
SCALE = (0.5, 2.0)
FILL = (124, 116, 104)
"""Color of the padding: ImageNet's mean, which is 0 after normalization."""

_FILL = np.array(FILL, np.uint8)[:, None, None]
_MAX_DRAWS = 10
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]
"""Weights of red, green and blue in the brightness."""

EvalMode = Literal["crop", "full", "sliding"]
Switch = bool | Literal["auto"]
"""On, off, or decided on held-out images (`nacre.evaluation.choose`)."""


class Augment(Config):
    """The operations of the augmentation; 0 turns one off."""

    flip: float = Field(0.5, ge=0, le=1, description="probability of a horizontal flip")
    rotate90: float = Field(
        0.0, ge=0, le=1, description="probability of a rotation by 90, 180 or 270 degrees"
    )
    color_jitter: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="maximum change of brightness, contrast and saturation: with 0.3, each is "
        "multiplied by a random factor from 0.7 to 1.3",
    )
    gray: float = Field(0.0, ge=0, le=1, description="probability of a conversion to gray")
    blur: float = Field(
        0.0,
        ge=0,
        le=16,
        description="maximum standard deviation of a Gaussian blur in pixels",
    )

    def apply(self, pixels: Pixels, labels: Mask, rng: np.random.Generator) -> Sample:
        """Apply the operations to a square crop and its labels."""
        if self.flip and rng.random() < self.flip:
            pixels, labels = flip(pixels, labels)
        if self.rotate90 and rng.random() < self.rotate90:
            pixels, labels = rotate90(pixels, labels, int(rng.integers(1, 4)))
        if self.color_jitter:
            low, high = 1 - self.color_jitter, 1 + self.color_jitter
            brightness, contrast, saturation = rng.uniform(low, high, 3).tolist()
            pixels = jitter_colors(pixels, brightness, contrast, saturation)
        if self.gray and rng.random() < self.gray:
            pixels = to_gray(pixels)
        if self.blur:
            pixels = blur(pixels, rng.uniform(0, self.blur))
        return pixels, labels


class ImagesConfig(Config):
    """Crops and augmentation in training, and the size of images in testing."""

    crop_size: int = Field(512, ge=8, le=8192, description="side of the square crops in pixels")
    crop: Literal["paper", "deeplab", "plain"] = Field(
        "paper",
        description="how crops are drawn: paper: random area and aspect, as the paper's released "
        "implementation; deeplab: random scale 0.5 to 2, as the paper's text; plain: no scaling",
    )
    augment: Augment = Field(default_factory=Augment)
    views: int | None = Field(
        None,
        ge=1,
        le=10_000,
        description="number of augmented views of an image, which later epochs repeat; by default "
        "every epoch has a new view. With a frozen backbone, the features of each view are cached, "
        "so that later epochs run the decoder only",
    )
    eval_mode: EvalMode = Field(
        "crop",
        description="crop: scale the shorter side to `crop_size`, center-crop (paper); full: the "
        "whole image; sliding: the whole image in overlapping windows of `crop_size`",
    )
    mirror: Switch = Field(
        False,
        description="test with the mean scores of an image and its mirror image; auto: if that "
        "improves the IoU on held-out images",
    )
    edges: Switch = Field(
        False,
        description="test with scores upsampled along the edges of the image; auto: if that "
        "improves the IoU on held-out images",
    )

    def view_of(self, epoch: int) -> int:
        """Return the number of the view in an epoch."""
        return epoch if self.views is None else epoch % self.views

    @property
    def test_window(self) -> int | None:
        """Side of the windows for test images, if they are split into windows."""
        return self.crop_size if self.eval_mode == "sliding" else None

    @property
    def predict_mode(self) -> EvalMode:
        """The `eval_mode` for new images, which keeps the scale of training.

        Only the crop ``paper`` scales images to the crop; the others train at the original scale.
        """
        if self.eval_mode == "crop" and self.crop != "paper":
            return "full"
        return self.eval_mode


class Box(NamedTuple):
    """A rectangle in an image, in pixels."""

    left: int
    top: int
    width: int
    height: int


class Placement(NamedTuple):
    """A box, its size after scaling, and its position on the canvas."""

    box: Box
    width: int
    height: int
    left: int = 0
    top: int = 0


def train_sample(
    image: Image.Image,
    mask: Mask,
    config: ImagesConfig,
    rng: np.random.Generator,
    pad: int,
    lookup: LabelArray | None = None,
) -> Sample:
    """Return a random square crop of an image and its mask, (3,crop,crop) and (crop,crop).

    Args:
        image: The image, decoded or not.
        mask: Its labels.
        config: The crop policy and the augmentation.
        rng: The only source of randomness.
        pad: The label, or the target, of padding.
        lookup: Maps labels to targets.
    """
    width, height = _common_size(image, mask)
    if config.crop == "paper":
        place = Placement(_draw_box(width, height, rng), config.crop_size, config.crop_size)
    else:
        low, high = SCALE if config.crop == "deeplab" else (1.0, 1.0)
        place = _draw_crop(width, height, rng.uniform(low, high), config.crop_size, rng)
    box = _decode(image, place)
    labels = _nearest(mask, place)
    labels = labels if lookup is None else map_labels(labels, lookup)
    pixels = _on_canvas(_scale(image, box, place), place, config.crop_size, _FILL)
    labels = _on_canvas(labels, place, config.crop_size, pad)
    return config.augment.apply(pixels, labels, rng)


def eval_sample(image: Image.Image, mask: Mask, config: ImagesConfig) -> Sample:
    """Return an image and its mask for testing: the center, or all of it."""
    width, height = _common_size(image, mask)
    whole = Box(0, 0, width, height)
    load(image)
    if config.eval_mode != "crop":
        place = Placement(whole, width, height)
        return _scale(image, whole, place), np.ascontiguousarray(mask)
    crop = config.crop_size
    # Round the longer side down and the center to even, as for published results.
    shorter = min(width, height)
    place = Placement(whole, crop * width // shorter, crop * height // shorter)
    left, top = round((place.width - crop) / 2), round((place.height - crop) / 2)
    pixels = _scale(image, whole, place)[:, top : top + crop, left : left + crop]
    labels = _nearest(mask, place)[top : top + crop, left : left + crop]
    return np.ascontiguousarray(pixels), np.ascontiguousarray(labels)


def _common_size(image: Image.Image, mask: Mask) -> tuple[int, int]:
    height, width = mask.shape
    if image.size != (width, height):
        name = getattr(image, "filename", "") or "of this data set"
        raise NacreError(
            f"the image {name} is {image.size[0]} x {image.size[1]}, its mask is "
            f"{width} x {height}; they must be equal"
        )
    return width, height


def _draw_box(width: int, height: int, rng: np.random.Generator) -> Box:
    """Draw a box by area and aspect ratio; return the center of the image if none fits."""
    for _ in range(_MAX_DRAWS):
        area = width * height * rng.uniform(*AREA)
        aspect = math.exp(rng.uniform(math.log(ASPECT[0]), math.log(ASPECT[1])))
        w, h = round(math.sqrt(area * aspect)), round(math.sqrt(area / aspect))
        if 0 < w <= width and 0 < h <= height:
            top, left = rng.integers(height - h + 1), rng.integers(width - w + 1)
            return Box(int(left), int(top), w, h)
    w = min(width, max(1, round(height * ASPECT[1])))
    h = min(height, max(1, round(width / ASPECT[0])))
    return Box((width - w) // 2, (height - h) // 2, w, h)


def _draw_crop(
    width: int, height: int, scale: float, crop: int, rng: np.random.Generator
) -> Placement:
    """Draw a crop of the scaled image, and its position on the canvas if it is smaller."""
    side = max(1, round(crop / scale))
    across, down = _along(width, side, crop, rng), _along(height, side, crop, rng)
    box = Box(across[0], down[0], across[1], down[1])
    return Placement(box, across[2], down[2], across[3], down[3])


def _along(
    length: int, side: int, crop: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw one axis of a crop: start, length, scaled length and position on the canvas."""
    if length >= side:
        return int(rng.integers(length - side + 1)), side, crop, 0
    scaled = min(crop, max(1, round(length * crop / side)))
    return 0, length, scaled, int(rng.integers(crop - scaled + 1))


def _scale(image: Image.Image, box: Box, place: Placement) -> Pixels:
    """Return the scaled box of a decoded image, (3,H,W)."""
    left, top, width, height = box
    if (left, top, width, height) != (0, 0, *image.size):
        image = image.crop((left, top, left + width, top + height))
    pixels = np.array(image).transpose(2, 0, 1)
    if (width, height) == (place.width, place.height):
        return np.ascontiguousarray(pixels)
    # Three times as fast as Pillow, and channels first.
    scaled = F.interpolate(
        torch.from_numpy(pixels)[None],
        size=(place.height, place.width),
        mode="bilinear",
        antialias=True,
    )
    return np.ascontiguousarray(scaled[0].numpy())


def _decode(image: Image.Image, place: Placement) -> Box:
    """Decode an image at the smallest sufficient scale; return the box at that scale."""
    box = place.box
    full_width, full_height = image.size
    shrink = min(box.width / place.width, box.height / place.height)
    if shrink >= 2 and image.format == "JPEG":
        image.draft("RGB", (math.ceil(full_width / shrink), math.ceil(full_height / shrink)))
    load(image)
    if image.size == (full_width, full_height):
        return box
    left, width = _shrunk(box.left, box.width, full_width, image.size[0])
    top, height = _shrunk(box.top, box.height, full_height, image.size[1])
    return Box(left, top, width, height)


def _shrunk(start: int, length: int, full: int, small: int) -> tuple[int, int]:
    """Return start and length on an axis that was shrunk from ``full`` to ``small`` pixels."""
    first = min(round(start * small / full), small - 1)
    last = max(first + 1, round((start + length) * small / full))
    return first, last - first


def _nearest(mask: Mask, place: Placement) -> Mask:
    """Return the scaled box of a mask: the labels at the nearest pixel centers."""
    left, top, width, height = place.box
    labels = mask[top : top + height, left : left + width]
    if (width, height) == (place.width, place.height):
        return labels
    rows, columns = nearest_pixels(height, place.height), nearest_pixels(width, place.width)
    # Picking columns is slow, so do it while there are fewer rows.
    if place.height < height:
        return labels[rows].take(columns, axis=1)
    return labels.take(columns, axis=1)[rows]


def nearest_pixels(length: int, new_length: int) -> npt.NDArray[np.intp]:
    """Return the index of the nearest of ``length`` pixels for each of ``new_length``.

    Pillow's NEAREST accumulates the step from pixel to pixel. Its rounding decides ties, and
    published results were measured on masks scaled like that.
    """
    steps = np.full(new_length, length / new_length)
    steps[0] /= 2
    return np.minimum(np.cumsum(steps).astype(np.intp), length - 1)


def _on_canvas(values: npt.NDArray[Any], place: Placement, crop: int, fill: Any) -> Any:
    """Return pixels or labels at their position in a crop, padded with `fill`."""
    if values.shape[-2:] == (crop, crop):
        return np.ascontiguousarray(values)
    canvas = np.empty((*values.shape[:-2], crop, crop), values.dtype)
    canvas[:] = fill
    bottom, right = place.top + place.height, place.left + place.width
    canvas[..., place.top : bottom, place.left : right] = values
    return canvas


def flip(pixels: Pixels, labels: Mask) -> Sample:
    """Mirror an image and its mask."""
    return np.ascontiguousarray(pixels[:, :, ::-1]), np.ascontiguousarray(labels[:, ::-1])


def rotate90(pixels: Pixels, labels: Mask, turns: int) -> Sample:
    """Rotate a square image and its mask counterclockwise by a number of right angles."""
    turned = np.rot90(pixels, turns, axes=(1, 2)), np.rot90(labels, turns)
    return np.ascontiguousarray(turned[0]), np.ascontiguousarray(turned[1])


def jitter_colors(pixels: Pixels, brightness: float, contrast: float, saturation: float) -> Pixels:
    """Multiply the brightness, contrast and saturation of an image by factors."""
    x = pixels.astype(np.float32) * np.float32(brightness)
    mean = (x * _LUMA).sum(0).mean()
    x = mean + (x - mean) * np.float32(contrast)
    gray = (x * _LUMA).sum(0)
    x = gray + (x - gray) * np.float32(saturation)
    return x.round().clip(0, 255).astype(np.uint8)


def to_gray(pixels: Pixels) -> Pixels:
    """Remove the colors of an image."""
    return jitter_colors(pixels, 1, 1, 0)


def blur(pixels: Pixels, sigma: float) -> Pixels:
    """Blur an image with a Gaussian of standard deviation ``sigma``, replicating its border."""
    radius = math.ceil(3 * sigma)
    if not radius:
        return pixels
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (offsets / sigma).square())
    kernel = (kernel / kernel.sum()).view(1, 1, -1, 1)
    x = torch.from_numpy(pixels).float().unsqueeze(1)
    x = F.pad(x, (radius,) * 4, mode="replicate")
    x = F.conv2d(F.conv2d(x, kernel), kernel.transpose(2, 3))
    blurred: Pixels = x.squeeze(1).round().clamp(0, 255).byte().numpy()
    return blurred
