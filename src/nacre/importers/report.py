"""What an import found, wrote and left out, and why: for people and as plain data."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from nacre.importers.catalog import BACKGROUND, Catalog
from nacre.importers.painting.paint import MISSING, NOT_LABELED, Job, Outcome
from nacre.importers.problems import brief, counted, some


@dataclass(frozen=True)
class LeftOut:
    """A picture that was not imported."""

    name: str
    reason: str
    detail: str


@dataclass(frozen=True)
class ImportReport:
    """The story of an import.

    Attributes:
        export: What was imported.
        target: Where it went.
        format: What it was recognised as.
        pictures: How many were written.
        splits: How many of them each split list names.
        classes: Class names; label 1 is the first.
        pixels: Pixels by label.
        images: Pictures that hold a label, by label.
        ignored: The label of what does not count.
        shapes: Shapes that were read, by kind.
        skipped_shapes: Shapes that were not, by reason.
        empty: Pictures without a shape or mask: all background.
        left_out: Pictures that were not imported.
        turned: Pictures whose annotation was drawn on the unturned pixels.
        doubtful: Turned pictures of which it cannot be told on which pixels they were drawn.
        notes: More that people should know.
    """

    export: Path
    target: Path
    format: str
    pictures: int
    splits: dict[str, int]
    classes: tuple[str, ...]
    pixels: Counter[int]
    images: Counter[int]
    ignored: int
    shapes: dict[str, int]
    skipped_shapes: dict[str, int]
    empty: tuple[str, ...]
    left_out: tuple[LeftOut, ...]
    turned: tuple[str, ...]
    doubtful: tuple[str, ...]
    notes: tuple[str, ...] = field(default=())

    def share(self, label: int) -> float:
        """Return the share of all pixels that have a label."""
        return self.pixels[label] / max(1, self.pixels.total())

    def sentences(self) -> list[str]:
        """Return all that people should know beside the tables."""
        lines = [f"{count:,} {kind}" for kind, count in self.shapes.items()]
        found = [f"shapes: {', '.join(lines)}"] if lines else []
        found += [
            f"not taken: {counted(count, 'shape')}: {why}"
            for why, count in self.skipped_shapes.items()
        ]
        if self.empty:
            found.append(
                f"{counted(len(self.empty), 'picture')} without any shape: all background "
                f"({some(self.empty)})"
            )
        found += _left_out_sentences(self.left_out)
        found += _orientation_sentences(self.turned, self.doubtful)
        unseen = [
            name for label, name in enumerate(self.classes, start=1) if not self.images[label]
        ]
        if unseen:
            found.append(
                f"no pixel has the class {some(unseen, 10)}; --classes chooses what to import"
            )
        return [*found, *self.notes]

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "export": brief(self.export.name),
            "format": self.format,
            "pictures": self.pictures,
            "splits": self.splits,
            "classes": [
                self._class_as_dict(label, name) for label, name in enumerate(self.classes, start=1)
            ],
            "background": round(self.share(BACKGROUND), 6),
            "ignored": round(self.share(self.ignored), 6),
            "shapes": self.shapes,
            "skipped_shapes": self.skipped_shapes,
            "empty": [brief(name) for name in self.empty],
            "left_out": [
                {"picture": brief(one.name), "reason": one.reason, "detail": one.detail}
                for one in self.left_out
            ],
            "turned": [brief(name) for name in self.turned],
            "orientation_unknown": [brief(name) for name in self.doubtful],
            "notes": list(self.notes),
        }

    def _class_as_dict(self, label: int, name: str) -> dict[str, Any]:
        share = round(self.share(label), 6)
        return {"label": label, "name": name, "pictures": self.images[label], "share": share}


def make_report(
    export: Path,
    target: Path,
    title: str,
    job: Job,
    outcomes: Sequence[Outcome],
    lists: Mapping[str, Sequence[str]],
    notes: Sequence[str],
) -> ImportReport:
    """Sum up what became of the pictures."""
    catalog, labels = job.catalog, job.labels
    written = [one for one in outcomes if one.problem is None]

    def named(chosen: Iterable[Outcome]) -> tuple[str, ...]:
        return tuple(catalog.pictures[one.index].name for one in chosen)

    return ImportReport(
        export=export,
        target=target,
        format=title,
        pictures=len(written),
        splits={name: len(files) for name, files in lists.items()},
        classes=labels.names,
        pixels=_total(one.pixels for one in written),
        images=Counter(label for one in written for label in one.pixels),
        ignored=labels.ignored,
        shapes=dict(catalog.shape_counts),
        skipped_shapes=_skipped_shapes(catalog, written),
        empty=named(one for one in written if one.is_empty),
        left_out=_left_out(catalog, outcomes),
        turned=named(one for one in written if one.frame == "stored"),
        doubtful=named(one for one in written if not one.is_sure and one.frame == "upright"),
        notes=(*catalog.notes, *notes),
    )


def _total(counts: Iterable[Mapping[int, int]]) -> Counter[int]:
    total: Counter[int] = Counter()
    for one in counts:
        total.update(one)
    return total


def _skipped_shapes(catalog: Catalog, written: Sequence[Outcome]) -> dict[str, int]:
    """Return how many shapes were not painted, by reason."""
    skipped = Counter(catalog.skipped_shapes)
    uncovered = sum(one.uncovered for one in written)
    if uncovered:
        skipped["covers the centre of no pixel: too small, or outside the picture"] += uncovered
    return dict(skipped)


def _left_out(catalog: Catalog, outcomes: Sequence[Outcome]) -> tuple[LeftOut, ...]:
    return tuple(
        LeftOut(catalog.pictures[one.index].name, one.problem.reason, one.problem.detail)
        for one in outcomes
        if one.problem is not None
    )


def _left_out_sentences(left_out: Sequence[LeftOut]) -> list[str]:
    hints = {
        MISSING: "; --images FOLDER says where pictures are",
        NOT_LABELED: "; --unlabeled background takes such pictures as all background",
    }
    by_reason: dict[str, list[LeftOut]] = {}
    for one in left_out:
        by_reason.setdefault(one.reason, []).append(one)
    return [
        f"left out: {counted(len(these), 'picture')}: {reason} "
        f"({some((_describe(one) for one in these), 3)}){hints.get(reason, '')}"
        for reason, these in by_reason.items()
    ]


def _describe(one: LeftOut) -> str:
    return f"{brief(one.name)}: {one.detail}" if one.detail else one.name


def _orientation_sentences(turned: Sequence[str], doubtful: Sequence[str]) -> list[str]:
    found = []
    if turned:
        found.append(
            f"orientation: {counted(len(turned), 'picture')} were annotated on the pixels as "
            f"stored, before the camera's turn; their masks are turned with them ({some(turned)})"
        )
    if doubtful:
        found.append(
            f"orientation: {counted(len(doubtful), 'picture')} are turned by the camera, and their "
            "size does not tell whether that was done before annotating; taken as drawn on the "
            f"upright picture, so look at them ({some(doubtful)})"
        )
    return found
