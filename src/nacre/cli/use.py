"""Commands that use a model: predict, export, serve."""

import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from nacre.cli import app
from nacre.cli.app import argument, flag, option
from nacre.errors import NacreError

if TYPE_CHECKING:
    from nacre.export import NamedModel
    from nacre.export.onnx_file import OnnxModel
    from nacre.predict.files import Summary


@app.command(
    "predict",
    "nacre predict runs/mib cat.jpg holiday/ 'day-*/*.png' --out predictions",
    "nacre predict runs/mib map.tif --window 512",
    "nacre predict runs/mib street.mp4",
)
def predict(
    model: app.ModelPath,
    images: Annotated[list[str], argument("IMAGE", "Images, folders, globs, videos.")],
    out: Annotated[Path, option("FOLDER", "Folder for the results.")] = Path("predictions"),
    format_: Annotated[
        str,
        option("NAMES", "Comma-separated outputs: masks, overlays, labelme, csv.", "--format"),
    ] = "masks,overlays,csv",
    window: Annotated[
        int | None,
        option(
            "PIXELS",
            "Tile size for large images, 32 or more. Default: the whole image at once.",
            min=32,
            max=65536,
        ),
    ] = None,
    mirror: Annotated[
        bool | None,
        flag(
            "--mirror/--no-mirror",
            "Average with the mirrored image; takes twice the time. Default: the model's choice.",
        ),
    ] = None,
    edges: Annotated[
        bool | None,
        flag(
            "--edges/--no-edges",
            "Snap class borders to the edges of the image. Default: the model's choice.",
        ),
    ] = None,
) -> None:
    """Segment images or videos; write masks, overlays, polygons and class fractions."""
    from nacre.api.model import load
    from nacre.predict.files import predict_all
    from nacre.utils.signals import StopSignal

    forms = tuple(app.split_names(format_))
    with StopSignal() as stop:
        used = load(model)
        predictor = used.predictor(window=window, mirror=mirror, edges=edges)
        summary = predict_all(predictor, used.info.channels, images, out, forms, stop)
    _print_summary(summary)
    app.make_console().print(f"{', '.join(forms)}: {out}", highlight=False)
    if summary.stopped:
        app.echo("interrupted; what was done is written", err=True)
        sys.exit(130)
    if summary.failed:
        sys.exit(2)


def _print_summary(summary: "Summary") -> None:
    """Print skipped inputs and class fractions."""
    for sentence in summary.failed:
        app.echo(f"skipped: {sentence}", err=True)
    fractions = ", ".join(f"{name} {value:.1%}" for name, value in summary.fractions.items())
    count = "1 image" if summary.done == 1 else f"{summary.done} images"
    app.make_console().print(f"{count}: {fractions}" if fractions else count, highlight=False)


@app.command(
    "export",
    "nacre export runs/mib",
    "nacre export runs/mib --fp16",
    "nacre export runs/mib/step-0 runs/mib/step-1 --page",
)
def export(
    models: Annotated[
        list[Path],
        argument("MODEL", "A run folder, a step folder or a model file; several only with --page."),
    ],
    out: Annotated[
        Path | None,
        option("FILE", "Output file. Default: model.onnx, or model.html with --page."),
    ] = None,
    page: Annotated[
        bool, flag("--page", "Write one HTML file that runs the model in a browser.")
    ] = False,
    fp16: Annotated[bool, flag("--fp16", "Store the weights in 16 bits.")] = False,
) -> None:
    """Export a model as an ONNX file, from image to class map, or as a page that runs it."""
    from nacre.export import export_models, find_export

    out = out or Path("model.html" if page else "model.onnx")
    if page and out.suffix.lower() != ".html":
        raise NacreError(f"--page writes an HTML file, and {out} does not end in .html")
    find_export(out)  # reports a wrong suffix before models are opened
    named = [_named(model) for model in models]
    with app.make_console().status("tracing and comparing with torch"):
        text = export_models(named, out, form="fp16" if fp16 else "fp32")
    app.make_console().print(text, soft_wrap=True, highlight=False)


def _named(model: Path) -> "NamedModel":
    from nacre.export import NamedModel
    from nacre.models.io import find_model, load_model

    network, info, _ = load_model(find_model(model))
    return NamedModel(_display_name(model), network, info)


@app.command("serve", "nacre serve runs/mib", "nacre serve model.onnx --port 8000 --threads 4")
def serve(
    models: Annotated[
        list[Path], argument("MODEL", "Run folders, step folders, model files or ONNX files.")
    ],
    host: Annotated[
        str, option("HOST", "Address to listen on; by default this machine's.")
    ] = "127.0.0.1",
    port: Annotated[int, option("NUMBER", "Port; 0 picks a free one.", min=0, max=65535)] = 8765,
    threads: Annotated[
        int, option("NUMBER", "Threads per image; 0 lets onnxruntime decide.", min=0)
    ] = 0,
) -> None:
    """Serve models on this machine, with a page to try them on your own images."""
    from nacre.export.onnx_file import OnnxModel
    from nacre.export.server import ModelServer

    # All are opened before the first is exported, which takes long.
    opened = [
        OnnxModel(model, threads) if model.suffix == ".onnx" else _named(model) for model in models
    ]
    served = [
        (_display_name(model), found if isinstance(found, OnnxModel) else _export(found, threads))
        for model, found in zip(models, opened, strict=True)
    ]
    try:
        server = ModelServer(served, (host, port))
    except OSError as error:
        raise NacreError(f"cannot listen at {host}:{port}: {error.strerror}") from error
    app.make_console().print(
        f"http://{host}:{server.server_address[1]}/   (Ctrl-C stops it)", highlight=False
    )
    with server:
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            app.echo("stopped", err=True)


def _export(model: "NamedModel", threads: int) -> "OnnxModel":
    """Export a model to a temporary ONNX file and open it."""
    from nacre.export.onnx_file import OnnxModel, export_onnx

    name, network, info = model
    console = app.make_console()
    console.print(f"preparing {name} (about a minute)", soft_wrap=True, highlight=False)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "model.onnx"
        with console.status("tracing and comparing with torch"):
            comparison = export_onnx(network, info, out)
        console.print(f"{name}: {comparison}", soft_wrap=True, highlight=False)
        return OnnxModel(out, threads)


def _display_name(model: Path) -> str:
    """Return the name of a model for display: its folder, or run folder and step folder."""
    if model.suffix == ".onnx":
        return model.stem
    path = model.parent if model.is_file() else model
    return "/".join(path.resolve().parts[-2:]) if path.name.startswith("step-") else path.name
