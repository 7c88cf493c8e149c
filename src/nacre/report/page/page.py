"""The report: one HTML page that holds everything, and the table as Markdown and CSV.

out/index.html   tables, charts and pictures; needs nothing beside it
out/table.md     the table of every scenario
out/table.csv    the same figures, one per line
out/pictures.png the sheet of pictures, to be used elsewhere (pictures-1.png … of several)
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

import nacre
from nacre.report.page.context import Section, make_section, section_context
from nacre.report.page.summary import percent
from nacre.report.pictures.canvas import Grid, Tile, draw_grid
from nacre.report.pictures.predict import colorize
from nacre.report.pictures.sheet import Sheet
from nacre.report.results.aggregate import load_results
from nacre.report.tables.cells import steps_table
from nacre.report.tables.render import to_csv, to_markdown
from nacre.utils.io import save, save_text

TEMPLATES = Path(__file__).parent / "templates"

LARGEST = 9_000_000
"""Bytes that a page may have; larger ones get smaller pictures."""

SIDES = (320, 224, 160, 96)
"""Sides of the pictures that are tried, largest first."""


def write_report(
    runs: Sequence[Path],
    out: Path,
    *,
    title: str | None = None,
    pictures: int = 8,
    paper: bool = False,
    notify: Callable[[str], None] = lambda line: None,
) -> Path:
    """Write the page, the tables and the pictures of finished runs.

    Args:
        runs: Run folders, or folders that hold run folders.
        out: Where to write.
        title: The page's title; by default made from the scenarios.
        pictures: How many pictures to show a scenario; 0 for none.
        paper: Whether to set the paper's figures beside ours, where it has some.
        notify: Told which folders are left out.

    Returns:
        The page.
    """
    sections = [make_section(results, pictures, paper) for results in load_results(runs, notify)]
    tables = [steps_table(section.results) for section in sections]
    named = title or ", ".join(dict.fromkeys(table.title for table in tables))
    page = out / "index.html"
    save_text(out / "table.md", "\n".join(to_markdown(table) for table in tables))
    save_text(out / "table.csv", to_csv(tables))
    for i, section in enumerate(sections, start=1):
        if section.sheet:
            name = "pictures.png" if len(sections) == 1 else f"pictures-{i}.png"
            _save_sheet(out / name, section.sheet)
    save_text(page, render_page(sections, named))
    return page


def render_page(sections: Sequence[Section], title: str) -> str:
    """Return the page as text, its pictures as large as there is room."""
    text = ""
    for side in SIDES:
        text = _render(sections, title, side)
        if len(text.encode()) <= LARGEST:
            break
    return text


def sheet_picture(sheet: Sheet, side: int = 160) -> Grid:
    """Return a sheet as a grid to be drawn: the image, one column per method, the truth."""
    rows = []
    for seen in sheet.pictures:
        pixels = seen.image.pixels
        masks = [Tile(colorize(mask, sheet.colors, pixels)) for mask in seen.masks]
        truth = Tile(colorize(seen.image.truth, sheet.colors, pixels))
        rows.append((Tile(pixels), *masks, truth))
    return Grid(("image", *sheet.columns, "truth"), tuple(rows), side=side)


def _save_sheet(path: Path, sheet: Sheet) -> None:
    legend = [(sheet.classes[i], sheet.colors[i]) for i in sheet.shown_classes()]
    picture = draw_grid(sheet_picture(sheet), legend)
    save(path, lambda temporary: picture.save(temporary, "PNG", optimize=True))


def _render(sections: Sequence[Section], title: str, side: int) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["percent"] = percent
    return environment.get_template("page.html.j2").render(
        title=title,
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        sections=[section_context(section, i, side) for i, section in enumerate(sections)],
        version=nacre.__version__,
        made=datetime.now().astimezone().strftime("%d %B %Y"),
    )
