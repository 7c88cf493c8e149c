"""`nacre serve`: the page against a small local server, for models that a browser cannot hold.

Only the standard library. A request names a number of a model and a size, and brings pixels; no
path, address or name in it is ever opened. One connection carries one request. Whatever a client
does, it takes a bounded share: of time, connections, memory and waiting places.

    GET  /            the page
    GET  /models      what the models know, as JSON
    POST /classify    pixels in, a class map out: ?model=0&height=…&width=… with raw RGB, or
                      ?model=0 with a PNG, JPEG or WebP, which comes back as a palette PNG

Errors are one sentence of plain text; 503 says by Retry-After when to ask again.
"""

import contextlib
import io
import json
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import SplitResult, parse_qsl, urlsplit

import numpy as np
from PIL import Image

from nacre.data.image_io import Pixels, upright_rgb
from nacre.errors import NacreError
from nacre.export.onnx_model import OnnxModel
from nacre.export.page import served_page, settings_of
from nacre.predict.prediction import palette_image

LARGEST_BODY = 64 << 20
"""Bytes of a request at most."""

MOST_PIXELS = LARGEST_BODY // 3
"""Pixels of a request at most, also of an image that comes small and unfolds."""

SECONDS = 30.0
"""In which a request must have come, and in which its answer must have been taken."""

CONNECTIONS = 16
"""At the same time, at most."""

AT_ONCE = 2
"""Requests that are classified at the same time; the others wait."""

PATIENCE = 20.0
"""Seconds that a request waits at most."""

_FORMATS = ("PNG", "JPEG", "WEBP")
_UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
_LOCAL = ("127.0.0.1", "::1", "localhost")
_VERSIONS = ("HTTP/1.0", "HTTP/1.1")


