"""From an image and its mask to arrays of one size: crops, scales and flips.

A crop in training is the same four things: a box of the image, scaled to a size, put on a canvas,
mirrored or not. What differs is how the box is drawn (`images.crop`):

- ``paper``: an area of 0.5 to 2 times the image's and an aspect of 3/4 to 4/3, tried ten times
  for a box that fits (so at most the whole image), else the largest box of allowed aspect in
  the middle; scaled to the crop whatever its shape.
- ``deeplab``: the image scaled by a factor s in 0.5..2, then a crop of it, padded where it is
  smaller: the same as a box of side crop/s.
- ``plain``: a crop at the image's own scale.

Then come the operations of the augmentation, each a function, in one order: flip, rotate90,
color_jitter, gray, blur. One that is off draws no number, so that it changes nothing for the
others. What lies beside the image in a crop is changed with it.

Images are scaled bilinearly with antialiasing, masks take the label at the nearest pixel
center: row i of n from h rows is row floor((i + 1/2) h / n), with Pillow's rounding where that
falls between two rows. Since the box is known before the image is decoded, a JPEG is decoded at
1/2, 1/4 or 1/8 in training where that is enough; in testing it is always decoded fully, because a
figure must not depend on a decoder's short cuts.
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
"""Color beside an image: ImageNet's mean, so 0 once it is normalized."""

_FILL = np.array(FILL, np.uint8)[:, None, None]
_TRIES = 10
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)[:, None, None]
"""How bright red, green and blue look."""

