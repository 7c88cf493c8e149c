"""A report of what an import found, wrote and left out, and why: for people and as plain data."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from nacre.importers.labels import Labels
from nacre.importers.paint import MISSING, NOT_LABELED, Outcome
from nacre.importers.problems import brief, counted, some
from nacre.importers.reading import Reading

_HINTS = {
    MISSING: "; --images FOLDER says where images are",
    NOT_LABELED: "; --unlabeled background takes such images as all background",
}


@dataclass(frozen=True)
class LeftOut:
    """An image that was not imported."""

    name: str
    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{brief(self.name)}: {self.detail}" if self.detail else self.name


@dataclass(frozen=True)
class ImportReport:
    """The story of an import.

    Attributes:
        export: What was imported.
        target: Where it went.
        format: What it was recognized as.
        num_images: How many were written.
        splits: How many of them each split list names.
        classes: Class names; label 1 is the first.
        pixels: Pixels by label.
        images: Images that hold a label, by label.
        ignored: The label of what does not count.
        shapes: Shapes that were read, by kind.
        skipped_shapes: Shapes that were not, by reason.
        empty: Images without a shape or mask: all background.
        left_out: Images that were not imported.
        turned: Images whose annotation was drawn on the unturned pixels.
        doubtful: Turned images of which it cannot be told on which pixels they were drawn.
        notes: More that people should know.
    """

    export: Path
    target: Path
    format: str
    num_images: int
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
    notes: tuple[str, ...] = ()

    def share(self, label: int) -> float:
        """Return the share of all pixels that have a label."""
        return self.pixels[label] / max(1, self.pixels.total())

    def sentences(self) -> list[str]:
        """Return all that people should know beside the tables."""
        return [*self._shape_sentences(), *self._image_sentences(), *self.notes]

    def _shape_sentences(self) -> Iterator[str]:
        # The kinds are plurals: "boxes", "polygons", "masks (RLE)".
        ones = {kind: re.sub(r"(x)es\b|s\b", r"\1", kind) for kind in self.shapes}
        lines = [counted(count, ones[kind], kind) for kind, count in self.shapes.items()]
        if lines:
            yield f"shapes: {', '.join(lines)}"
        for why, count in self.skipped_shapes.items():
            yield f"not taken: {counted(count, 'shape')}: {why}"

    def _image_sentences(self) -> Iterator[str]:
        if self.empty:
            count = counted(len(self.empty), "image")
            yield f"{count} without any shape: all background ({some(self.empty)})"
        by_reason: dict[str, list[LeftOut]] = defaultdict(list)
        for one in self.left_out:
            by_reason[one.reason].append(one)
        for reason, these in by_reason.items():
            count, hint = counted(len(these), "image"), _HINTS.get(reason, "")
            yield f"left out: {count}: {reason} ({some(map(str, these), 3)}){hint}"
        if self.turned:
            yield (
                f"orientation: {counted(len(self.turned), 'image')} annotated on the pixels as "
                f"stored, before the camera's turn; masks turn with them ({some(self.turned)})"
            )
        if self.doubtful:
            yield (
                f"orientation: {counted(len(self.doubtful), 'image')} turned by the camera, and "
                "the size does not tell whether that was done before annotating; taken as drawn on "
                f"the upright image, so look at them ({some(self.doubtful)})"
            )
        names = enumerate(self.classes, start=1)
        unseen = [name for label, name in names if not self.images[label]]
        if unseen:
            yield f"no pixel has the class {some(unseen, 10)}; --classes chooses what to import"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "export": brief(self.export.name),
            "format": self.format,
            "images": self.num_images,
            "splits": self.splits,
            "classes": [
                {"label": label, "name": name, "images": self.images[label]}
                | {"share": round(self.share(label), 6)}
                for label, name in enumerate(self.classes, start=1)
            ],
            "background": round(self.share(0), 6),
            "ignored": round(self.share(self.ignored), 6),
            "shapes": self.shapes,
            "skipped_shapes": self.skipped_shapes,
            "empty": [brief(name) for name in self.empty],
            "left_out": [
                {"image": brief(one.name), "reason": one.reason, "detail": one.detail}
                for one in self.left_out
            ],
            "turned": [brief(name) for name in self.turned],
            "orientation_unknown": [brief(name) for name in self.doubtful],
            "notes": list(self.notes),
        }


def make_report(
    paths: tuple[Path, Path],
    title: str,
    reading: Reading,
    labels: Labels,
    outcomes: Sequence[Outcome],
    lists: Mapping[str, Sequence[str]],
) -> ImportReport:
    """Sum up what became of the images; the paths are those of export and target."""
    written = [one for one in outcomes if one.problem is None]
    pixels: Counter[int] = Counter()
    for one in written:
        pixels.update(one.pixels)
    skipped = Counter(reading.skipped_shapes)
    skipped["covers the center of no pixel: too small, or outside the image"] += sum(
        one.uncovered for one in written
    )

    def named(chosen: Iterable[Outcome]) -> tuple[str, ...]:
        return tuple(reading.images[one.index].name for one in chosen)

    return ImportReport(
        *paths,
        format=title,
        num_images=len(written),
        splits={name: len(files) for name, files in lists.items()},
        classes=labels.names,
        pixels=pixels,
        images=Counter(label for one in written for label in one.pixels),
        ignored=labels.ignored,
        shapes=dict(reading.shape_counts),
        skipped_shapes=dict(+skipped),
        empty=named(one for one in written if one.is_empty),
        left_out=tuple(
            LeftOut(reading.images[one.index].name, one.problem.reason, one.problem.detail)
            for one in outcomes
            if one.problem is not None
        ),
        turned=named(one for one in written if one.frame == "stored"),
        doubtful=named(one for one in written if not one.is_sure and one.frame == "upright"),
        notes=tuple(reading.notes),
    )
