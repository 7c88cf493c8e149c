"""The generated scenes as a data set: rendered when asked for, kept nowhere but in memory."""

from functools import cached_property, lru_cache

import numpy as np
from PIL import Image

from nacre.classes import LabelSpace
from nacre.data.scenes import CLASS_NAMES, SPLIT_STREAMS, Bytes, ScenesConfig, render, scene_name
from nacre.data.source import Index, Mask, Split

SPACE = LabelSpace(names=dict(enumerate(CLASS_NAMES, start=1)), background=0, ignored=None)


class Scenes:
    """Source of generated scenes; see `nacre.data.scenes` for what is in them."""

    space = SPACE

    def __init__(self, config: ScenesConfig) -> None:
        self.config = config
        # Rendering is fast, but a scene is asked for once an epoch and by every method.
        self._scene = lru_cache(maxsize=8192)(self._render)

    def index(self, split: Split) -> Index:
        """Render every scene once and note its labels."""
        return self._indices[split]

    def image(self, split: Split, name: str) -> Image.Image:
        """Return a scene's picture."""
        return Image.fromarray(self._scene(split, name)[0])

    def mask(self, split: Split, name: str) -> Mask:
        """Return a scene's mask."""
        return self._scene(split, name)[1]

    @cached_property
    def _indices(self) -> dict[Split, Index]:
        return {"train": self._make_index("train"), "val": self._make_index("val")}

    def _make_index(self, split: Split) -> Index:
        count = self.config.train if split == "train" else self.config.val
        names = tuple(scene_name(at) for at in range(count))
        pixels = []
        for name in names:
            counts = np.bincount(self.mask(split, name).ravel())
            pixels.append({label: int(n) for label, n in enumerate(counts) if n})
        return Index(names, tuple(frozenset(one) for one in pixels), tuple(pixels))

    def _render(self, split: Split, name: str) -> tuple[Bytes, Bytes]:
        index = int(name.removeprefix("scene-"))
        return render(self.config.seed, index, self.config.size, SPLIT_STREAMS[split])
