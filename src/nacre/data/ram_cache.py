"""A source that keeps decoded pictures in memory, up to a limit, for data that are small.

What is read first is kept, and nothing is ever thrown out for something else: an epoch visits
every image once, so whatever is dropped to make room is needed again before it would be used.
Pictures are decoded at full scale whether they are kept or not, so that what is learnt does not
depend on which of them there was room for.
"""

from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.data.image_io import load
from nacre.data.source import Mask, Source, Split
from nacre.scenarios.classes import LabelSpace
from nacre.scenarios.label_index import Index

Array = npt.NDArray[Any]


class Cached:
    """Source that reads each picture and mask of another one from its file only once."""

    def __init__(self, source: Source, limit: int) -> None:
        """Keep up to ``limit`` bytes; each process that loads pictures has its own."""
        self.source = source
        self.limit = limit
        self.used = 0
        self._images: dict[tuple[Split, str], Array] = {}
        self._masks: dict[tuple[Split, str], Array] = {}

    @property
    def space(self) -> LabelSpace:
        """What the values in the masks mean."""
        return self.source.space

    def index(self, split: Split) -> Index:
        """Return which labels each image holds."""
        return self.source.index(split)

    def image(self, split: Split, name: str) -> Image.Image:
        """Return an image, from memory if it is there."""
        kept = self._images.get((split, name))
        if kept is not None:
            return Image.fromarray(kept)
        image = load(self.source.image(split, name))
        if self._has_room(3 * image.width * image.height):
            pixels = np.asarray(image)
            self._images[split, name] = pixels
            self.used += pixels.nbytes
        return image

    def mask(self, split: Split, name: str) -> Mask:
        """Return the mask of an image, from memory if it is there."""
        kept = self._masks.get((split, name))
        if kept is not None:
            return kept
        mask = self.source.mask(split, name)
        if self._has_room(mask.nbytes):
            # The same array is given out again and again.
            mask.setflags(write=False)
            self._masks[split, name] = mask
            self.used += mask.nbytes
        return mask

    def _has_room(self, size: int) -> bool:
        return self.used + size <= self.limit
