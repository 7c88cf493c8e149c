"""Commands that change what a model of the ledger knows, without an image."""

from pathlib import Path
from typing import Annotated

import typer

from nacre.cli.app import app, make_console

Out = Annotated[Path, typer.Option(help="Folder for the new model.")]


@app.command(
    epilog="Examples:  nacre forget models/pets --step 1 --out models/pets-without;  "
    "nacre forget models/pets --class cat --out models/no-cat"
)
def forget(
    model: Annotated[Path, typer.Argument(help="A model that the method ledger learned.")],
    out: Out,
    step: Annotated[int | None, typer.Option(help="The step, as `nacre log` counts.")] = None,
    class_name: Annotated[str | None, typer.Option("--class", help="The class's name.")] = None,
) -> None:
    """Take a step or a class out of a model: the new one never learned it."""
    from nacre.api.model import load

    _show(load(model, "cpu").forget(step=step, class_name=class_name, out=out).path)


@app.command(
    "merge", epilog="Example:  nacre merge models/site-a models/site-b --out models/both-sites"
)
def merge_models(
    models: Annotated[list[Path], typer.Argument(help="Models of the method ledger.")],
    out: Out,
) -> None:
    """Merge models on one backbone: the new one learned from the images of all."""
    from nacre.api.model import merge

    _show(merge(models, out=out).path)


def _show(path: Path | None) -> None:
    from nacre.models.io import read_info
    from nacre.terminal.learn import log_table

    assert path is not None
    console = make_console()
    console.print(log_table(path.parent, read_info(path), None))
    console.print(f"model: {path}", soft_wrap=True, markup=False)
