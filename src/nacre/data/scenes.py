"""Generated scenes of sea animals and objects, without files.

A scene is a function of ``(seed, stream, index)``: the same three numbers give the same image in
every process, in any order, and the same arrangement at every size. Every scene draws its objects
from all classes, so the background of a step contains old and future classes without labels: the
paper's background shift.

A scene is drawn in this order:

1. a background: two colors mixed by smooth noise and a grating of random direction;
2. a few objects, from back to front. An object has local coordinates ``(u, v)``: those of the
   image, moved to its center, rotated by its angle and divided by its radius. Its class defines an
   *outline* ``f(u, v)``, positive inside and close to a distance, and a *texture* ``g(u, v)`` in
   [-1, 1] that mixes its two colors;
3. grain.

Colors have one distribution for all classes and the background, so that only outline and texture
identify a class.
"""

from collections.abc import Callable
from functools import lru_cache
from math import cos, pi, sin
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from pydantic import Field

from nacre.data.image_io import Mask
from nacre.data.source import DataConfig, Split
from nacre.labels.space import LabelIndex, LabelSpace

Floats = NDArray[np.floating[Any]]
Bytes = NDArray[np.uint8]
Pattern = Callable[[Floats, Floats, Floats, Floats], Floats]

SPLIT_STREAMS = {"train": 0, "val": 1}
"""The stream of each split; streams are independent."""

MIN_OBJECTS, MAX_OBJECTS = 2, 4
"""Number of objects in a scene; some are hidden behind others."""

MIN_RADIUS, MAX_RADIUS = 0.18, 0.36
"""Radius of an object as a fraction of the image's side."""

TEXTURE_RADIUS = 0.24
"""Radius at which the texture has its nominal scale; larger objects show more of it."""

GRAIN = 20
"""Range of the grain, in steps of an 8-bit channel."""


class ScenesConfig(DataConfig):
    """The number, size and seed of generated scenes."""

    name: Literal["scenes"] = Field("scenes", description="the data set: generated scenes")
    train: int = Field(4000, ge=1, le=1_000_000, description="number of scenes to learn from")
    val: int = Field(240, ge=1, le=1_000_000, description="number of scenes to test on")
    size: int = Field(64, ge=16, le=4096, description="height and width of a scene in pixels")
    seed: int = Field(
        1, ge=0, lt=2**31, description="seed of the scenes; the classes are always the same"
    )


class _Shape(NamedTuple):
    """A class of objects with a radius of about 1.

    Outline and texture are functions of u (to the right), v (downwards), rho and theta (polar).
    """

    name: str
    outline: Pattern
    texture: Pattern


def _cross(u: Floats, v: Floats, rho: Floats, theta: Floats) -> Floats:
    across, along = np.abs(u), np.abs(v)
    return np.minimum(0.36 - np.minimum(across, along), 1.0 - np.maximum(across, along))


def _triangle(u: Floats, v: Floats, rho: Floats, theta: Floats) -> Floats:
    return np.minimum.reduce((0.6 - v, 0.5 * v - 0.866 * u + 0.56, 0.5 * v + 0.866 * u + 0.56))


def _lens_with_tail(u: Floats, v: Floats, rho: Floats, theta: Floats) -> Floats:
    body = 0.56 - np.hypot(0.62 * (u - 0.2), v)
    tail = np.minimum.reduce((u + 1.1, -0.4 - u, 0.12 - 0.8 * (u + 0.4) - np.abs(v)))
    return np.maximum(body, tail)


def _spots(u: Floats, v: Floats, rho: Floats, theta: Floats) -> Floats:
    return np.where(np.cos(8.5 * u) + np.cos(8.5 * v) > 0.6, 1, -1).astype(np.float32)


