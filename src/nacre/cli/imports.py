"""The command that turns the export of an annotation tool into a folder to learn from."""

import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from nacre.cli.app import command, make_console, print_json
from nacre.cli.options import split_names
from nacre.errors import NacreError, unknown_name

if TYPE_CHECKING:
    from nacre.importers import ImportOptions


Images = Annotated[Path | None, typer.Option(help="Folder or archive with the images, if apart.")]
Classes = Annotated[str | None, typer.Option(help="Only these classes, by commas, in this order.")]
Ignore = Annotated[
    list[str] | None, typer.Option(help="A class whose pixels do not count; may be repeated.")
]
Rename = Annotated[
    list[str] | None,
    typer.Option(metavar="OLD=NEW", help="Call a class otherwise, or join two."),
]
Colors = Annotated[
    str | None,
    typer.Option(metavar="R,G,B=NAME,…", help="What colors in masks mean, if no file says so."),
]
Boxes = Annotated[
    str,
    typer.Option(
        help="Rectangles: fill, skip, or ask: fill those drawn as areas, and ask where all "
        "outlines of COCO or YOLO are boxes."
    ),
]
Unlabeled = Annotated[
    str,
    typer.Option(
        help="Images without labels: background if the export lists them (listed), "
        "always (background), or never (skip)."
    ),
]
Format = Annotated[
    str | None, typer.Option("--format", help="Name of the format, if it is not recognized.")
]


@command(
    "import",
    "nacre import project.zip --to my-data",
    "nacre import result.json --images photos --to my-data",
    "nacre import export --to new --classes crack,rust",
)
def import_(
    export: Annotated[Path, typer.Argument(help="Folder, zip archive or annotation file.")],
    to: Annotated[Path, typer.Option(help="The folder to make: images/, masks/, classes.yaml.")],
    images: Images = None,
    classes: Classes = None,
    ignore: Ignore = None,
    rename: Rename = None,
    colors: Colors = None,
    boxes: Boxes = "ask",
    unlabeled: Unlabeled = "listed",
    format_: Format = None,
    json: Annotated[bool, typer.Option("--json", help="Print the report as JSON.")] = False,
) -> None:
    """Import what an annotation tool exported: CVAT, COCO, LabelMe, YOLO, Label Studio and more."""
    from nacre.importers import ClassOptions, ImportOptions

    chosen: dict[str, Any] = {
        "boxes": _one_of("--boxes", boxes, ("ask", "fill", "skip")),
        "colors": _parse_colors(colors or ""),
        "unlabeled": _one_of("--unlabeled", unlabeled, ("listed", "background", "skip")),
    }
    wanted = ClassOptions(
        tuple(split_names(classes or "")), tuple(ignore or ()), _parse_renames(rename or ())
    )
    options = ImportOptions(images=images, format=format_, classes=wanted, **chosen)
    _import(export, to, options, json)


def _import(export: Path, to: Path, options: "ImportOptions", json: bool) -> None:
    """Import with bars, and print the report."""
    from nacre.importers import import_export
    from nacre.terminal.imports import ImportDisplay, render
    from nacre.utils.signals import StopSignal

    try:
        with StopSignal() as stop, ImportDisplay(stop) as display:
            report = import_export(export, to, options, display)
    except KeyboardInterrupt:
        typer.echo("interrupted; nothing was written", err=True)
        sys.exit(130)
    if json:
        print_json(report.as_dict())
    else:
        make_console().print(render(report), soft_wrap=True)


def _one_of(option: str, value: str, allowed: Sequence[str]) -> str:
    if value not in allowed:
        raise unknown_name(f"value of {option}", value, allowed)
    return value


def _parse_renames(pairs: Sequence[str]) -> dict[str, str]:
    renamed = {}
    for pair in pairs:
        old, equals, new = pair.rpartition("=")
        if not equals or not old or not new.strip():
            raise NacreError(f"--rename {pair!r} is not of the form OLD=NEW")
        renamed[old] = new
    return renamed


def _parse_colors(text: str) -> dict[tuple[int, int, int], str]:
    """Return names by color from ``0,255,0=crop,255,0,0=weed``."""
    named, rest = {}, text.strip()
    while rest:
        form = re.match(r"(\d{1,3}),\s*(\d{1,3}),\s*(\d{1,3})\s*=([^,=]+)(?:,\s*|$)", rest)
        color = tuple(int(form[i]) for i in (1, 2, 3)) if form else (256,)
        if form is None or max(color) > 255 or not form[4].strip():
            raise NacreError(f"--colors {text!r} is not of the form R,G,B=NAME,R,G,B=NAME")
        named[color[0], color[1], color[2]] = form[4].strip()
        rest = rest[form.end() :]
    return named
