"""A contact sheet: some images with their masks over them, to see that they belong together."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from nacre.data.image_io import load, open_image
from nacre.importers.problems import counted
from nacre.importers.reading import Color
from nacre.importers.report import ImportReport

SHEET = "contact-sheet.jpg"

_ACROSS = 4
_MOST = 24
_SIDE = 280
_GAP = 12
_LINE = 22
_PAPER, _INK = (250, 250, 248), (60, 60, 68)
_COVER = 0.55
_LEGEND = 60
_LONGEST = 40


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
