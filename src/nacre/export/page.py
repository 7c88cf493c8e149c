"""`nacre export --page`: one HTML file that contains models and a runtime.

The policy in the page's head forbids every request, so that images cannot leave the page. Behind
`nacre serve` the same page sends images to its server. ONNX Runtime for browsers is downloaded once
from npm's registry.
"""

import gzip
import json
import os
import tarfile
from base64 import b64encode
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from nacre.errors import NacreError
from nacre.export.onnx_file import Form, Metadata, NamedModel, describe, make_onnx
from nacre.models.weights import download
from nacre.utils.io import save, save_text
from nacre.utils.system import user_cache

TEMPLATES = Path(__file__).parent / "templates"

VERSION = "1.30.0"
_ARCHIVE = f"onnxruntime-web-{VERSION}.tgz"
_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
_FILES = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")

_POLICY = (
    "default-src 'none'; script-src 'unsafe-inline' 'wasm-unsafe-eval' blob:; worker-src blob:; "
    "connect-src {connect}; img-src blob: data:; media-src blob: mediastream:; "
    "style-src 'unsafe-inline'; form-action 'none'; base-uri 'none'"
)


Described = tuple[str, Metadata]
"""A model's name for display, and the metadata of its ONNX file."""


@dataclass(frozen=True)
class WebRuntime:
    """The parts of ONNX Runtime: the program, its glue code and the WebAssembly."""

    script: bytes
    glue: bytes
    wasm: bytes


def web_runtime() -> WebRuntime:
    """Return the runtime, which is downloaded at the first use."""
    cache = user_cache()
    if cache is None:
        raise NacreError("no home folder to store the runtime in: set XDG_CACHE_HOME")
    folder = cache / f"onnxruntime-web-{VERSION}"
    if not all((folder / name).is_file() for name in _FILES):
        registry = os.environ.get("NPM_CONFIG_REGISTRY") or "https://registry.npmjs.org"
        url = f"{registry.rstrip('/')}/onnxruntime-web/-/{_ARCHIVE}"
        archive = download(url, folder / _ARCHIVE, _SHA256)
        _unpack(archive, folder)
        archive.unlink(missing_ok=True)
    return WebRuntime(*((folder / name).read_bytes() for name in _FILES))


def _unpack(archive: Path, folder: Path) -> None:
    """Extract the three files from the archive and nothing else."""
    with tarfile.open(archive) as package:
        for name in _FILES:
            file = package.extractfile(f"package/dist/{name}")
            assert file is not None
            save(folder / name, partial(Path.write_bytes, data=file.read()))


def write_page(models: Sequence[NamedModel], out: Path, form: Form) -> str:
    """Write a page that runs models by itself; return a sentence about it."""
    runtime = web_runtime()
    graphs, comparisons = [], []
    for name, network, info in models:
        graph, comparison = make_onnx(network, info, form)
        graphs.append(graph)
        comparisons.append(f"; {name} {comparison}")
    text = make_page([(model.name, describe(model.info)) for model in models], graphs, runtime)
    save_text(out, text)
    return f"{out} ({len(text.encode()) / 1e6:.1f} MB, {form}){''.join(comparisons)}"


def make_page(models: Sequence[Described], graphs: Sequence[bytes], runtime: WebRuntime) -> str:
    """Return a page that contains models and the runtime."""
    worker = (TEMPLATES / "worker.js").read_bytes()
    contents = [("runtime", runtime.script), ("worker", b"\n" + worker), ("glue", runtime.glue)]
    contents += [("wasm", runtime.wasm)]
    contents += [(f"model-{i}", graph) for i, graph in enumerate(graphs)]
    return _render(models, [(name, _pack(content)) for name, content in contents])


def settings_of(models: Sequence[Described]) -> list[dict[str, Any]]:
    """Return the models' names, classes and colors for the page's script."""
    return [
        {"name": name, "classes": metadata.classes, "colors": metadata.colors}
        for name, metadata in models
    ]


def served_page(models: Sequence[Described]) -> str:
    """Return a page that sends images to the server that it came from."""
    return _render(models, None)


def _render(models: Sequence[Described], packed: list[tuple[str, str]] | None) -> str:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    server = packed is None
    settings = {"models": settings_of(models), "server": server}
    classes = [*dict.fromkeys(name for _, model in models for name in model.classes[1:])]
    names = ", ".join(classes)
    return environment.get_template("page.html.j2").render(
        title=f"What is where: {names}" if len(names) < 90 else f"{len(classes)} classes",
        policy=_POLICY.format(connect="'self'" if server else "blob: data:"),
        place="Images are sent to the server that this page came from, and to no other."
        if server
        else "Everything happens in this page: no image leaves it, and it works offline.",
        about=_about([model for _, model in models]),
        style=Markup((TEMPLATES / "page.css").read_text(encoding="utf-8")),
        script=Markup((TEMPLATES / "page.js").read_text(encoding="utf-8")),
        # Within a script element, only a tag could end it.
        settings=Markup(json.dumps(settings).replace("<", "\\u003c")),
        packed=[(name, Markup(content)) for name, content in packed or []],
    )


def _about(models: Sequence[Metadata]) -> str:
    """Return sentences about the models; the order of the steps only if all have the same."""
    orders = {
        " → ".join(", ".join(map(str, step.get("classes", []))) for step in model.history)
        for model in models
    }
    steps = orders.pop() if len(orders) == 1 else ""
    learned = f"Learned in this order: {steps}. " if steps else ""
    return f"{learned}Made with nacre {models[-1].version}."


def _pack(content: bytes) -> str:
    return b64encode(gzip.compress(content, 9, mtime=0)).decode("ascii")
