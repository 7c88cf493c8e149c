"""Pictures for the page: grids of tiles that the template only has to lay out."""

from collections.abc import Sequence
from dataclasses import dataclass

from nacre.report.numbers import percent
from nacre.report.pictures.background_shift import FUTURE, OLD, Shift, colorize_hidden
from nacre.report.pictures.predict import Color, Pixels, colorize, data_uri
from nacre.report.pictures.sheet import Sheet

OLD_COLOR, FUTURE_COLOR = (196, 132, 226), (72, 190, 220)
"""What the background hides, in the colours of the page."""

SMALL = 128
"""Pictures up to this side are enlarged pixel by pixel."""


@dataclass(frozen=True)
class PageTile:
    """A picture as text, what it shows for those who do not see it, and the line below."""

    uri: str
    about: str
    below: str = ""


@dataclass(frozen=True)
class PageGrid:
    """Tiles in rows.

    Attributes:
        heads: A name above each column.
        rows: A name and the tiles of each row; None leaves a place empty.
        small: Whether the pictures are to be enlarged pixel by pixel.
    """

    heads: tuple[str, ...]
    rows: tuple[tuple[str, tuple[PageTile | None, ...]], ...]
    small: bool


def sheet_grid(sheet: Sheet, side: int) -> PageGrid:
    """Return the sheet: the image, one column per method, the truth."""
    rows = []
    for seen in sheet.pictures:
        image = seen.image
        tiles = [PageTile(data_uri(image.pixels, side), f"test image {image.name}")]
        for i, mask in enumerate(seen.masks):
            right = f"{percent(seen.right(i), 0)} %"
            about = f"{sheet.columns[i]} on {image.name}: {right} of the pixels right"
            tiles.append(
                PageTile(_colorized_uri(mask, sheet.colors, image.pixels, side), about, right)
            )
        uri = _colorized_uri(image.truth, sheet.colors, image.pixels, side)
        tiles.append(PageTile(uri, f"truth of {image.name}"))
        rows.append((f"{image.name}\n{seen.why}", tuple(tiles)))
    pixels = [seen.image.pixels for seen in sheet.pictures]
    return PageGrid(("image", *sheet.columns, "truth"), tuple(rows), _are_small(pixels))


def shift_grid(shifts: Sequence[Shift], colors: Sequence[Color], side: int) -> PageGrid:
    """Return what each step's labels say against the truth, a row per step."""
    rows = []
    for shift in shifts:
        hidden = data_uri(colorize_hidden(shift, (OLD_COLOR, FUTURE_COLOR)), side)
        shares = (("old", shift.share(OLD)), ("future", shift.share(FUTURE)))
        parts = ", ".join(f"{percent(share, 0)} % {name}" for name, share in shares if share)
        name = f"{shift.name} in step {shift.step}"
        labels = _colorized_uri(shift.labels, colors, shift.pixels, side)
        truth = _colorized_uri(shift.truth, colors, shift.pixels, side)
        tiles = (
            PageTile(data_uri(shift.pixels, side), f"training image {shift.name}"),
            PageTile(labels, f"the step's labels of {name}"),
            PageTile(truth, f"truth of {name}"),
            PageTile(hidden, f"what the background hides in {name}: {parts or 'nothing'}", parts),
        )
        rows.append((f"step {shift.step}\n{shift.name}", tiles))
    heads = ("image", "the step's labels", "truth", "hidden in its background")
    return PageGrid(heads, tuple(rows), _are_small([shift.pixels for shift in shifts]))


def legend_of(sheet: Sheet) -> list[tuple[str, str]]:
    """Return name and colour of the classes that stand anywhere on a sheet."""
    return [
        (sheet.classes[i], "rgb({}, {}, {})".format(*sheet.colors[i]))
        for i in sheet.shown_classes()
    ]


def has_untested(sheet: Sheet) -> bool:
    """Say whether any truth of a sheet has pixels that are not tested."""
    return any(bool((~seen.image.tested).any()) for seen in sheet.pictures)


def _colorized_uri(mask: Pixels, colors: Sequence[Color], pixels: Pixels, side: int) -> str:
    return data_uri(colorize(mask, colors, pixels), side)


def _are_small(pictures: Sequence[Pixels]) -> bool:
    return max((max(pixels.shape[:2]) for pixels in pictures), default=0) <= SMALL