class BadRequest(Exception):
    """A mistake in a request, told to the sender."""

    def __init__(self, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(reason)
        self.status = status


class ModelServer(ThreadingHTTPServer):
    """Answers from a few models; each request has a thread, the models run so many at once.

    Args:
        models: What is served, by names for people, in the order of their numbers.
        address: Host and port; port 0 takes a free one.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, models: Sequence[tuple[str, OnnxModel]], address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.models = [model for _, model in models]
        self.connections = threading.Semaphore(CONNECTIONS)
        self.places = threading.Semaphore(AT_ONCE)
        shown = [(name, model.metadata) for name, model in models]
        self.page = served_page(shown).encode()
        self.about = json.dumps(settings_of(shown)).encode()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Give a connection a thread of its own, while there are not too many."""
        if self.connections.acquire(blocking=False):
            super().process_request(request, client_address)
            return
        with contextlib.suppress(OSError):
            request.setblocking(False)
            request.send(
                b"HTTP/1.1 503 Service Unavailable\r\nRetry-After: 1\r\nConnection: close\r\n"
                b"Content-Length: 0\r\n\r\n"
            )
        self.shutdown_request(request)

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """Answer a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print in one line what failed; nothing of a client that left."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"a request failed: {type(error).__name__}: {error}"[:300], file=sys.stderr)

    def model(self, number: int) -> OnnxModel:
        """Return a model by its number."""
        if not 0 <= number < len(self.models):
            raise BadRequest(f"model {number}: there are {len(self.models)}, from 0")
        return self.models[number]


class _Timed(io.RawIOBase):
    """The input of a connection, until a moment.

    A limit for every read alone would let a client send a byte now and then for ever.
    """

    def __init__(self, connection: socket.socket, until: float) -> None:
        self.connection, self.until = connection, until

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.connection.settimeout(max(0.001, self.until - time.monotonic()))
        return self.connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """One connection with one request."""

    server: ModelServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # else a bad first line is answered without a status

    def setup(self) -> None:
        """Limit the time of the request."""
        super().setup()
        timed = _Timed(self.connection, time.monotonic() + SECONDS)
        self.rfile = io.BufferedReader(timed)

    def parse_request(self) -> bool:
        """Read the first line and the headers; answer what is no request."""
        if not super().parse_request():
            return False
        if self.request_version not in _VERSIONS:
            self.request_version = self.default_request_version
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            return False
        return True

    def do_GET(self) -> None:
        """Answer with the page or what the models know."""
        self._respond(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Answer pixels with classes."""
        self._respond(self._post)

    def _respond(self, answer: Callable[[SplitResult], tuple[bytes, str]]) -> None:
        try:
            self._check_sender()
            content, content_type = answer(_split(self.path))
        except BadRequest as error:
            self.send_error(error.status, str(error))
        except Exception as error:
            if not isinstance(error, OSError):  # else the client left
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the server could not do that")
            raise
        else:
            self._answer(content, content_type)

    def _get(self, address: SplitResult) -> tuple[bytes, str]:
        if address.path == "/":
            return self.server.page, "text/html; charset=utf-8"
        if address.path == "/models":
            return self.server.about, "application/json"
        raise BadRequest("there is / and /models", HTTPStatus.NOT_FOUND)

    def _post(self, address: SplitResult) -> tuple[bytes, str]:
        if address.path != "/classify":
            raise BadRequest("images go to /classify", HTTPStatus.NOT_FOUND)
        asked = _numbers(address.query)
        model = self.server.model(asked.get("model", 0))
        body = self._body(self._body_size())
        is_raw = "height" in asked or "width" in asked
        with self._turn():
            classes = _classify(model, _raw(body, asked) if is_raw else _decode(body))
        if is_raw:
            return classes.tobytes(), "application/octet-stream"
        file = io.BytesIO()
        palette_image(classes, model.metadata.colors).save(file, "PNG")
        return file.getvalue(), "image/png"

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait for a place; whoever left meanwhile needs none."""
        if not self.server.places.acquire(timeout=PATIENCE):
            raise BadRequest("the server is busy; try again", HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            self.connection.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                if not self.connection.recv(1, socket.MSG_PEEK):
                    raise ConnectionAbortedError
            yield
        finally:
            self.server.places.release()

    def _check_sender(self) -> None:
        """Refuse names that another site made point to this machine, and pages of other sites."""
        host = self.headers.get("Host", "").lower()
        name = _split(f"//{host}").hostname or ""
        if self.server.server_address[0] in _LOCAL and name not in _LOCAL:
            raise BadRequest("this server has another name", HTTPStatus.FORBIDDEN)
        origin = self.headers.get("Origin")
        if origin is not None and _split(origin).netloc.lower() != host:
            raise BadRequest("pages of other sites may not ask this server", HTTPStatus.FORBIDDEN)

    def _body_size(self) -> int:
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) > 1 or (lengths and "Transfer-Encoding" in self.headers):
            raise BadRequest("the length of the body is given twice")
        if not lengths or not lengths[0].isascii() or not lengths[0].isdecimal():
            raise BadRequest("Content-Length is missing", HTTPStatus.LENGTH_REQUIRED)
        if len(lengths[0]) > 20 or int(lengths[0]) > LARGEST_BODY:
            raise BadRequest(
                f"{lengths[0][:20]} bytes are too many; {LARGEST_BODY:,} are the most",
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
        return int(lengths[0])

    def _body(self, size: int) -> bytes:
        try:
            body = self.rfile.read(size)
        except TimeoutError as error:
            raise BadRequest("the request took too long", HTTPStatus.REQUEST_TIMEOUT) from error
        if len(body) < size:
            raise BadRequest("the body ended early")
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Answer with one sentence, also for what the standard library finds."""
        status = HTTPStatus(code)
        self._answer((message or status.phrase).encode(), "text/plain; charset=utf-8", status)
        self._drop_rest()

    def _drop_rest(self) -> None:
        """Read what still comes: a client that is cut off while it sends sees no answer."""
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            left = LARGEST_BODY
            while left > 0 and (part := self.rfile.read1(1 << 16)):
                left -= len(part)

    def _answer(
        self, content: bytes, content_type: str, status: HTTPStatus = HTTPStatus.OK
    ) -> None:
        self.connection.settimeout(SECONDS)  # for all of the answer
        self.send_response(status)
        self.send_header("Connection", "close")
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.send_header("Cache-Control", "no-store")
        if status == HTTPStatus.SERVICE_UNAVAILABLE:
            self.send_header("Retry-After", "1")
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def version_string(self) -> str:
        """Return nothing of the software behind the server."""
        return "nacre"

    def log_message(self, format: str, *args: Any) -> None:
        """Keep quiet: requests are the user's own."""


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise BadRequest("an address in the request cannot be read") from error


def _numbers(query: str) -> dict[str, int]:
    """Read a query of small whole numbers."""
    try:
        pairs = parse_qsl(query, max_num_fields=8)
    except ValueError as error:
        raise BadRequest("too many parameters") from error
    asked = {}
    for name, value in pairs:
        if name not in ("model", "height", "width"):
            raise BadRequest(f"unknown parameter {name[:40]!a}")
        if not value.isascii() or not value.isdecimal() or len(value) > 9:
            raise BadRequest(f"{name} must be a whole number")
        asked[name] = int(value)
    return asked


def _raw(body: bytes, asked: dict[str, int]) -> Pixels:
    height, width = (asked.get(name, 1) for name in ("height", "width"))
    if min(height, width) < 1 or height * width > MOST_PIXELS:
        raise BadRequest(
            f"{height} x {width} pixels: 1 to {MOST_PIXELS:,} are taken",
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )
    if len(body) != 3 * height * width:
        raise BadRequest(f"{len(body):,} bytes are not {height} x {width} pixels of RGB")
    return np.frombuffer(body, np.uint8).reshape(height, width, 3)


def _decode(body: bytes) -> Pixels:
    """Decode an image; its size is looked at before its pixels are."""
    try:
        with Image.open(io.BytesIO(body), formats=_FORMATS) as image:
            if image.width * image.height > MOST_PIXELS:
                raise BadRequest(
                    f"{image.width} x {image.height} pixels are too many",
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
            return np.asarray(upright_rgb(image))
    except _UNREADABLE as error:
        raise BadRequest(
            "the body is no whole PNG, JPEG or WebP", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        ) from error


def _classify(model: OnnxModel, image: Pixels) -> Pixels:
    try:
        return model.classify(image)
    except NacreError as error:  # one side is so long that the network would see too much
        raise BadRequest(str(error), HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from error
