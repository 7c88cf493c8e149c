"""`nacre serve`: the page against a small local server, for models that a browser cannot hold.

Only the standard library. A request names a number of a model and a size, and brings pixels; no
path, address or name in it is ever opened. Bodies are read up to a limit and no further.

    GET  /            the page
    GET  /models      what the models know, as JSON
    POST /classify    pixels in, class maps out: ?model=0&height=…&width=…[&count=…] with raw RGB,
                      or ?model=0 with a PNG, JPEG or WebP, which comes back as a palette PNG
"""

import io
import json
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

import numpy as np
import numpy.typing as npt
from PIL import Image

from nacre.data.image_io import upright_rgb
from nacre.export.page.page import PageModel, served_page
from nacre.export.predictions import Legend, palette_image
from nacre.export.runtime import OnnxModel

Pixels = npt.NDArray[np.uint8]

LARGEST_BODY = 64 << 20
"""Bytes of a request at most."""

MOST_PIXELS = LARGEST_BODY // 3
"""Pixels of a request at most, also of a picture that comes small and unfolds."""

_FORMATS = ("PNG", "JPEG", "WEBP")
_SILENCE = 30
"""Seconds that a client may be silent in the middle of a request."""


class BadRequest(Exception):
    """What is wrong with a request, for whoever sent it."""

    def __init__(self, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(reason)
        self.status = status


@dataclass(frozen=True)
class Served:
    """A model behind the server.

    Attributes:
        name: For people.
        model: The open ONNX file.
    """

    name: str
    model: OnnxModel

    @property
    def legend(self) -> Legend:
        """What its channels mean."""
        said = self.model.metadata
        return Legend(tuple(said.classes), tuple((r, g, b) for r, g, b in said.colors))


class ModelServer(ThreadingHTTPServer):
    """Answers from a few models; each request has a thread, the models run so many at once.

    Args:
        models: What is served, in the order of their numbers.
        address: Host and port; port 0 takes a free one.
        at_once: How many pictures are looked at at the same time.
    """

    daemon_threads = True

    def __init__(
        self, models: Sequence[Served], address: tuple[str, int], at_once: int = 2
    ) -> None:
        super().__init__(address, _Handler)
        self.models = list(models)
        self.places = threading.BoundedSemaphore(at_once)
        shown = [PageModel(one.name, one.model.metadata) for one in models]
        self.page = served_page(shown).encode()
        self.about = json.dumps([model.settings() for model in shown]).encode()

    def classify(self, number: int, pictures: Pixels) -> Pixels:
        """Return the class maps of pictures N,H,W,3 of one size."""
        if not 0 <= number < len(self.models):
            raise BadRequest(f"model {number}: there are {len(self.models)}, from 0")
        model = self.models[number].model
        with self.places:
            return np.stack([model.classify(picture) for picture in pictures])


class _Handler(BaseHTTPRequestHandler):
    """One connection; several requests may come over it."""

    server: ModelServer
    protocol_version = "HTTP/1.1"
    timeout = _SILENCE

    def do_GET(self) -> None:
        """Answer with the page or what the models know."""
        path = urlsplit(self.path).path
        if not self._is_own_name():
            self._refuse(BadRequest("this server has another name", HTTPStatus.FORBIDDEN))
        elif path == "/":
            self._answer(self.server.page, "text/html; charset=utf-8")
        elif path == "/models":
            self._answer(self.server.about, "application/json")
        else:
            self._refuse(BadRequest("there is / and /models", HTTPStatus.NOT_FOUND))

    def do_POST(self) -> None:
        """Answer pixels with classes."""
        try:
            if not self._is_own_name():
                raise BadRequest("this server has another name", HTTPStatus.FORBIDDEN)
            if urlsplit(self.path).path != "/classify":
                raise BadRequest("pictures go to /classify", HTTPStatus.NOT_FOUND)
            asked = _numbers(urlsplit(self.path).query)
            body = self._body()
            if "height" in asked or "width" in asked:
                found = self.server.classify(asked.get("model", 0), _raw(body, asked))
                self._answer(found.tobytes(), "application/octet-stream")
            else:
                self._answer(self._png(body, asked.get("model", 0)), "image/png")
        except BadRequest as error:
            self._refuse(error)

    def _is_own_name(self) -> bool:
        """Refuse names that another site made point to this machine."""
        if self.server.server_address[0] not in ("127.0.0.1", "::1"):
            return True
        host = (urlsplit(f"//{self.headers.get('Host', '')}").hostname or "").lower()
        return host in ("localhost", "127.0.0.1", "::1")

    def _png(self, body: bytes, number: int) -> bytes:
        classes = self.server.classify(number, _decode(body)[None])[0]
        file = io.BytesIO()
        palette_image(classes, self.server.models[number].legend).save(file, "PNG")
        return file.getvalue()

    def _body(self) -> bytes:
        length = self.headers.get("Content-Length", "")
        if not length.isascii() or not length.isdecimal():
            raise BadRequest("Content-Length is missing", HTTPStatus.LENGTH_REQUIRED)
        if int(length) > LARGEST_BODY:
            raise BadRequest(
                f"{int(length):,} bytes are too many; {LARGEST_BODY:,} are the most",
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
        body = self.rfile.read(int(length))
        if len(body) < int(length):
            raise BadRequest("the body ended early")
        return body

    def _answer(self, content: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        self.end_headers()
        self.wfile.write(content)

    def _refuse(self, error: BadRequest) -> None:
        # What was not read of the body would be taken for the next request.
        self.close_connection = True
        self._answer(str(error).encode(), "text/plain; charset=utf-8", error.status)

    def version_string(self) -> str:
        """Say nothing of the software behind the server."""
        return "nacre"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: requests are the user's own."""


def _numbers(query: str) -> dict[str, int]:
    """Read a query of small whole numbers."""
    asked = {}
    for name, value in parse_qsl(query, max_num_fields=8):
        if name not in ("model", "height", "width", "count"):
            raise BadRequest(f"unknown parameter {name[:40]!r}")
        if not value.isascii() or not value.isdecimal() or len(value) > 9:
            raise BadRequest(f"{name} must be a whole number")
        asked[name] = int(value)
    return asked


def _raw(body: bytes, asked: dict[str, int]) -> Pixels:
    height, width, count = (asked.get(name, 1) for name in ("height", "width", "count"))
    if min(height, width, count) < 1 or height * width * count > MOST_PIXELS:
        raise BadRequest(
            f"{count} x {height} x {width} pixels: 1 to {MOST_PIXELS:,} are taken",
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )
    if len(body) != 3 * count * height * width:
        raise BadRequest(f"{len(body):,} bytes are not {count} x {height} x {width} pixels of RGB")
    return np.frombuffer(body, np.uint8).reshape(count, height, width, 3)


def _decode(body: bytes) -> Pixels:
    """Decode a picture whose size is looked at before its pixels are."""
    try:
        with Image.open(io.BytesIO(body), formats=_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise BadRequest(
                    f"{image.width} x {image.height} pixels are too many",
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
            return np.asarray(upright_rgb(image))
    except (OSError, ValueError, SyntaxError, Image.DecompressionBombError) as error:
        raise BadRequest(
            "the body is no whole PNG, JPEG or WebP", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        ) from error
