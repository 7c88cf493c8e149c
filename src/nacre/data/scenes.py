"""Generated scenes: a small world of sea things that needs no files.

A scene is a function of ``(seed, stream, index)`` alone: the same three numbers give the
same image in every process, in any order, and the same arrangement at every size. Every
scene draws its things from all classes together, so the classes a step does not name (the
old ones and the future ones) stand unlabeled in its background: the paper's background
shift.

How a scene is made, in the order of the code below:

1. a background: two colors mixed by smooth noise and a grating of any direction;
2. a few things, drawn back to front so that later ones hide parts of earlier ones. A thing
   has local coordinates ``(u, v)``: the image's, moved to its center, turned by its angle
   and divided by its radius. Its class owns an *outline* ``f(u, v)``, positive inside and
   close to a distance, and a *texture* ``g(u, v)`` in [-1, 1] that mixes its two colors;
3. grain over everything.

Colors are drawn from one distribution for all classes and the background: they say nothing
about the class. Only the outline and the texture do.
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
"""The stream of scenes each split reads: independent of one another for every seed."""

FEWEST, MOST = 2, 4
"""How many things a scene is given (some end up hidden behind others)."""

SMALLEST, LARGEST = 0.18, 0.36
"""Radius of a thing as a share of the image's side."""

TEXTURE_RADIUS = 0.24
"""Radius at which a thing shows its texture as written: larger ones show more of it."""

GRAIN = 20
"""Range of the grain, in steps of an 8-bit channel."""


class ScenesConfig(DataConfig):
    """The number, size and world of generated scenes."""

    name: Literal["scenes"] = Field("scenes", description="the data set: generated scenes")
    train: int = Field(4000, ge=1, le=1_000_000, description="number of scenes to learn from")
    val: int = Field(240, ge=1, le=1_000_000, description="number of scenes to test on")
    size: int = Field(64, ge=16, le=4096, description="height and width of a scene in pixels")
    seed: int = Field(
        1, ge=0, lt=2**31, description="seed of the world: other scenes of the same classes"
    )


