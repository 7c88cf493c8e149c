"""The interface of a data set, a base class for data sets in files, and the check of their files.

A data set in files needs a label space and a list of pairs of image and mask.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Literal, Protocol, get_args

from PIL import Image

from nacre.data.image_io import Mask, open_image, read_mask
from nacre.data.index import Contents, Pair, Problem, build_index, images_by_label, make_index, scan
from nacre.errors import NacreError, counted
from nacre.labels.space import LabelIndex, LabelSpace, white_label
from nacre.utils.config import Config
from nacre.utils.progress import show_progress
from nacre.utils.system import expand_user

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = get_args(Split)

_MAX_SHOWN = 5
_MAX_NAME_LENGTH = 100


class DataConfig(Config):
    """The base of the configs of all data sets."""

    name: str


class Source(Protocol):
    """A data set."""

    @property
    def space(self) -> LabelSpace:
        """The meaning of the values in the masks."""

    def index(self, split: Split) -> LabelIndex:
        """Return the labels of each image; the first call may read all masks."""

    def image(self, split: Split, name: str) -> Image.Image:
        """Open an image as RGB, possibly without decoding it yet."""

    def mask(self, split: Split, name: str) -> Mask:
        """Read the label values of an image's mask, which has the size of the image."""


class FileSource(ABC):
    """A data set in files.

    Attributes:
        known_counts: Published number of images of each split.
        root: Its folder, which also stores the index.
    """

    known_counts: ClassVar[Mapping[Split, int]] = {}
    root: Path

    @property
    @abstractmethod
    def space(self) -> LabelSpace:
        """The meaning of the values in the masks."""

    @abstractmethod
    def list_pairs(self, split: Split) -> Iterable[Pair]:
        """List the pairs of a split without opening a file; called once."""

    def pairs(self, split: Split) -> list[Pair]:
        """Return the pairs of a split in the order of their names."""
        return list(self._by_name[split].values())

    def index(self, split: Split) -> LabelIndex:
        """Return the labels of each image of a split."""
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
        test_images = {pair.image for pair in val.values()}
        both = [pair.name for pair in train.values() if pair.image in test_images]
        if both:
            raise NacreError(
                f"{self.root}: {counted(len(both), 'image is', 'images are')} both for training "
                "and for testing: "
                f"{first_names(both)}; remove them from one of the two lists"
            )
        return {"train": train, "val": val}


def find_root(
    folder: Path, subfolders: Sequence[str], required: Sequence[str], name: str, layout: str
) -> Path:
    """Return the folder of a published data set: the given one or one of its subfolders.

    The folders in `required` identify it. An error shows the layout.
    """
    root = expand_user(folder)
    for candidate in (root, *(root / subfolder for subfolder in subfolders)):
        if all((candidate / each).is_dir() for each in required):
            return candidate
    raise NacreError(
        f"there is no {name} in {root} (no {' and '.join(required)}); the layout must be:\n{layout}"
    )


def first_names(names: Sequence[str]) -> str:
    """Return the first few of many names, and the number of the others."""
    more = f" and {len(names) - _MAX_SHOWN} more" if len(names) > _MAX_SHOWN else ""
    return ", ".join(name[:_MAX_NAME_LENGTH] for name in names[:_MAX_SHOWN]) + more


@dataclass(frozen=True)
class SplitReport:
    """The result of checking one split.

    Attributes:
        split: Its name.
        images: Number of its images.
        expected: Published number of images of the whole data set, if any.
        index: Labels of the images that could be read.
        problems: The problems, at most one for each image.
        turned: Number of images that EXIF data rotate; their masks must match the rotated images.
    """

    split: Split
    images: int
    expected: int | None
    index: LabelIndex
    problems: tuple[Problem, ...]
    turned: int = 0


@dataclass(frozen=True)
class DataReport:
    """The result of checking a data set."""

    root: Path
    space: LabelSpace
    splits: tuple[SplitReport, ...]

    @property
    def is_valid(self) -> bool:
        """True if all files can be used and the ignored label is plausible."""
        return not any(split.problems for split in self.splits) and self.white_label is None

    @property
    def white_label(self) -> int | None:
        """The ignored label if it is probably the only class: the masks are black and white."""
        return white_label(self.space, images_by_label(self.splits[0].index))

    @property
    def empty_classes(self) -> tuple[str, ...]:
        """Names of the classes without a pixel in training."""
        labels = images_by_label(self.splits[0].index)
        return tuple(name for label, name in self.space.names.items() if label not in labels)

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            "root": str(self.root),
            "valid": self.is_valid,
            "empty_classes": list(self.empty_classes),
            "white_label": self.white_label,
            "splits": [_split_as_dict(split, self.space) for split in self.splits],
        }


def check_source(source: FileSource) -> DataReport:
    """Decode all images and masks of a data set and report their labels and problems."""
    splits = tuple(_check_split(source, split) for split in SPLITS)
    return DataReport(source.root, source.space, splits)


def _check_split(source: FileSource, split: Split) -> SplitReport:
    pairs = source.pairs(split)
    with show_progress(f"{source.root.name} {split}") as bar:
        results = list(scan(pairs, bar, decode=True))
    index, problems = make_index(pairs, results, source.space)
    turned = sum(isinstance(result, Contents) and result.is_turned for result in results)
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
            {"kind": problem.kind, "image": problem.name, "text": problem.text}
            for problem in split.problems
        ],
    }
