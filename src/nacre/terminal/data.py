"""What a data folder holds and what is wrong with it, for the terminal."""

from collections import Counter
from collections.abc import Iterator
from typing import Any, get_args

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nacre.data.index import ProblemKind, images_by_label, pixels_by_label
from nacre.data.validate import _SHOWN, DataReport
from nacre.labels.space import LabelSpace


def render(report: DataReport) -> Group:
    """Return the report as something for rich to print."""
    sentences = (Text(sentence) for sentence in _sentences(report))
    return Group(_files_table(report), _classes_table(report), *sentences)


def _files_table(report: DataReport) -> Any:
    table = Table(title=f"files of {report.root}", title_justify="left")
    table.add_column("")
    for split in report.splits:
        table.add_column(split.split, justify="right")
    table.add_row("images", *(f"{split.images:,}" for split in report.splits))
    if any(split.expected is not None for split in report.splits):
        known = (
            f"{split.expected:,}" if split.expected is not None else "" for split in report.splits
        )
        table.add_row("in the whole data set", *known)
    for kind in get_args(ProblemKind):
        counts = [split.count(kind) for split in report.splits]
        style = "red" if any(counts) else "dim"
        table.add_row(kind, *(f"{count:,}" for count in counts), style=style)
    return table


def _classes_table(report: DataReport) -> Any:
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
        table.add_row(str(label), name, *cells)
    return table


def _all_labels(space: LabelSpace) -> Iterator[tuple[int, str]]:
    if space.background is not None:
        yield space.background, "(background)"
    yield from space.names.items()
    if space.ignored is not None:
        yield space.ignored, "(ignored)"


def _problems(report: DataReport) -> Iterator[str]:
    for split in report.splits:
        for problem in split.problems[:_SHOWN]:
            yield f"{split.split}: {problem.text}"
        if len(split.problems) > _SHOWN:
            yield f"{split.split}: and {len(split.problems) - _SHOWN:,} more"


def _sentences(report: DataReport) -> Iterator[str]:
    """Yield what a person should know, the verdict last."""
    yield from _problems(report)
    for split in report.splits:
        if split.turned:
            yield (
                f"{split.split}: EXIF data turn {split.turned:,} pictures; their masks must be "
                "drawn on the turned pictures, as programs show them"
            )
    for split in report.splits:
        if split.expected not in (None, split.images):
            yield (
                f"{split.split} has {split.images:,} images, the whole data set has "
                f"{split.expected:,}: results on it cannot be compared with published ones"
            )
    if report.empty_classes:
        yield f"no pixel in training: {', '.join(report.empty_classes)}"
    if report.white_label is not None:
        (name,) = report.empty_classes
        yield (
            f"the masks hold {report.space.background} and {report.white_label} only, and "
            f"{report.white_label} does not count: no pixel is {name}; if {report.white_label} is "
            f"{name}, write `classes: {{{report.white_label}: {name}}}` in classes.yaml"
        )
    faulty = sum(len(split.problems) for split in report.splits)
    if report.is_valid:
        yield "every file can be used"
    elif faulty:
        yield f"{faulty:,} images cannot be used"