class _Kind(NamedTuple):
    """A class of things.

    Outline and texture take u to the right, v downwards, and rho and theta, their polar form; a
    thing is about 1 in radius.
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


_KINDS = (
    _Kind(
        "pearl",  # a disc with rings
        lambda u, v, rho, theta: 0.9 - rho,
        lambda u, v, rho, theta: np.cos(11 * rho),
    ),
    _Kind(
        "starfish",  # five arms with spots
        lambda u, v, rho, theta: (0.78 + 0.24 * np.cos(5 * theta) - rho) * 0.8,
        _spots,
    ),
    _Kind(
        "crate",  # a square with checks
        lambda u, v, rho, theta: 0.78 - np.maximum(np.abs(u), np.abs(v)),
        lambda u, v, rho, theta: np.sign(np.sin(6.5 * u) * np.sin(6.5 * v)),
    ),
    _Kind(
        "coral",  # a cross with veins
        _cross,
        lambda u, v, rho, theta: np.cos(16 * np.minimum(np.abs(u), np.abs(v))),
    ),
    _Kind(
        "lifebuoy",  # a ring with sectors
        lambda u, v, rho, theta: 0.28 - np.abs(rho - 0.74),
        lambda u, v, rho, theta: np.sign(np.cos(4 * theta)),
    ),
    _Kind("sail", _triangle, lambda u, v, rho, theta: np.cos(12 * v)),
    _Kind(
        "scallop",  # half a disc with ribs
        lambda u, v, rho, theta: np.minimum(1.1 - rho, 0.12 - v),
        lambda u, v, rho, theta: np.cos(9 * theta),
    ),
    _Kind("fish", _lens_with_tail, lambda u, v, rho, theta: np.cos(12 * u + 3 * np.cos(4 * v))),
)

CLASS_NAMES = tuple(kind.name for kind in _KINDS)
"""Names of the classes; a mask holds 1 for the first, 2 for the second ..., 0 elsewhere."""


def render(seed: int, index: int, size: int, stream: int = 0) -> tuple[Bytes, Bytes]:
    """Draw one scene.

    Args:
        seed: Seed of the world.
        index: Which scene of the stream.
        size: Height and width in pixels; the arrangement is the same at every size.
        stream: Which of the world's independent streams, see ``SPLIT_STREAMS``.

    Returns:
        The image, uint8 of shape (size, size, 3), and its mask, uint8 of shape (size, size).
    """
    rng = np.random.Generator(np.random.PCG64(np.random.SeedSequence([seed, stream, index])))
    things = rng.integers(FEWEST, MOST + 1)
    kinds = rng.integers(len(_KINDS), size=things)
    dice = rng.random((things, 12), dtype=np.float32)
    image = _background(rng, size)
    mask = np.zeros((size, size), dtype=np.uint8)
    for kind, thrown in zip(kinds.tolist(), dice, strict=True):
        _draw(image, mask, kind, thrown)
    grain = rng.random((size, size, 1), dtype=np.float32)
    image += (grain - 0.5) * np.float32(GRAIN)
    return np.clip(image, 0, 255, out=image).astype(np.uint8), mask


def _background(rng: np.random.Generator, size: int) -> Floats:
    """Two colors mixed by smooth noise and a grating."""
    first, second = _two_colors(rng.random(6, dtype=np.float32))
    cells = int(rng.integers(3, 9))
    noise = rng.random((cells, cells), dtype=np.float32) * 2 - 1
    blend = _upsampling(cells, size)
    angle, waves, phase, strength = rng.random(4).tolist()
    line = np.arange(size, dtype=np.float32) * (2 * pi * (2 + 10 * waves) / size)
    across, down = line * cos(pi * angle) + 2 * pi * phase, line * sin(pi * angle)
    mix = blend @ noise @ blend.T + 0.7 * strength * np.sin(across[None] + down[:, None])
    return _mixed(first, second, mix)


def _draw(image: Floats, mask: Bytes, kind: int, thrown: Floats) -> None:
    """Draw one thing over what is there, inside its bounding box only."""
    size = len(mask)
    across, down, scale, angle, stretch, light = thrown[:6].tolist()
    radius = size * (SMALLEST + (LARGEST - SMALLEST) * scale)
    x, y = size * (0.06 + 0.88 * across), size * (0.06 + 0.88 * down)
    reach = 1.2 * radius
    rows = slice(max(0, int(y - reach)), min(size, int(y + reach) + 2))
    columns = slice(max(0, int(x - reach)), min(size, int(x + reach) + 2))
    local = _local_coordinates(rows, columns, x, y, radius, 2 * pi * angle, stretch)
    outline = _KINDS[kind].outline(*local)
    u, v, rho, theta = local
    zoom = np.float32(radius / (TEXTURE_RADIUS * size))
    texture = _KINDS[kind].texture(u * zoom, v * zoom, rho * zoom, theta)
    cover = np.clip(outline * np.float32(radius) + 0.5, 0, 1)
    first, second = _two_colors(thrown[6:12])
    # A slope of light across the thing, so that its colors are not flat.
    surface = _mixed(first, second, texture) * (1 + (light - 0.5) * local[0] * 0.5)[..., None]
    patch = image[rows, columns]
    patch += (surface - patch) * cover[..., None]
    mask[rows, columns][cover > 0.5] = kind + 1


def _local_coordinates(
    rows: slice, columns: slice, x: float, y: float, radius: float, angle: float, stretch: float
) -> tuple[Floats, Floats, Floats, Floats]:
    """Return the coordinates ``u, v, rho, theta`` of a thing at the pixels of its box."""
    right = (np.arange(columns.start, columns.stop, dtype=np.float32) + (0.5 - x))[None]
    below = (np.arange(rows.start, rows.stop, dtype=np.float32) + (0.5 - y))[:, None]
    wide = radius * (0.85 + 0.3 * stretch)
    tall = radius * (1.15 - 0.3 * stretch)
    u = right * (cos(angle) / wide) + below * (sin(angle) / wide)
    v = below * (cos(angle) / tall) - right * (sin(angle) / tall)
    return u, v, np.sqrt(u * u + v * v), np.arctan2(v, u)


def _two_colors(thrown: Floats) -> tuple[Floats, Floats]:
    """Two colors that differ enough for a texture between them to be seen."""
    first = 30 + 195 * thrown[:3]
    second = 30 + 195 * thrown[3:6]
    # Push the darker and the lighter one apart where their brightness is nearly the same.
    gap = float(second.mean() - first.mean())
    push = max(0.0, 70 - abs(gap)) / 2 * (1 if gap >= 0 else -1)
    return first - np.float32(push), second + np.float32(push)


def _mixed(first: Floats, second: Floats, mix: Floats) -> Floats:
    """Return the color per pixel: ``first`` where ``mix`` is -1, ``second`` where it is 1."""
    return (first + second) / 2 + mix[..., None] * ((second - first) / 2)


@lru_cache(maxsize=64)
def _upsampling(cells: int, size: int) -> Floats:
    """Return the matrix (size, cells) that interpolates linearly between cell centers."""
    place = np.clip((np.arange(size) + 0.5) * cells / size - 0.5, 0, cells - 1)
    distance = np.abs(place[:, None] - np.arange(cells)[None])
    return np.clip(1 - distance, 0, None).astype(np.float32)


SPACE = LabelSpace(names=dict(enumerate(CLASS_NAMES, start=1)), background=0, ignored=None)


class Scenes:
    """Source of generated scenes: rendered when asked for, kept nowhere but in memory."""

    space = SPACE

    def __init__(self, config: ScenesConfig) -> None:
        self.config = config

    def index(self, split: Split) -> LabelIndex:
        """Render every scene once and note its labels."""
        return _index(self.config, split)

    def image(self, split: Split, name: str) -> Image.Image:
        """Return a scene's image."""
        return Image.fromarray(_scene(self.config, split, name)[0])

    def mask(self, split: Split, name: str) -> Mask:
        """Return a scene's mask."""
        return _scene(self.config, split, name)[1]


# Rendering is fast, but a scene is asked for once per epoch, and an index by every run of a grid.


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
