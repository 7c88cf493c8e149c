"""Commands that take a model to where it is used."""

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from nacre.cli.app import app, make_console
from nacre.errors import NacreError
from nacre.utils.io import check_can_write

if TYPE_CHECKING:
    from nacre.export.onnx_file import Form
    from nacre.export.onnx_model import OnnxModel

Models = Annotated[
    list[Path], typer.Argument(help="Run folders, step folders or model files; one, but for pages.")
]
OutFile = Annotated[
    Path | None, typer.Option(help="The file: model.onnx, or model.html for a page.")
]
Page = Annotated[
    bool, typer.Option("--page", help="One HTML file that runs the model in a browser.")
]
License = Annotated[
    str | None, typer.Option("--license", help="Of the weights, such as cc-by-4.0.")
]


@app.command(
    epilog="Examples:  nacre export runs/mib;  nacre export runs/mib --fp16;  "
    "nacre export runs/mib/step-0 runs/mib/step-1 --page"
)
def export(
    models: Models,
    out: OutFile = None,
    page: Page = False,
    fp16: Annotated[bool, typer.Option("--fp16", help="Weights of 16 bits.")] = False,
    license_: License = None,
) -> None:
    """Write the model as an ONNX file, from picture to class map, or as a page that runs it."""
    if len(models) > 1 and not page:
        raise NacreError("one ONNX file holds one model: give one, or --page to compare several")
    form: Form = "fp16" if fp16 else "fp32"
    out = out or Path("model.html" if page else "model.onnx")
    check_can_write(out)
    if page:
        _write_page(models, out, form, license_)
    else:
        _write_onnx(models[0], out, form, license_)


def _write_onnx(model: Path, out: Path, form: "Form", license: str | None) -> None:
    from nacre.export.onnx_file import export_onnx
    from nacre.models.io import find_model, load_model

    network, info, _ = load_model(find_model(model))
    with make_console().status("tracing and comparing with torch"):
        done = export_onnx(network, info, out, form=form, license=license)
    found = done.comparison
    make_console().print(
        f"{out} ({done.size / 1e6:.1f} MB, {form}); "
        f"torch at {len(found.sizes)} sizes: {found.agreement:.3%} of the pixels the same, "
        "scores off by at most "
        f"{found.difference:.1e} of their range",
        soft_wrap=True,
        highlight=False,
    )


def _write_page(models: list[Path], out: Path, form: "Form", license: str | None) -> None:
    from nacre.export.onnx_model import OnnxModel
    from nacre.export.page import PageModel, web_runtime, write_page

    runtime = web_runtime()
    shown, graphs = [], []
    with tempfile.TemporaryDirectory() as folder:
        for i, model in enumerate(models):
            file = Path(folder) / f"{i}.onnx"
            _write_onnx(model, file, form, license)
            shown.append(PageModel(_name(model), OnnxModel(file).metadata))
            graphs.append(file.read_bytes())
    size = write_page(out, shown, graphs, runtime)
    make_console().print(f"page: {out} ({size / 1e6:.1f} MB)", soft_wrap=True)


@app.command(
    epilog="Examples:  nacre serve runs/mib;  nacre serve model.onnx --port 8000 --threads 4"
)
def serve(
    models: Annotated[
        list[Path], typer.Argument(help="Run folders, step folders, model files or ONNX files.")
    ],
    host: Annotated[
        str, typer.Option(help="Address to listen at; this machine alone by default.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 takes a free one.")] = 8765,
    threads: Annotated[
        int, typer.Option(min=0, help="Threads per picture; 0 leaves it to onnxruntime.")
    ] = 0,
) -> None:
    """Serve the page that shows what a model sees, and the model behind it, on this machine."""
    from nacre.export.server import ModelServer, Served

    served = [Served(_name(model), _open_onnx(model, threads)) for model in models]
    try:
        server = ModelServer(served, (host, port))
    except OSError as error:
        raise NacreError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    make_console().print(
        f"http://{host}:{server.server_address[1]}/   (Ctrl-C stops it)", highlight=False
    )
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            typer.echo("stopped", err=True)


def _open_onnx(model: Path, threads: int) -> "OnnxModel":
    """Open an ONNX file, or a model that is exported first."""
    from nacre.export.onnx_model import OnnxModel

    if model.suffix == ".onnx":
        return OnnxModel(model, threads)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "model.onnx"
        _write_onnx(model, file, "fp32", None)
        return OnnxModel(file, threads)


def _name(model: Path) -> str:
    """Return a model's name for people: the last two folders, without what all have."""
    if model.suffix == ".onnx":
        return model.stem
    path = model.parent if model.is_file() else model
    return "/".join(path.resolve().parts[-2:]) if path.name.startswith("step-") else path.name
