"""The report of an import, in sentences, as plain data and as a sheet of images."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
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
from nacre.importers.reading import Color, Reading

SHEET = "contact-sheet.jpg"
"""Some images with their masks over them, to see that they belong together."""

_UNCOVERED = "covers the center of no pixel: too small, or outside the image"
_HINTS = {
    MISSING: "; --images FOLDER says where images are",
    NOT_LABELED: "; --unlabeled background takes such images as all background",
}

_ACROSS = 4
_MOST = 24
_SIDE = 280
_GAP = 12
_LINE = 22
_PAPER, _INK = (250, 250, 248), (60, 60, 68)
_COVER = 0.55
_LEGEND = 60
_LONGEST = 40


@dataclass(frozen=True)
class ImportReport:
    """The story of an import.

    Attributes:
        export: What was imported.
        target: Where it went.
        format: What it was recognized as.
        reading: What was found in it.
        labels: What the values in the masks mean.
        outcomes: What became of each image.
        splits: How many images each split list names.
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
        return [one for one in self.outcomes if one.problem is None]

    @cached_property
    def pixels(self) -> Counter[int]:
        """Pixels by label."""
        total: Counter[int] = Counter()
        for one in self.written:
            total.update(one.pixels)
        return total

    @cached_property
    def images(self) -> Counter[int]:
        """Images that hold a label, by label."""
        return Counter(label for one in self.written for label in one.pixels)

    @property
    def shapes(self) -> dict[str, int]:
        """Shapes that were read, by kind."""
        return dict(self.reading.shape_counts)

    @property
    def skipped_shapes(self) -> dict[str, int]:
        """Shapes that were not, by reason."""
        uncovered = sum(one.uncovered for one in self.written)
        return dict(+Counter(self.reading.skipped_shapes | {_UNCOVERED: uncovered}))

    @property
    def empty(self) -> list[str]:
        """Images without a shape or mask: all background."""
        return [one.name for one in self.written if not (one.num_shapes or one.has_mask)]

    @property
    def turned(self) -> list[str]:
        """Images whose annotation was drawn on the unturned pixels."""
        return [one.name for one in self.written if one.frame == "stored"]

    @property
    def doubtful(self) -> list[str]:
        """Turned images of which it cannot be told on which pixels they were drawn."""
        return [one.name for one in self.written if one.frame == "doubtful"]

    @property
    def left_out(self) -> list[tuple[str, Unusable]]:
        """Images that were not imported, and why."""
        return [(one.name, one.problem) for one in self.outcomes if one.problem]

    def share(self, label: int) -> float:
        """Return the share of all pixels that have a label."""
        return self.pixels[label] / max(1, self.pixels.total())

    def sentences(self) -> list[str]:
        """Return all that people should know beside the tables."""
        return [*self._shape_sentences(), *self._image_sentences(), *self.reading.notes]

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
        by_reason: dict[str, list[str]] = defaultdict(list)
        for name, why in self.left_out:
            by_reason[why.reason].append(f"{brief(name)}: {why.detail}" if why.detail else name)
        for reason, these in by_reason.items():
            count, hint = counted(len(these), "image"), _HINTS.get(reason, "")
            yield f"left out: {count}: {reason} ({some(these, 3)}){hint}"
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
        names = enumerate(self.labels.names, start=1)
        unseen = [name for label, name in names if not self.images[label]]
        if unseen:
            yield f"no pixel has the class {some(unseen, 10)}; --classes chooses what to import"

    def as_dict(self) -> dict[str, Any]:
        """Return the report as plain data."""
        return {
            "export": brief(self.export.name),
            "format": self.format,
            "images": len(self.written),
            "splits": self.splits,
            "classes": [
                {"label": label, "name": name, "images": self.images[label]}
                | {"share": round(self.share(label), 6)}
                for label, name in enumerate(self.labels.names, start=1)
            ],
            "background": round(self.share(0), 6),
            "ignored": round(self.share(self.labels.ignored), 6),
            "shapes": self.shapes,
            "skipped_shapes": self.skipped_shapes,
            "empty": [brief(name) for name in self.empty],
            "left_out": [
                {"image": brief(name), "reason": why.reason, "detail": why.detail}
                for name, why in self.left_out
            ],
            "turned": [brief(name) for name in self.turned],
            "orientation_unknown": [brief(name) for name in self.doubtful],
            "notes": self.reading.notes,
        }


