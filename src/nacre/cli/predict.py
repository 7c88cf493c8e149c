"""The command that uses a model on pictures."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nacre.cli.app import app, echo, make_console
from nacre.cli.options import split_names
from nacre.errors import shown

if TYPE_CHECKING:
    from nacre.predict.files import Summary


def _whole_number(text: str) -> int:
    """Read digits alone: Python would take 1_000 for 1000, too."""
    if not (text.isascii() and text.isdecimal()) or len(text) > 9:
        raise typer.BadParameter(f"{shown(text)} is not a whole number of pixels.")
    return int(text)


@app.command(
    epilog="Examples:  nacre predict runs/mib cat.jpg holiday/ 'day-*/*.png' --out seen;  "
    "nacre predict runs/mib map.tif --window 512;  nacre predict runs/mib street.mp4"
)
def predict(
    model: Annotated[Path, typer.Argument(help="A run folder, a step folder or a model file.")],
    pictures: Annotated[list[str], typer.Argument(help="Pictures, folders, globs, videos.")],
    out: Annotated[Path, typer.Option(help="Folder for the results.")] = Path("seen"),
    as_: Annotated[
        str, typer.Option("--as", help="Any of masks,overlays,labelme,coco,csv.")
    ] = "masks,overlays,csv",
    window: Annotated[
        int | None,
        typer.Option(
            parser=_whole_number,
            metavar="PIXELS",
            help="See images through windows this wide, 32 or more, in bounded memory.",
        ),
    ] = None,
    mirror: Annotated[
        bool, typer.Option("--mirror", help="Look at mirror images, too: twice the time.")
    ] = False,
    edges: Annotated[
        bool, typer.Option("--edges", help="Let classes follow the edges of the image.")
    ] = False,
) -> None:
    """Say what is in pictures: masks, overlays, polygons to correct, the share of each class."""
    from nacre.api.model import load
    from nacre.predict.files import predict_all
    from nacre.utils.signals import StopSignal

    forms = tuple(split_names(as_))
    with StopSignal() as stop:
        used = load(model).fused()
        predictor = used.predictor(window=window, mirror=mirror, edges=edges)
        summary = predict_all(predictor, used.legend, pictures, out, forms, stop)
    _print_summary(summary)
    make_console().print(f"{', '.join(forms)}: {out}", highlight=False)
    if summary.stopped:
        echo("interrupted; what was done is written", err=True)
        sys.exit(130)
    if summary.failed:
        sys.exit(2)


def _print_summary(summary: "Summary") -> None:
    """Say what was left out and what was seen."""
    for sentence in summary.failed:
        echo(f"left out: {sentence}", err=True)
    seen = ", ".join(f"{name} {share:.1%}" for name, share in summary.shares.items())
    count = "1 picture" if summary.done == 1 else f"{summary.done} pictures"
    make_console().print(f"{count}: {seen}" if seen else count, highlight=False)
