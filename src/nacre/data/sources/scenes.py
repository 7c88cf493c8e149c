"""The generated scenes as a data set: rendered when asked for, kept nowhere but in memory."""

from functools import lru_cache

import numpy as np
from PIL import Image

from nacre.data.source import Mask, Split
from nacre.data.sources.scenes_render import (
    CLASS_NAMES,
    SPLIT_STREAMS,
    Bytes,
    ScenesConfig,
    render,
    scene_name,
)
from nacre.labels.space import LabelSpace
from nacre.scenarios.label_index import Index

SPACE = LabelSpace(names=dict(enumerate(CLASS_NAMES, start=1)), background=0, ignored=None)


class Scenes:
    """Source of generated scenes; see `nacre.data.sources.scenes_render` for what is in them."""

    space = SPACE

    def __init__(self, config: ScenesConfig) -> None:
        self.config = config

    def index(self, split: Split) -> Index:
        """Render every scene once and note its labels."""
        return _index(self.config, split)

    def image(self, split: Split, name: str) -> Image.Image:
        """Return a scene's picture."""
        return Image.fromarray(_scene(self.config, split, name)[0])

    def mask(self, split: Split, name: str) -> Mask:
        """Return a scene's mask."""
        return _scene(self.config, split, name)[1]


# Rendering is fast, but a scene is asked for once per epoch, and an index by every run of a grid.


@lru_cache(maxsize=8)
def _index(config: ScenesConfig, split: Split) -> Index:
    names = tuple(scene_name(i) for i in range(config.train if split == "train" else config.val))
    pixels = []
    for name in names:
        counts = np.bincount(_scene(config, split, name)[1].ravel())
        pixels.append({label: int(n) for label, n in enumerate(counts) if n})
    return Index(names, tuple(frozenset(one) for one in pixels), tuple(pixels))


@lru_cache(maxsize=8192)
def _scene(config: ScenesConfig, split: Split, name: str) -> tuple[Bytes, Bytes]:
    index = int(name.removeprefix("scene-"))
    return render(config.seed, index, config.size, SPLIT_STREAMS[split])
