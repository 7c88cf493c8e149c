"""Checks a data folder before anything is trained: what is there, and all that is wrong with it.

Every mask is counted and every picture decoded, by all cores. Nothing is written.
"""

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, get_args

from nacre.data.index.build import images_by_label, pixels_by_label, unknown_labels
from nacre.data.index.scan import Pair, Problem, ProblemKind, Progress, Record, scan, show_progress
from nacre.data.source import Index, Split
from nacre.scenarios.classes import LabelSpace

if TYPE_CHECKING:
    from rich.console import Group

_SPLITS: tuple[Split, ...] = ("train", "val")
_SHOWN = 10


class FileSource(Protocol):
    """A data set that lies in files."""

    root: Path

    @property
    def space(self) -> LabelSpace:
        """What the values in the masks mean."""

    def pairs(self, split: Split) -> list[Pair]:
        """Return name, picture and mask of the images of a split."""


@dataclass(frozen=True)
class SplitReport:
    """What one split holds.

    Attributes:
        split: Its name.
        images: How many images it names.
        known: How many it has where the data set is whole; None if nobody can know.
        index: Labels and pixels of the images that could be read.
        problems: What is wrong, one at most for an image.
    """

    split: Split
    images: int
    known: int | None
    index: Index
    problems: tuple[Problem, ...]

    def count(self, kind: ProblemKind) -> int:
        """Count the problems of a kind."""
        return sum(problem.kind == kind for problem in self.problems)


@dataclass(frozen=True)
class DataReport:
    """What a data folder holds."""

    root: Path
    space: LabelSpace
    splits: tuple[SplitReport, ...]

    @property
    def sound(self) -> bool:
        """True if every file that a split names can be used."""
        return not any(split.problems for split in self.splits)

    @property
    def whole(self) -> bool:
        """True if no split has another number of images than is known of the data set."""
        return all(split.known in (None, split.images) for split in self.splits)

    @property
    def empty_classes(self) -> tuple[str, ...]:
        """Names of the classes without a pixel in training."""
        there = images_by_label(self.splits[0].index)
        return tuple(name for label, name in self.space.names.items() if label not in there)

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "root": str(self.root),
            "sound": self.sound,
            "whole": self.whole,
            "empty_classes": list(self.empty_classes),
            "splits": [_split_as_dict(split, self.space) for split in self.splits],
        }


def check_source(
    source: FileSource, *, workers: int | None = None, progress: Progress | None = None
) -> DataReport:
    """Read every file of a data set and report what is there and what is wrong.

    Args:
        source: The data set; `known_counts` of it, if it has that, says how many images a
            whole one has.
        workers: How many processes; all cores by default.
        progress: Told how far the pass has come; a bar on the terminal by default.
    """
    known: Mapping[Split, int] = getattr(source, "known_counts", {})
    reports = []
    for split in _SPLITS:
        pairs = sorted(source.pairs(split), key=lambda pair: pair.name)
        if progress is None:
            with show_progress(f"{source.root.name} {split}") as bar:
                index, problems = _read(pairs, source.space, workers, bar)
        else:
            index, problems = _read(pairs, source.space, workers, progress)
        reports.append(SplitReport(split, len(pairs), known.get(split), index, problems))
    return DataReport(source.root, source.space, tuple(reports))


def render(report: DataReport) -> "Group":
    """Return the report as something for rich to print."""
    from rich.console import Group
    from rich.text import Text

    # As text and not as markup: a file or a class may have brackets in its name.
    sentences = (Text(sentence) for sentence in _sentences(report))
    return Group(_files_table(report), _classes_table(report), *sentences)


def _read(
    pairs: list[Pair], space: LabelSpace, workers: int | None, progress: Progress
) -> tuple[Index, tuple[Problem, ...]]:
    read: dict[str, Record] = {}
    problems: dict[str, Problem] = {}
    results = scan(pairs, workers=workers, progress=progress, decode=True)
    for pair, result in zip(pairs, results, strict=True):
        if isinstance(result, Record):
            read[pair.name] = result
        else:
            problems[pair.name] = result
    problems |= unknown_labels(pairs, read, space)
    index = Index(
        tuple(read),
        tuple(frozenset(record.pixels) for record in read.values()),
        tuple(record.pixels for record in read.values()),
    )
    return index, tuple(problems[name] for name in sorted(problems))


def _split_as_dict(split: SplitReport, space: LabelSpace) -> dict[str, Any]:
    images = images_by_label(split.index)
    return {
        "split": split.split,
        "images": split.images,
        "known": split.known,
        "images_by_class": {name: images[label] for label, name in space.names.items()},
        "problems": [
            {"kind": one.kind, "image": one.name, "text": one.text} for one in split.problems
        ],
    }


def _files_table(report: DataReport) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=f"files of {escape(str(report.root))}", title_justify="left")
    table.add_column("")
    for split in report.splits:
        table.add_column(split.split, justify="right")
    table.add_row("images", *(f"{split.images:,}" for split in report.splits))
    if any(split.known is not None for split in report.splits):
        known = (f"{split.known:,}" if split.known is not None else "" for split in report.splits)
        table.add_row("in the whole data set", *known)
    for kind in get_args(ProblemKind):
        counts = [split.count(kind) for split in report.splits]
        style = "red" if any(counts) else "dim"
        table.add_row(kind, *(f"{count:,}" for count in counts), style=style)
    return table


def _classes_table(report: DataReport) -> Any:
    from rich.markup import escape
    from rich.table import Table

    table = Table(title="classes", title_justify="left")
    table.add_column("label", justify="right")
    table.add_column("name")
    counts = [images_by_label(split.index) for split in report.splits]
    pixels = [pixels_by_label(split.index) or Counter() for split in report.splits]
    for split in report.splits:
        table.add_column(f"{split.split} images", justify="right")
        table.add_column("pixels", justify="right")
    for label, name in _all_labels(report.space):
        cells = []
        for count, share in zip(counts, pixels, strict=True):
            cells += [f"{count[label]:,}", f"{share[label] / max(1, share.total()):.2%}"]
        table.add_row(str(label), escape(name), *cells)
    return table


def _all_labels(space: LabelSpace) -> Iterator[tuple[int, str]]:
    if space.background is not None:
        yield space.background, "(background)"
    yield from space.names.items()
    if space.ignored is not None:
        yield space.ignored, "(ignored)"


def _sentences(report: DataReport) -> Iterator[str]:
    """Yield what a person should know, the verdict last."""
    for split in report.splits:
        for problem in split.problems[:_SHOWN]:
            yield f"{split.split}: {problem.text}"
        if len(split.problems) > _SHOWN:
            yield f"{split.split}: and {len(split.problems) - _SHOWN:,} more"
    for split in report.splits:
        if split.known not in (None, split.images):
            yield (
                f"{split.split} has {split.images:,} images, the whole data set has "
                f"{split.known:,}: results on it cannot be compared with published ones"
            )
    if report.empty_classes:
        yield f"no pixel in training: {', '.join(report.empty_classes)}"
    faulty = sum(len(split.problems) for split in report.splits)
    yield "every file can be used" if report.sound else f"{faulty:,} images cannot be used"
