"""The command that writes a data folder from the export of an annotation tool."""

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, cast

from rich.console import Group
from rich.table import Table
from rich.text import Text

from nacre.cli import app
from nacre.cli.app import argument, flag, option
from nacre.errors import NacreError, counted, unknown_name

if TYPE_CHECKING:
    from nacre.importers import ImportReport
    from nacre.importers.paint import Unlabeled


@app.command(
    "import",
    "nacre import project.zip --to my-data",
    "nacre import result.json --images photos --to my-data",
    "nacre import export --to new --classes crack,rust",
)
def import_(
    export: Annotated[Path, argument("EXPORT", "Folder, zip archive or annotation file.")],
    to: Annotated[Path, option("FOLDER", "New folder for images/, masks/ and classes.yaml.")],
    images: Annotated[
        Path | None,
        option("PATH", "Folder or archive with the images, if they are not in the export."),
    ] = None,
    classes: Annotated[
        str | None,
        option("NAMES", "Comma-separated classes to import, in this order. Default: all."),
    ] = None,
    ignore: Annotated[
        list[str] | None,
        option("NAME", "Class whose pixels count as not annotated. Repeatable."),
    ] = None,
    rename: Annotated[
        list[str] | None, option("OLD=NEW", "Rename a class, or join two. Repeatable.")
    ] = None,
    colors: Annotated[
        str | None,
        option("R,G,B=NAME,…", "Classes by color of mask files, if no file names them."),
    ] = None,
    fill_boxes: Annotated[
        bool,
        flag("--fill-boxes", "Fill the outlines of COCO or YOLO even if all of them are boxes."),
    ] = False,
    unlabeled: Annotated[
        str,
        option(
            "listed|background|skip",
            "Images without labels: those the export lists are background, or all are, or none.",
        ),
    ] = "listed",
    format_: Annotated[
        str | None, option("NAME", "Name of the format, if it is not recognized.", "--format")
    ] = None,
) -> None:
    """Import the export of an annotation tool: CVAT, COCO, LabelMe, YOLO, Label Studio and more."""
    from nacre.importers import ImportOptions, import_export
    from nacre.utils.signals import StopSignal

    if unlabeled not in (allowed := ("listed", "background", "skip")):
        raise unknown_name("value of --unlabeled", unlabeled, allowed)
    options = ImportOptions(
        images=images,
        format=format_,
        classes=app.split_names(classes),
        ignore=ignore or (),
        rename=app.split_pairs(rename, "--rename", "OLD=NEW"),
        fill_boxes=fill_boxes,
        colors=_parse_colors(colors or ""),
        unlabeled=cast("Unlabeled", unlabeled),
    )
    try:
        with StopSignal():
            report = import_export(export, to, options)
    except KeyboardInterrupt:
        app.echo("interrupted; nothing was written", err=True)
        sys.exit(130)
    app.make_console().print(import_tables(report), soft_wrap=True)


def _parse_colors(text: str) -> dict[tuple[int, int, int], str]:
    """Parse the names of colors, such as ``0,255,0=crop,255,0,0=weed``."""
    named, rest = {}, text.strip()
    while rest:
        form = re.match(r"(\d{1,3}),\s*(\d{1,3}),\s*(\d{1,3})\s*=([^,=]+)(?:,\s*|$)", rest)
        color = tuple(int(form[i]) for i in (1, 2, 3)) if form else (256,)
        if form is None or max(color) > 255 or not form[4].strip():
            raise NacreError(f"--colors {text!r} is not of the form R,G,B=NAME,R,G,B=NAME")
        named[color[0], color[1], color[2]] = form[4].strip()
        rest = rest[form.end() :]
    return named


def import_tables(report: "ImportReport") -> Group:
    """Return the report of an import: its classes, the problems, and the next command."""
    from nacre.importers.run import SHEET

    title = f"{report.format}: {counted(len(report.written), 'image')} in {report.target.name}"
    table = Table(title=Text(title), title_justify="left")
    table.add_column("label", justify="right")
    table.add_column("class", overflow="fold")
    table.add_column("images", justify="right")
    table.add_column("pixels", justify="right")
    names = {0: "(background)", **dict(enumerate(report.labels.names, start=1))}
    for label, name in (names | {report.labels.ignored: "(ignored)"}).items():
        if report.images[label]:  # classes without a pixel are in a line below the table
            counts = f"{report.images[label]:,}", f"{report.fraction(label):.2%}"
            table.add_row(str(label), Text(name), *counts)
    lines = report.sentences()
    if report.splits:
        lists = (f"{name}.txt {count:,}" for name, count in report.splits.items())
        lines.append(f"split lists: {', '.join(lists)}")
    lines.append(f"look at {report.target / SHEET}; then: nacre data {report.target}")
    return Group(table, *map(Text, lines))
