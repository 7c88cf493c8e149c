"""Pictures drawn on one canvas with Pillow: tiles in a grid, names above, for sheets."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from nacre.report.pictures.predict import Color, Pixels

PAPER, INK, SOFT, EMPTY = (250, 249, 247), (36, 38, 44), (99, 102, 111), (238, 236, 232)
GAP, MARGIN, LINE = 6, 18, 20

Font = ImageFont.FreeTypeFont | ImageFont.ImageFont


@dataclass(frozen=True)
class Tile:
    """A picture with a line of text below it; no picture leaves its place empty."""

    pixels: Pixels | None
    below: str = ""


@dataclass(frozen=True)
class Grid:
    """Tiles in rows.

    Attributes:
        heads: A name above each column.
        rows: The tiles.
        names: A name before each row, where there are any.
        side: Side of a tile's place in pixels.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[Tile, ...], ...]
    names: tuple[str, ...] = ()
    side: int = 160


def font(size: int) -> Font:
    """Return Pillow's own font, so that no font of the machine is needed."""
    return ImageFont.load_default(size)


def draw_grid(grid: Grid, legend: Sequence[tuple[str, Color]] = (), title: str = "") -> Image.Image:
    """Return tiles in a grid with a title above and a legend of classes below."""
    text_below = any(tile.below for row in grid.rows for tile in row)
    height = grid.side + (LINE if text_below else 0)
    left = MARGIN + (max((_width(name, 13) for name in grid.names), default=-12) + 12)
    top = MARGIN + (2 * LINE if title else 0) + LINE
    width = left + len(grid.heads) * (grid.side + GAP) - GAP + MARGIN
    lines = _flow(legend, width - 2 * MARGIN)
    end = top + len(grid.rows) * (height + GAP) + (len(lines) * LINE + GAP if lines else 0)
    canvas = Image.new("RGB", (_even(width), _even(end + MARGIN - GAP)), PAPER)
    pen = ImageDraw.Draw(canvas)
    if title:
        pen.text((MARGIN, MARGIN), title, INK, font(20))
    for i, head in enumerate(grid.heads):
        pen.text((left + i * (grid.side + GAP), top - LINE), head, INK, font(14))
    for down, row in enumerate(grid.rows):
        y = top + down * (height + GAP)
        if grid.names:
            pen.text((MARGIN, y + grid.side // 2 - 8), grid.names[down], SOFT, font(13))
        for across, tile in enumerate(row):
            _place(canvas, pen, tile, (left + across * (grid.side + GAP), y), grid.side)
    _draw_legend(pen, lines, top + len(grid.rows) * (height + GAP) + GAP)
    return canvas


def _place(
    canvas: Image.Image, pen: ImageDraw.ImageDraw, tile: Tile, corner: tuple[int, int], side: int
) -> None:
    if tile.pixels is None:
        pen.rectangle((*corner, corner[0] + side - 1, corner[1] + side - 1), EMPTY)
        return
    picture = _fit(tile.pixels, side)
    canvas.paste(
        picture, (corner[0] + (side - picture.width) // 2, corner[1] + (side - picture.height) // 2)
    )
    pen.text((corner[0], corner[1] + side + 2), tile.below, SOFT, font(12))


def _fit(pixels: Pixels, side: int) -> Image.Image:
    image = Image.fromarray(pixels)
    scale = side / max(image.size)
    size = (max(1, round(image.width * scale)), max(1, round(image.height * scale)))
    # Small pictures stay what they are, pixel by pixel, when they are enlarged.
    kind = Image.Resampling.NEAREST if scale > 1 else Image.Resampling.LANCZOS
    return image.resize(size, kind)


def _flow(legend: Sequence[tuple[str, Color]], width: int) -> list[list[tuple[int, str, Color]]]:
    """Return the legend in lines of (place, name, colour)."""
    lines: list[list[tuple[int, str, Color]]] = []
    x = width
    for name, color in legend:
        wide = 14 + 6 + _width(name, 13) + 18
        if x + wide > width:
            lines.append([])
            x = 0
        lines[-1].append((MARGIN + x, name, color))
        x += wide
    return lines


def _draw_legend(
    pen: ImageDraw.ImageDraw, lines: Sequence[Sequence[tuple[int, str, Color]]], top: int
) -> None:
    for i, line in enumerate(lines):
        y = top + i * LINE
        for x, name, color in line:
            pen.rounded_rectangle((x, y, x + 13, y + 13), 3, color)
            pen.text((x + 20, y - 1), name, SOFT, font(13))


def _width(text: str, size: int) -> int:
    return int(np.ceil(font(size).getlength(text)))


def _even(size: int) -> int:
    # Video codecs want even sides.
    return size + size % 2
