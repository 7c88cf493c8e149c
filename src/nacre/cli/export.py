"""Commands that take a model to where it is used."""

from pathlib import Path
from typing import Annotated

import typer

from nacre.cli.app import app, make_console
from nacre.errors import NacreError

ModelPath = Annotated[Path, typer.Argument(help="A run folder, a step folder or a model file.")]


@app.command(
    epilog="Examples:  nacre export runs/mib;  nacre export runs/mib --int8 --data my-data"
)
def export(
    model: ModelPath,
    out: Annotated[Path, typer.Option(help="The ONNX file.")] = Path("model.onnx"),
    fp16: Annotated[bool, typer.Option("--fp16", help="Weights of 16 bits.")] = False,
    int8: Annotated[
        bool, typer.Option("--int8", help="Weights of 8 bits; activations too with --data.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option(help="Labelled test pictures, to measure the IoU: a folder, or `own`."),
    ] = None,
    limit: Annotated[int, typer.Option(min=1, help="Test pictures at most.")] = 200,
    license_: Annotated[
        str | None, typer.Option("--license", help="Of the weights, such as CC-BY-4.0.")
    ] = None,
) -> None:
    """Write the model as one ONNX file: uint8 picture in, class map out, of any size."""
    from nacre.export.onnx_file import Form, export_onnx
    from nacre.models.io import find_model, load_model
    from nacre.terminal.export import exported_table

    if fp16 and int8:
        raise NacreError("--fp16 and --int8 do not go together: choose one")
    form: Form = "fp16" if fp16 else "fp32"
    if int8:
        form = "int8-calibrated" if data else "int8-dynamic"
    network, info, _ = load_model(find_model(model))
    with make_console().status("tracing and comparing with torch"):
        done = export_onnx(network, info, out, form=form, data=data, limit=limit, license=license_)
    make_console().print(exported_table(done))
