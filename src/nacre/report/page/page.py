"""The report: one HTML page that holds everything, and the table as Markdown and CSV.

out/index.html   tables, charts and pictures; needs nothing beside it
out/table.md     the table of every scenario
out/table.csv    the same figures, one per line
"""

from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nacre.report.numbers import percent
from nacre.report.page.context import Section, make_section, section_context
from nacre.report.results.aggregate import load_results
from nacre.report.tables.cells import steps_table
from nacre.report.tables.render import to_csv, to_markdown
from nacre.utils.io import save_text
from nacre.version import __version__

TEMPLATES = Path(__file__).parent / "templates"


def render(template: str, filters: dict[str, Callable[..., str]], **values: Any) -> str:
    """Return a template filled in, with the style, the version and today's date."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(filters)
    return environment.get_template(template).render(
        style=Markup((TEMPLATES / "style.css").read_text(encoding="utf-8")),
        version=__version__,
        made=datetime.now().astimezone().strftime("%d %B %Y"),
        **values,
    )


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
    """Write the page and the tables of finished runs.

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
    save_text(page, render_page(sections, named))
    return page


def render_page(sections: Sequence[Section], title: str) -> str:
    """Return the page as text, its pictures as large as there is room."""
    text = ""
    for side in SIDES:
        contexts = [section_context(section, i, side) for i, section in enumerate(sections)]
        text = render("page.html.j2", {"percent": percent}, title=title, sections=contexts)
        if len(text.encode()) <= LARGEST:
            break
    return text