def choose(pixels: Sequence[Mapping[int, int]], most: int = _MOST) -> list[int]:
    """Choose images so that every label is seen if possible, then evenly over the rest."""
    holders: dict[int, list[int]] = {}
    for i, labels in enumerate(pixels):
        for label in labels:
            holders.setdefault(label, []).append(i)
    chosen: list[int] = []
    for label in sorted(holders, key=lambda one: len(holders[one])):
        if len(chosen) < most and not set(chosen) & set(holders[label]):
            chosen.append(max(holders[label], key=lambda i: pixels[i][label]))
    evenly = range(0, len(pixels), max(1, len(pixels) // most))
    rest = dict.fromkeys(i for i in (*evenly, *range(len(pixels))) if i not in chosen)
    return sorted([*chosen, *list(rest)[: most - len(chosen)]])


def draw_sheet(folder: Path, report: ImportReport) -> Image.Image:
    """Draw images under their masks, and the colors of the classes with their shares."""
    written, labels = report.written, report.labels
    shown = [written[i].file for i in choose([one.pixels for one in written])]
    colors = {label: labels.colors[label] for label in range(1, len(labels.colors))}
    names = dict(enumerate(labels.names, start=1)) | {labels.ignored: "(ignored)"}
    legend = [label for label in names if report.images[label]][:_LEGEND]
    top, row = 2 * _GAP + _LINE, _SIDE + _LINE + _GAP
    below = top + -(-len(shown) // _ACROSS) * row
    height = below + -(-len(legend) // _ACROSS) * _LINE + _GAP
    sheet = Image.new("RGB", (_ACROSS * (_SIDE + _GAP) + _GAP, height), _PAPER)
    pen, font = ImageDraw.Draw(sheet), ImageFont.load_default(13)
    title = f"{report.format}: {len(shown)} of {counted(len(written), 'image')}"
    pen.text((_GAP, _GAP), title, _INK, ImageFont.load_default(18))
    for i, image in enumerate(shown):
        x, y = _GAP + i % _ACROSS * (_SIDE + _GAP), top + i // _ACROSS * row
        tile = _tile(
            folder / "images" / image, (folder / "masks" / image).with_suffix(".png"), colors
        )
        sheet.paste(tile, (x + (_SIDE - tile.width) // 2, y + (_SIDE - tile.height) // 2))
        pen.text((x, y + _SIDE + 2), _short(image), _INK, font)
    for i, label in enumerate(legend):
        x, y = _GAP + i % _ACROSS * (_SIDE + _GAP), below + i // _ACROSS * _LINE
        pen.rectangle((x, y + 2, x + 13, y + 15), colors.get(label, (255, 255, 255)), _INK)
        pen.text((x + 20, y), f"{report.share(label):.1%} {_short(names[label])}", _INK, font)
    return sheet


def _tile(image: Path, mask: Path, colors: Mapping[int, Color]) -> Image.Image:
    """Return one small image, its labels in color over it."""
    shown = open_image(image)
    shown.draft("RGB", (2 * _SIDE, 2 * _SIDE))
    load(shown)
    scale = _SIDE / max(shown.size)
    size = (max(1, round(shown.width * scale)), max(1, round(shown.height * scale)))
    pixels = np.asarray(shown.resize(size, Image.Resampling.BOX), np.float32)
    with Image.open(mask) as stored:
        labels = np.asarray(stored.resize(size, Image.Resampling.NEAREST))
    table = np.full((1 << 16, 3), 255, np.float32)
    table[list(colors)] = list(colors.values())
    share = np.where(labels == 0, 0.0, _COVER)[:, :, None]
    return Image.fromarray((pixels * (1 - share) + table[labels] * share).astype(np.uint8))


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