EvalMode = Literal["crop", "full", "sliding"]
Switch = bool | Literal["auto"]
"""Whether something is done; `auto` leaves it to held-out images (`nacre.evaluation.choose`)."""


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

    def apply(self, pixels: Pixels, labels: Mask, rng: np.random.Generator) -> Sample:
        """Change a crop by all operations but the flip, which is done where it is scaled.

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


class ImagesConfig(Config):
    """The cut of images for training and testing."""

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
        description="augmented views of an image, which come again in later epochs; by default "
        "every epoch has a new one. Of a frozen backbone the features of each view are kept in "
        "memory, so that an epoch costs the decoder alone",
    )
    eval_mode: EvalMode = Field(
        "crop",
        description="crop: shorter side to `crop_size`, then the center, as the paper; full: whole "
        "images at their own size; sliding: the same through windows of `crop_size`",
    )
    mirror: Switch = Field(
        False,
        description="test by the mean of the scores of an image and of its mirror image; auto: "
        "where held-out images gain",
    )
    edges: Switch = Field(
        False,
        description="test with scores that are upsampled along the edges of the image; auto: "
        "where held-out images gain",
    )

    def view_of(self, epoch: int) -> int:
        """Return which view of its images an epoch shows."""
        return epoch if self.views is None else epoch % self.views

    @property
    def test_window(self) -> int | None:
        """Side of the windows that test images are seen through, where they are."""
        return self.crop_size if self.eval_mode == "sliding" else None

    @property
    def predict_mode(self) -> EvalMode:
        """The way a new image enters the network: at the scale of training and testing.

        Only the crop ``paper`` makes images as large as the crop; ``deeplab`` and ``plain`` train
        at the images' own scale.
        """
        if self.eval_mode == "crop" and self.crop != "paper":
            return "full"
        return self.eval_mode


class Box(NamedTuple):
    """A part of an image, in pixels."""

    left: int
    top: int
    width: int
    height: int


class Placement(NamedTuple):
    """A box, the size it is scaled to, where that lies on the canvas, turned over or not."""

    box: Box
    width: int
    height: int
    left: int = 0
    top: int = 0
    flip: bool = False


def train_sample(
    image: Image.Image,
    mask: Mask,
    config: ImagesConfig,
    rng: np.random.Generator,
    pad: int,
    lookup: LabelArray | None = None,
) -> Sample:
    """Cut a random square out of an image and its mask.

    Args:
        image: The image, decoded or not; one that is not may be decoded at a smaller scale.
        mask: Its labels.
        config: How to cut.
        rng: The only source of chance.
        pad: The label beside the image, where the crop is larger than the image.
        lookup: Maps labels to targets, of which `pad` is one then.

    Returns:
        The image (3, crop, crop) and the labels or channels (crop, crop).
    """
    width, height = _common_size(image, mask)
    if config.crop == "paper":
        place = Placement(_draw_box(width, height, rng), config.crop_size, config.crop_size)
    else:
        low, high = SCALE if config.crop == "deeplab" else (1.0, 1.0)
        place = _draw_crop(width, height, rng.uniform(low, high), config.crop_size, rng)
    if rng.random() < config.augment.flip:
        place = place._replace(flip=True, left=config.crop_size - place.left - place.width)
    box = _decode(image, place)
    labels = _nearest(mask, place)
    labels = labels if lookup is None else map_labels(labels, lookup)
    pixels = _on_canvas(_scale(image, box, place), place, config.crop_size, _FILL)
    labels = _on_canvas(labels, place, config.crop_size, pad)
    return config.augment.apply(pixels, labels, rng)


def eval_sample(image: Image.Image, mask: Mask, config: ImagesConfig) -> Sample:
    """Return an image and its mask as they are tested: the center, or everything.

    Args:
        image: The image, decoded or not.
        mask: Its labels.
        config: Says which of the two.
    """
    width, height = _common_size(image, mask)
    whole = Box(0, 0, width, height)
    load(image)
    if config.eval_mode != "crop":
        place = Placement(whole, width, height)
        return _scale(image, whole, place), np.ascontiguousarray(mask)
    crop = config.crop_size
    # The longer side is rounded down and the middle to even, as is usual, so that the pixels
    # are those that published results were measured on.
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
    """Draw a box by area and aspect; the middle of the image if none fits."""
    for _ in range(_TRIES):
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
    """Draw a crop of the image scaled by ``scale``, and where it lies if it is smaller."""
    side = max(1, round(crop / scale))
    across, down = _along(width, side, crop, rng), _along(height, side, crop, rng)
    box = Box(across[0], down[0], across[1], down[1])
    return Placement(box, across[2], down[2], across[3], down[3])


def _along(
    length: int, side: int, crop: int, rng: np.random.Generator
) -> tuple[int, int, int, int]:
    """Draw one axis of a crop: start and length of the box, its scaled length and its place."""
    if length >= side:
        return int(rng.integers(length - side + 1)), side, crop, 0
    scaled = min(crop, max(1, round(length * crop / side)))
    return 0, length, scaled, int(rng.integers(crop - scaled + 1))


def _scale(image: Image.Image, box: Box, place: Placement) -> Pixels:
    """Return the box of a decoded image at its new size, (3, height, width)."""
    left, top, width, height = box
    if (left, top, width, height) != (0, 0, *image.size):
        image = image.crop((left, top, left + width, top + height))
    if place.flip:
        image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
    pixels = np.array(image).transpose(2, 0, 1)
    if (width, height) == (place.width, place.height):
        return np.ascontiguousarray(pixels)
    # A third of the time that Pillow takes, and the channels come out apart.
    scaled = F.interpolate(
        torch.from_numpy(pixels)[None],
        size=(place.height, place.width),
        mode="bilinear",
        antialias=True,
    )
    return np.ascontiguousarray(scaled[0].numpy())


def _decode(image: Image.Image, place: Placement) -> Box:
    """Decode an image at the smallest scale that is enough; return the box at that scale."""
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
    """Return start and length of a stretch of ``full`` pixels in an image of ``small``."""
    first = min(round(start * small / full), small - 1)
    last = max(first + 1, round((start + length) * small / full))
    return first, last - first


def _nearest(mask: Mask, place: Placement) -> Mask:
    """Return the box of a mask at its new size: the label at the nearest pixel center."""
    left, top, width, height = place.box
    labels = mask[top : top + height, left : left + width]
    if (width, height) == (place.width, place.height):
        return labels[:, ::-1] if place.flip else labels
    rows, columns = nearest_pixels(height, place.height), nearest_pixels(width, place.width)
    if place.flip:
        columns = columns[::-1]
    # Columns are the dear ones to pick, so they are picked where there are fewer rows.
    if place.height < height:
        return labels[rows].take(columns, axis=1)
    return labels.take(columns, axis=1)[rows]


def nearest_pixels(length: int, new_length: int) -> npt.NDArray[np.intp]:
    """Return which of ``length`` pixels stands at each of ``new_length``, as Pillow's NEAREST.

    Pillow adds the step up from pixel to pixel, and its rounding decides where the center of a new
    pixel falls on the edge of two old ones. Published figures were measured on such masks.
    """
    steps = np.full(new_length, length / new_length)
    steps[0] /= 2
    return np.minimum(np.cumsum(steps).astype(np.intp), length - 1)


def _on_canvas(values: npt.NDArray[Any], place: Placement, crop: int, fill: Any) -> Any:
    """Return pixels or labels at their place in a crop, all beside them filled."""
    if values.shape[-2:] == (crop, crop):
        return np.ascontiguousarray(values)
    canvas = np.empty((*values.shape[:-2], crop, crop), values.dtype)
    canvas[:] = fill
    bottom, right = place.top + place.height, place.left + place.width
    canvas[..., place.top : bottom, place.left : right] = values
    return canvas


def rotate90(pixels: Pixels, labels: Mask, turns: int) -> Sample:
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
    radius = math.ceil(3 * sigma)
    if not radius:
        return pixels
    offsets = torch.arange(-radius, radius + 1, dtype=torch.float32)
    kernel = torch.exp(-0.5 * (offsets / sigma).square())
    kernel = (kernel / kernel.sum()).view(1, 1, -1, 1)
    x = torch.from_numpy(pixels).float().unsqueeze(1)
    x = F.pad(x, (radius,) * 4, mode="replicate")
    x = F.conv2d(F.conv2d(x, kernel), kernel.transpose(2, 3))
    found: Pixels = x.squeeze(1).round().clamp(0, 255).byte().numpy()
    return found