_SHAPES = (
    _Shape(
        "pearl",  # a disc with rings
        lambda u, v, rho, theta: 0.9 - rho,
        lambda u, v, rho, theta: np.cos(11 * rho),
    ),
    _Shape(
        "starfish",  # five arms with spots
        lambda u, v, rho, theta: (0.78 + 0.24 * np.cos(5 * theta) - rho) * 0.8,
        _spots,
    ),
    _Shape(
        "crate",  # a square with checks
        lambda u, v, rho, theta: 0.78 - np.maximum(np.abs(u), np.abs(v)),
        lambda u, v, rho, theta: np.sign(np.sin(6.5 * u) * np.sin(6.5 * v)),
    ),
    _Shape(
        "coral",  # a cross with veins
        _cross,
        lambda u, v, rho, theta: np.cos(16 * np.minimum(np.abs(u), np.abs(v))),
    ),
    _Shape(
        "lifebuoy",  # a ring with sectors
        lambda u, v, rho, theta: 0.28 - np.abs(rho - 0.74),
        lambda u, v, rho, theta: np.sign(np.cos(4 * theta)),
    ),
    _Shape("sail", _triangle, lambda u, v, rho, theta: np.cos(12 * v)),
    _Shape(
        "scallop",  # half a disc with ribs
        lambda u, v, rho, theta: np.minimum(1.1 - rho, 0.12 - v),
        lambda u, v, rho, theta: np.cos(9 * theta),
    ),
    _Shape("fish", _lens_with_tail, lambda u, v, rho, theta: np.cos(12 * u + 3 * np.cos(4 * v))),
)

CLASS_NAMES = tuple(shape.name for shape in _SHAPES)
"""Names of the classes, whose labels are 1, 2 ...; the background is 0."""


def render(seed: int, index: int, size: int, stream: int = 0) -> tuple[Bytes, Bytes]:
    """Return a scene's image (size,size,3) and mask (size,size), as uint8.

    Args:
        seed: Seed of all scenes.
        index: Number of the scene in its stream.
        size: Height and width in pixels.
        stream: One of ``SPLIT_STREAMS``.
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream, index])))
    count = rng.integers(MIN_OBJECTS, MAX_OBJECTS + 1)
    classes = rng.integers(len(_SHAPES), size=count)
    dice = rng.random((count, 12), dtype=np.float32)
    image = _background(rng, size)
    mask = np.zeros((size, size), dtype=np.uint8)
    for number, numbers in zip(classes.tolist(), dice, strict=True):
        _draw(image, mask, number, numbers)
    grain = rng.random((size, size, 1), dtype=np.float32)
    image += (grain - 0.5) * np.float32(GRAIN)
    return np.clip(image, 0, 255, out=image).astype(np.uint8), mask


def _background(rng: np.random.Generator, size: int) -> Floats:
    """Return two colors mixed by smooth noise and a grating."""
    first, second = _two_colors(rng.random(6, dtype=np.float32))
    cells = int(rng.integers(3, 9))
    noise = rng.random((cells, cells), dtype=np.float32) * 2 - 1
    blend = _upsampling(cells, size)
    angle, waves, phase, strength = rng.random(4).tolist()
    line = np.arange(size, dtype=np.float32) * (2 * pi * (2 + 10 * waves) / size)
    across, down = line * cos(pi * angle) + 2 * pi * phase, line * sin(pi * angle)
    mix = blend @ noise @ blend.T + 0.7 * strength * np.sin(across[None] + down[:, None])
    return _mixed(first, second, mix)


def _draw(image: Floats, mask: Bytes, number: int, numbers: Floats) -> None:
    """Draw an object of a class, decided by 12 random numbers, over a scene."""
    size = len(mask)
    across, down, scale, angle, stretch, light = numbers[:6].tolist()
    radius = size * (MIN_RADIUS + (MAX_RADIUS - MIN_RADIUS) * scale)
    x, y = size * (0.06 + 0.88 * across), size * (0.06 + 0.88 * down)
    reach = 1.2 * radius
    rows = slice(max(0, int(y - reach)), min(size, int(y + reach) + 2))
    columns = slice(max(0, int(x - reach)), min(size, int(x + reach) + 2))
    local = _local_coordinates(rows, columns, x, y, radius, 2 * pi * angle, stretch)
    outline = _SHAPES[number].outline(*local)
    u, v, rho, theta = local
    zoom = np.float32(radius / (TEXTURE_RADIUS * size))
    texture = _SHAPES[number].texture(u * zoom, v * zoom, rho * zoom, theta)
    cover = np.clip(outline * np.float32(radius) + 0.5, 0, 1)
    first, second = _two_colors(numbers[6:12])
    # A gradient of light across the object, so that its colors are not flat.
    surface = _mixed(first, second, texture) * (1 + (light - 0.5) * local[0] * 0.5)[..., None]
    patch = image[rows, columns]
    patch += (surface - patch) * cover[..., None]
    mask[rows, columns][cover > 0.5] = number + 1


def _local_coordinates(
    rows: slice, columns: slice, x: float, y: float, radius: float, angle: float, stretch: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the coordinates ``u, v, rho, theta`` of the pixels in an object's box."""
    right = (np.arange(columns.start, columns.stop, dtype=np.float32) + (0.5 - x))[None]
    below = (np.arange(rows.start, rows.stop, dtype=np.float32) + (0.5 - y))[:, None]
    wide = radius * (0.85 + 0.3 * stretch)
    tall = radius * (1.15 - 0.3 * stretch)
    u = right * (cos(angle) / wide) + below * (sin(angle) / wide)
    v = below * (cos(angle) / tall) - right * (sin(angle) / tall)
    return u, v, np.sqrt(u * u + v * v), np.arctan2(v, u)


