"""Filling in the templates of the pages: each holds its style, its pictures and all else itself."""

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

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
