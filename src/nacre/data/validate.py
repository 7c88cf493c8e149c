"""Checks a data folder before anything is trained: what is there, and all that is wrong with it.

Every mask is counted and every image decoded, by all cores. Nothing is written.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nacre.data.index import Problem, images_by_label, index_of, scan
from nacre.data.source import SPLITS, FileSource, Split
from nacre.labels.space import LabelIndex, LabelSpace
from nacre.utils.progress import show_progress


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
