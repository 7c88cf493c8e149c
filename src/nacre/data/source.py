"""The parts of every data set: images, masks of labels, and an index of which labels are where.

A data set in files needs no more than a list of which image belongs to which mask. It is checked
before anything is trained: every mask is counted and every image decoded, by all cores.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

from PIL import Image

from nacre.data.image_io import Mask, open_image, read_mask
from nacre.data.index import Pair, Problem, build_index, images_by_label, index_of, scan
from nacre.errors import NacreError
from nacre.labels.space import LabelIndex, LabelSpace
from nacre.utils.config import Config
from nacre.utils.progress import show_progress
from nacre.utils.system import expand_user

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = get_args(Split)

_SHOWN = 5
_LONGEST = 100


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
    def list_pairs(self, split: Split) -> Iterable[Pair]:
        """Find the images of a split; called once, and no file is opened for it."""

    def pairs(self, split: Split) -> list[Pair]:
        """Return the images of a split with their masks, in the order of their names."""
        return list(self._by_name[split].values())

    def index(self, split: Split) -> LabelIndex:
        """Return which labels each image of a split holds."""
        return build_index(self.pairs(split), self.space, root=self.root, split=split)

    def image(self, split: Split, name: str) -> Image.Image:
        """Open an image."""
        return open_image(self._by_name[split][name].image)

    def mask(self, split: Split, name: str) -> Mask:
        """Read the mask of an image."""
        return read_mask(self._by_name[split][name].mask)

    @cached_property
    def _by_name(self) -> dict[Split, dict[str, Pair]]:
        train, val = ({pair.name: pair for pair in sorted(self.list_pairs(s))} for s in SPLITS)
        tested = {pair.image for pair in val.values()}
        both = [pair.name for pair in train.values() if pair.image in tested]
        if both:
            raise NacreError(
                f"{self.root}: {len(both)} images are both for training and for testing: "
                f"{first_names(both)}; take them out of one of the two lists"
            )
        return {"train": train, "val": val}


def find_root(
    given: Path, below: Sequence[str], needed: Sequence[str], what: str, layout: str
) -> Path:
    """Return the folder of a published data set, or say how it must lie.

    Args:
        given: What the user gave.
        below: Where it may lie below that.
        needed: Folders by which it is known.
        what: The data set's name.
        layout: Its files, and where they are from.
    """
    root = expand_user(given)
    for place in (root, *(root / one for one in below)):
        if all((place / folder).is_dir() for folder in needed):
            return place
    without = f"there is no {what} in {root} (no {' and '.join(needed)})"
    raise NacreError(f"{without}; it must lie like this:\n{layout}")


def first_names(names: Sequence[str]) -> str:
    """Return the first few of many names, and how many more there are."""
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(name[:_LONGEST] for name in names[:_SHOWN]) + more


@dataclass(frozen=True)
class SplitReport:
    """The content of one split.

    Attributes:
        split: Its name.
        images: How many images it names.
        expected: How many it has where the data set is whole; None if nobody can know.
        index: Labels and pixels of the images that could be read.
        problems: What is wrong, one at most for an image.
        turned: How many images EXIF data turn; their masks must be drawn on the turned ones.
    """

    split: Split
    images: int
    expected: int | None
    index: LabelIndex
    problems: tuple[Problem, ...]
    turned: int = 0


@dataclass(frozen=True)
class DataReport:
    """The content of a data folder."""

    root: Path
    space: LabelSpace
    splits: tuple[SplitReport, ...]

    @property
    def is_valid(self) -> bool:
        """True if every file that a split names can be used, and means what was meant."""
        return not any(split.problems for split in self.splits) and self.white_label is None

    @property
    def white_label(self) -> int | None:
        """The ignored label where it is likely the one class: masks in black and white."""
        there = set(images_by_label(self.splits[0].index))
        is_alone = there == {self.space.background, self.space.ignored}
        return self.space.ignored if is_alone and len(self.space.names) == 1 else None

    @property
    def is_complete(self) -> bool:
        """True if no split has another number of images than is known of the data set."""
        return all(split.expected in (None, split.images) for split in self.splits)

    @property
    def empty_classes(self) -> tuple[str, ...]:
        """Names of the classes without a pixel in training."""
        there = images_by_label(self.splits[0].index)
        return tuple(name for label, name in self.space.names.items() if label not in there)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "root": str(self.root),
            "valid": self.is_valid,
            "complete": self.is_complete,
            "empty_classes": list(self.empty_classes),
            "white_label": self.white_label,
            "splits": [_split_as_dict(split, self.space) for split in self.splits],
        }


def check_source(source: FileSource) -> DataReport:
    """Read every file of a data set and report what is there and what is wrong."""
    splits = tuple(_check_split(source, split) for split in SPLITS)
    return DataReport(source.root, source.space, splits)


def _check_split(source: FileSource, split: Split) -> SplitReport:
    pairs = source.pairs(split)
    with show_progress(f"{source.root.name} {split}") as bar:
        results = list(scan(pairs, bar, decode=True))
    found = [one if isinstance(one, Problem) else one.pixels for one in results]
    index, problems = index_of(pairs, found, source.space)
    turned = sum(one.is_turned for one in results if not isinstance(one, Problem))
    expected = source.known_counts.get(split)
    return SplitReport(split, len(pairs), expected, index, tuple(problems), turned)


def _split_as_dict(split: SplitReport, space: LabelSpace) -> dict[str, Any]:
    images = images_by_label(split.index)
    return {
        "split": split.split,
        "images": split.images,
        "known": split.expected,
        "turned": split.turned,
        "images_by_class": {name: images[label] for label, name in space.names.items()},
        "problems": [
            {"kind": one.kind, "image": one.name, "text": one.text} for one in split.problems
        ],
    }
