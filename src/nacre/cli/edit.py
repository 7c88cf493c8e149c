"""Commands that change what a model of the ledger knows, without an image."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nacre.cli.app import app, make_console

if TYPE_CHECKING:
    from nacre.api.model import Model

Out = Annotated[Path, typer.Option(help="Folder for the new model.")]


@app.command(
    epilog="Examples:  nacre forget models/pets --step 1 --out models/pets-without;  "
    "nacre forget models/pets --folder birds --out models/no-birds;  "
    "nacre forget models/pets --class cat --out models/no-cat"
)
def forget(
    model: Annotated[Path, typer.Argument(help="A model that ledger or duo learned.")],
    out: Out,
    step: Annotated[int | None, typer.Option(help="The step, as `nacre log` counts.")] = None,
    folder: Annotated[str | None, typer.Option(help="A data folder's name.")] = None,
    class_name: Annotated[str | None, typer.Option("--class", help="The class's name.")] = None,
) -> None:
    """Take a step, a data folder or a class out of a model: the new one never learned it."""
    from nacre.api.model import load

    edited = load(model, "cpu").forget(step=step, folder=folder, class_name=class_name, out=out)
    note = "the ledger's part never learned it; the weights of the decoder beside it were learned "
    _show(edited, note + "with it and stay")


@app.command(
    "merge", epilog="Example:  nacre merge models/site-a models/site-b --out models/both-sites"
)
def merge_models(
    models: Annotated[list[Path], typer.Argument(help="Models of ledger, or of duo.")],
    out: Out,
) -> None:
    """Merge models on one backbone: the new one learned from the images of all."""
    from nacre.api.model import merge

    note = (
        "the ledger's part learned all; the decoder is that of the first model, to which classes "
    )
    _show(merge(models, out=out), note + "of the others are background")


def _show(model: "Model", note: str) -> None:
    """Print what a model knows; the note is of one with a decoder beside its ledger."""
    from nacre.terminal.learn import log_table

    assert model.path is not None
    console = make_console()
    console.print(log_table(model.path.parent, model.info, None))
    if getattr(model.network, "ledger", None) is not None:
        console.print(note, markup=False)
    console.print(f"model: {model.path}", soft_wrap=True, markup=False)
