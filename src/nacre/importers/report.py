"""The report of an import: sentences, plain data, and a contact sheet."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from nacre.data.image_io import load, open_image
from nacre.importers.folder import Labels
from nacre.importers.paint import MISSING, NOT_LABELED, Outcome
from nacre.importers.problems import Unusable, brief, counted, some
from nacre.importers.reading import Reading

SHEET = "contact-sheet.jpg"
"""Some images under their masks, to check that they belong together."""

_UNCOVERED = "covers the center of no pixel: too small, or outside the image"
_HINTS = {
    MISSING: "; --images FOLDER says where the images are",
    NOT_LABELED: "; --unlabeled background takes them as all background",
}

_MAX_TILES = 24
_MAX_LEGEND = 60
_MAX_TEXT_LENGTH = 40
_COLUMNS = 4
_TILE = 280
_LINE = 22
_GAP = 12
_PAPER, _INK = (250, 250, 248), (60, 60, 68)
_OPACITY = 0.55


@dataclass(frozen=True)
class ImportReport:
    """The result of an import.

    Attributes:
        export: The path of the export.
        target: The written folder.
        format: The title of the format.
        reading: The content of the export.
        labels: The labels in the masks.
        outcomes: The result for each image.
        splits: Number of images in each split list.
    """

    export: Path
    target: Path
    format: str
    reading: Reading
    labels: Labels
    outcomes: Sequence[Outcome]
    splits: dict[str, int]

    @cached_property
    def written(self) -> list[Outcome]:
        """The images that were written."""
        return [outcome for outcome in self.outcomes if outcome.problem is None]

    @cached_property
    def pixels(self) -> Counter[int]:
        """Number of pixels by label."""
        total: Counter[int] = Counter()
        for outcome in self.written:
            total.update(outcome.pixels)
        return total

    @cached_property
    def images(self) -> Counter[int]:
        """Number of images by label."""
        return Counter(label for outcome in self.written for label in outcome.pixels)

    @property
    def shapes(self) -> dict[str, int]:
        """Number of shapes by kind."""
        return dict(self.reading.shape_counts)

    @property
    def skipped_shapes(self) -> dict[str, int]:
        """Number of skipped shapes by reason."""
        uncovered = sum(outcome.num_uncovered for outcome in self.written)
        return dict(+Counter(self.reading.skipped_shapes | {_UNCOVERED: uncovered}))

    @property
    def empty(self) -> list[str]:
        """Images without a shape or mask: all background."""
        return [
            outcome.name
            for outcome in self.written
            if not outcome.num_shapes and not outcome.has_mask
        ]

    @property
    def turned(self) -> list[str]:
        """Images that were annotated on the stored pixels."""
        return [outcome.name for outcome in self.written if outcome.frame == "stored"]

    @property
    def doubtful(self) -> list[str]:
        """Rotated images that were annotated on the upright or on the stored pixels."""
        return [outcome.name for outcome in self.written if outcome.frame == "unknown"]

    @property
    def left_out(self) -> list[tuple[str, Unusable]]:
        """Images that were not imported, and why."""
        return [(outcome.name, outcome.problem) for outcome in self.outcomes if outcome.problem]

    def fraction(self, label: int) -> float:
        """Return the fraction of all pixels with a label."""
        return self.pixels[label] / max(1, self.pixels.total())

    def sentences(self) -> list[str]:
        """Return what the tables do not show."""
        return [*self._shape_sentences(), *self._image_sentences(), *self.reading.notes]

    def _shape_sentences(self) -> Iterator[str]:
        # The kinds are plurals: "boxes", "polygons", "masks (RLE)".
        singular = {kind: re.sub(r"(x)es\b|s\b", r"\1", kind) for kind in self.shapes}
        counts = [counted(count, singular[kind], kind) for kind, count in self.shapes.items()]
        if counts:
            yield f"shapes: {', '.join(counts)}"
        for reason, count in self.skipped_shapes.items():
            yield f"skipped: {counted(count, 'shape')}: {reason}"

    def _image_sentences(self) -> Iterator[str]:
        if self.empty:
            count = counted(len(self.empty), "image")
            yield f"{count} without shapes: all background ({some(self.empty)})"
        by_reason: dict[str, list[str]] = defaultdict(list)
        for name, problem in self.left_out:
            detail = f"{brief(name)}: {problem.detail}" if problem.detail else name
            by_reason[problem.reason].append(detail)
        for reason, details in by_reason.items():
            count, hint = counted(len(details), "image"), _HINTS.get(reason, "")
            yield f"left out: {count}: {reason} ({some(details, 3)}){hint}"
        if self.turned:
            yield (
                f"orientation: {counted(len(self.turned), 'image')} annotated before rotation; the "
                f"masks are rotated, too ({some(self.turned)})"
            )
        if self.doubtful:
            yield (
                f"orientation: {counted(len(self.doubtful), 'image')} rotated by EXIF data, and "
                "the size does not show whether that was before or after annotation; the masks are "
                f"those of the upright images, so look at them ({some(self.doubtful)})"
            )
        names = enumerate(self.labels.names, start=1)
        unused = [name for label, name in names if not self.images[label]]
        if unused:
            yield f"no pixel has the class {some(unused, 10)}; --classes chooses what to import"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "export": brief(self.export.name),
            "format": self.format,
            "images": len(self.written),
            "splits": self.splits,
            "classes": [
                {"label": label, "name": name, "images": self.images[label]}
                | {"share": round(self.fraction(label), 6)}
                for label, name in enumerate(self.labels.names, start=1)
            ],
            "background": round(self.fraction(0), 6),
            "ignored": round(self.fraction(self.labels.ignored), 6),
            "shapes": self.shapes,
            "skipped_shapes": self.skipped_shapes,
            "empty": [brief(name) for name in self.empty],
            "left_out": [
                {"image": brief(name), "reason": problem.reason, "detail": problem.detail}
                for name, problem in self.left_out
            ],
            "turned": [brief(name) for name in self.turned],
            "orientation_unknown": [brief(name) for name in self.doubtful],
            "notes": self.reading.notes,
        }


def draw_sheet(folder: Path, report: ImportReport) -> Image.Image:
    """Draw some images under their masks, and a legend of the classes."""
    step = -(-len(report.written) // _MAX_TILES)
    files = [outcome.file for outcome in report.written[::step]]
    colors = np.full((1 << 16, 3), 255, np.uint8)
    colors[: len(report.labels.colors)] = report.labels.colors
    names = dict(enumerate(report.labels.names, start=1)) | {report.labels.ignored: "(ignored)"}
    legend = [label for label in names if report.images[label]][:_MAX_LEGEND]
    row = _TILE + _LINE + _GAP
    below = _GAP + -(-len(files) // _COLUMNS) * row
    height = below + -(-len(legend) // _COLUMNS) * _LINE + _GAP
    sheet = Image.new("RGB", (_COLUMNS * (_TILE + _GAP) + _GAP, height), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    for i, file in enumerate(files):
        x, y = _GAP + i % _COLUMNS * (_TILE + _GAP), _GAP + i // _COLUMNS * row
        sheet.paste(_tile(folder, file, colors), (x, y))
        pen.text((x, y + _TILE + 2), file[:_MAX_TEXT_LENGTH], _INK, font)
    for i, label in enumerate(legend):
        x, y = _GAP + i % _COLUMNS * (_TILE + _GAP), below + i // _COLUMNS * _LINE
        pen.rectangle((x, y + 2, x + 13, y + 15), tuple(colors[label].tolist()), _INK)
        pen.text((x + 20, y), names[label][:_MAX_TEXT_LENGTH], _INK, font)
    return sheet


def _tile(folder: Path, file: str, colors: np.ndarray[Any, np.dtype[np.uint8]]) -> Image.Image:
    """Return a small image with its labels in color over it."""
    image = open_image(folder / "images" / file)
    image.draft("RGB", (2 * _TILE, 2 * _TILE))
    load(image)
    scale = _TILE / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    image = image.resize(size, Image.Resampling.BOX)
    with Image.open((folder / "masks" / file).with_suffix(".png")) as mask:
        labels = np.asarray(mask.resize(size, Image.Resampling.NEAREST))
    colored = Image.blend(image, Image.fromarray(colors[labels]), _OPACITY)
    return Image.composite(colored, image, Image.fromarray(labels != 0))