def _two_colors(numbers: Floats) -> tuple[Floats, Floats]:
    """Return two colors that differ enough to make a texture visible."""
    first = 30 + 195 * numbers[:3]
    second = 30 + 195 * numbers[3:6]
    # Push them apart if their brightness is nearly the same.
    gap = float(second.mean() - first.mean())
    push = max(0.0, 70 - abs(gap)) / 2 * (1 if gap >= 0 else -1)
    return first - np.float32(push), second + np.float32(push)


def _mixed(first: Floats, second: Floats, mix: Floats) -> Floats:
    """Return the color of each pixel: ``first`` if ``mix`` is -1, ``second`` if it is 1."""
    return (first + second) / 2 + mix[..., None] * ((second - first) / 2)


@lru_cache(maxsize=64)
def _upsampling(cells: int, size: int) -> Floats:
    """Return the matrix (size, cells) that interpolates linearly between cell centers."""
    place = np.clip((np.arange(size) + 0.5) * cells / size - 0.5, 0, cells - 1)
    distance = np.abs(place[:, None] - np.arange(cells)[None])
    return np.clip(1 - distance, 0, None).astype(np.float32)


SPACE = LabelSpace(names=dict(enumerate(CLASS_NAMES, start=1)), background=0, ignored=None)


class Scenes:
    """Generated scenes, rendered on request and cached in memory."""

    space = SPACE

    def __init__(self, config: ScenesConfig) -> None:
        self.config = config

    def index(self, split: Split) -> LabelIndex:
        """Return the labels of each scene."""
        return _index(self.config, split)

    def image(self, split: Split, name: str) -> Image.Image:
        """Return a scene's image."""
        return Image.fromarray(_scene(self.config, split, name)[0])

    def mask(self, split: Split, name: str) -> Mask:
        """Return a scene's mask."""
        return _scene(self.config, split, name)[1]


# Every epoch reads all scenes, and every run of a grid reads the index.


@lru_cache(maxsize=8)
def _index(config: ScenesConfig, split: Split) -> LabelIndex:
    names = tuple(f"scene-{i:05d}" for i in range(getattr(config, split)))
    pixels = []
    for name in names:
        counts = np.bincount(_scene(config, split, name)[1].ravel())
        pixels.append({label: int(n) for label, n in enumerate(counts) if n})
    return LabelIndex(names, tuple(pixels))


@lru_cache(maxsize=8192)
def _scene(config: ScenesConfig, split: Split, name: str) -> tuple[Bytes, Bytes]:
    index = int(name.removeprefix("scene-"))
    return render(config.seed, index, config.size, SPLIT_STREAMS[split])
