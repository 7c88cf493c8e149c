"""A contact sheet: some images with their masks over them, to see that they belong together."""

from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from nacre.data.image_io import load, open_image
from nacre.importers.reading import Color

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont

_ACROSS = 4
_MOST = 24
_SIDE = 280
_GAP = 12
_LINE = 22
_PAPER, _INK, _SOFT = (250, 250, 248), (25, 25, 30), (95, 95, 105)
_COVER = 0.55
_LEGEND = 60


def choose(pixels: Sequence[Mapping[int, int]], most: int = _MOST) -> list[int]:
    """Choose images so that every label is seen if possible, then evenly over the rest.

    Args:
        pixels: Pixels by label of each image.
        most: How many at most.
    """
    holders: dict[int, list[int]] = {}
    for i, labels in enumerate(pixels):
        for label in labels:
            holders.setdefault(label, []).append(i)
    chosen: list[int] = []
    for label in sorted(holders, key=lambda one: len(holders[one])):
        if len(chosen) < most and not set(chosen) & set(holders[label]):
            chosen.append(max(holders[label], key=lambda i: pixels[i][label]))
    step = max(1, len(pixels) // most)
    for i in [*range(0, len(pixels), step), *range(len(pixels))]:
        if len(chosen) >= min(most, len(pixels)):
            break
        if i not in chosen:
            chosen.append(i)
    return sorted(chosen)


def draw_sheet(
    pairs: Sequence[tuple[str, Path, Path]],
    colors: Sequence[Color],
    legend: Sequence[tuple[str, Color]],
    title: str,
) -> Image.Image:
    """Draw images under their masks.

    Args:
        pairs: Name, image and mask.
        colors: Colour by label; what has none is white.
        legend: Names and colors.
        title: What stands above.
    """
    across = min(_ACROSS, max(1, len(pairs)))
    width = max(across * (_SIDE + _GAP) + _GAP, 2 * (_SIDE + _GAP) + _GAP)
    rows = -(-len(pairs) // across)
    entries = _flow(legend[:_LEGEND], width)
    top = 2 * _GAP + _LINE
    height = top + rows * (_SIDE + _LINE + _GAP) + (len(entries) + 1) * _LINE
    sheet = Image.new("RGB", (width, height), _PAPER)
    pen = ImageDraw.Draw(sheet)
    pen.text((_GAP, _GAP), title, _INK, _font(18))
    for i, (name, image, mask) in enumerate(pairs):
        x, y = _GAP + i % across * (_SIDE + _GAP), top + i // across * (_SIDE + _LINE + _GAP)
        tile = _tile(image, mask, colors)
        sheet.paste(tile, (x + (_SIDE - tile.width) // 2, y + (_SIDE - tile.height) // 2))
        pen.text((x, y + _SIDE + 2), _fitting(name, _SIDE), _SOFT, _font(12))
    _draw_legend(pen, entries, height)
    return sheet


def _draw_legend(
    pen: ImageDraw.ImageDraw, entries: Sequence[list[tuple[int, str, Color]]], height: int
) -> None:
    for row, line in enumerate(entries):
        y = height - (len(entries) - row) * _LINE - _GAP // 2
        for x, name, color in line:
            pen.rectangle((x, y + 2, x + 13, y + 15), fill=color, outline=_SOFT)
            pen.text((x + 20, y), name, _SOFT, _font(13))


def _tile(image: Path, mask: Path, colors: Sequence[Color]) -> Image.Image:
    """Return one small image, its labels in color over it."""
    shown = open_image(image)
    shown.draft("RGB", (2 * _SIDE, 2 * _SIDE))
    load(shown)
    scale = _SIDE / max(shown.size)
    size = (max(1, round(shown.width * scale)), max(1, round(shown.height * scale)))
    pixels = np.asarray(shown.resize(size, Image.Resampling.BOX), np.float32)
    with Image.open(mask) as stored:
        labels = np.asarray(stored.resize(size, Image.Resampling.NEAREST))
    table = np.full((max(len(colors), int(labels.max()) + 1), 3), 255, np.float32)
    table[: len(colors)] = colors
    share = np.where(labels == 0, 0.0, _COVER)[:, :, None]
    return Image.fromarray((pixels * (1 - share) + table[labels] * share).astype(np.uint8))


def _flow(legend: Sequence[tuple[str, Color]], width: int) -> list[list[tuple[int, str, Color]]]:
    """Break the legend into lines."""
    lines: list[list[tuple[int, str, Color]]] = [[]]
    x = _GAP
    for name, color in legend:
        name = _fitting(name, width - 4 * _GAP, 13)
        wide = 20 + int(_font(13).getlength(name)) + 2 * _GAP
        if x + wide > width and lines[-1]:
            lines.append([])
            x = _GAP
        lines[-1].append((x, name, color))
        x += wide
    return lines


def _fitting(text: str, width: int, size: int = 12) -> str:
    """Cut a text so that it fits."""
    while len(text) > 1 and _font(size).getlength(text) > width:
        text = text[: max(1, len(text) * 9 // 10 - 1)] + ("" if text.endswith("…") else "…")
        text = text.rstrip("…") + "…"
    return text


@cache
def _font(size: int) -> Font:
    """Return Pillow's own font, so that none of the machine is needed."""
    return ImageFont.load_default(size)
