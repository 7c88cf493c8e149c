"""What every data set gives: pictures, masks of labels, and an index of which labels are where."""

from typing import Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.labels.space import LabelSpace
from nacre.scenarios.label_index import Index
from nacre.utils.config import Config

Split = Literal["train", "val"]
Mask = npt.NDArray[np.unsignedinteger[Any]]
"""Label values, height x width, as uint8 or uint16."""


class DataConfig(Config):
    """What the configs of all data sets have in common: the data set's name."""

    name: str


class Source(Protocol):
    """A data set as the rest of nacre sees it."""

    @property
    def space(self) -> LabelSpace:
        """What the values in the masks mean."""

    def index(self, split: Split) -> Index:
        """Return which labels each image holds; may read all masks once, with progress."""

    def image(self, split: Split, name: str) -> Image.Image:
        """Open an image as RGB; may be lazy, so that a JPEG can be decoded at a smaller scale."""

    def mask(self, split: Split, name: str) -> Mask:
        """Read the mask of an image: its label values, of the image's size."""
