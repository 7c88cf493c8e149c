"""ONNX Runtime for browsers, fetched once from npm's registry."""

import os
import tarfile
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from nacre.errors import NacreError
from nacre.models.weights import download
from nacre.utils.io import save
from nacre.utils.system import user_cache

VERSION = "1.30.0"
_ARCHIVE = f"onnxruntime-web-{VERSION}.tgz"
_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"
_FILES = ("ort.wasm.min.js", "ort-wasm-simd-threaded.mjs", "ort-wasm-simd-threaded.wasm")


@dataclass(frozen=True)
class WebRuntime:
    """What a page needs to run a model: the program, its glue code and the WebAssembly."""

    script: bytes
    glue: bytes
    wasm: bytes


def web_runtime() -> WebRuntime:
    """Return the runtime, fetching it at first use.

    Raises:
        NacreError: it cannot be had.
    """
    cache = user_cache()
    if cache is None:
        raise NacreError("there is no home folder to keep the runtime in: set XDG_CACHE_HOME")
    folder = cache / f"onnxruntime-web-{VERSION}"
    if not all((folder / name).is_file() for name in _FILES):
        archive = _fetch(folder)
        _unpack(archive, folder)
        archive.unlink(missing_ok=True)
    return WebRuntime(*((folder / name).read_bytes() for name in _FILES))


def _fetch(folder: Path) -> Path:
    registry = os.environ.get("NPM_CONFIG_REGISTRY") or "https://registry.npmjs.org"
    url = f"{registry.rstrip('/')}/onnxruntime-web/-/{_ARCHIVE}"
    return download(url, folder / _ARCHIVE, _SHA256)


def _unpack(archive: Path, folder: Path) -> None:
    """Take the three files out of the archive; nothing else of it is opened or written."""
    with tarfile.open(archive) as package:
        for name in _FILES:
            file = package.extractfile(f"package/dist/{name}")
            assert file is not None
            save(folder / name, partial(Path.write_bytes, data=file.read()))
