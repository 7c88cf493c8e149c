"""The parts of every data set: images, masks of labels, and an index of which labels are where.

A data set in files needs no more than a list of which image belongs to which mask.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import ClassVar, Literal, Protocol

from PIL import Image

from nacre.data.image_io import Mask, open_image, read_mask
from nacre.data.index import Pair, build_index
from nacre.errors import NacreError
from nacre.labels.space import LabelIndex, LabelSpace
from nacre.utils.config import Config

Split = Literal["train", "val"]


class DataConfig(Config):
    """The common part of the configs of all data sets: the name."""

    name: str


class Source(Protocol):
    """A data set as the rest of nacre sees it."""

    @property
    def space(self) -> LabelSpace:
        """The meaning of the values in the masks."""

    def index(self, split: Split) -> LabelIndex:
        """Return which labels each image holds; may read all masks once, with progress."""

    def image(self, split: Split, name: str) -> Image.Image:
        """Open an image as RGB; may be lazy, so that a JPEG can be decoded at a smaller scale."""

    def mask(self, split: Split, name: str) -> Mask:
        """Read the mask of an image: its label values, of the image's size."""


class FileSource(ABC):
    """A data set in files.

    Attributes:
        known_counts: How many images a split of a whole one has, where that is published.
        root: Its folder, beside which the index is kept.
    """

    known_counts: ClassVar[Mapping[Split, int]] = {}
    root: Path

    @property
    @abstractmethod
    def space(self) -> LabelSpace:
        """The meaning of the values in the masks."""

    @abstractmethod
    def list_pairs(self, split: Split) -> Sequence[Pair]:
        """Find the images of a split; called once, and no file is opened for it."""

    def pairs(self, split: Split) -> Sequence[Pair]:
        """Return name, image and mask of the images of a split."""
        return list(self._by_name[split].values())

    def find(self, split: Split, name: str) -> Pair:
        """Return image and mask of an image."""
        return self._by_name[split][name]

    def index(self, split: Split) -> LabelIndex:
        """Return which labels each image of a split holds."""
        return build_index(self.pairs(split), self.space, root=self.root, split=split)

    def image(self, split: Split, name: str) -> Image.Image:
        """Open an image."""
        path = self.find(split, name).image
        if path is None:
            raise NacreError(f"the image {name!r} is missing in {self.root}")
        return open_image(path)

    def mask(self, split: Split, name: str) -> Mask:
        """Read the mask of an image."""
        path = self.find(split, name).mask
        if path is None:
            raise NacreError(f"the mask of the image {name!r} is missing in {self.root}")
        return read_mask(path)

    @cached_property
    def _by_name(self) -> dict[Split, dict[str, Pair]]:
        splits: tuple[Split, ...] = ("train", "val")
        return {split: {pair.name: pair for pair in self.list_pairs(split)} for split in splits}
