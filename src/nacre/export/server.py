"""`nacre serve`: the page with a small local server, for models that a browser cannot hold.

The server uses the standard library alone. A request names a model by its number, and no path,
address or name in it is ever opened. A connection carries one request. The time, memory and number
of connections of clients are limited.

    GET  /            the page
    GET  /models      names, classes and colors of the models as JSON
    POST /classify    class map of an image: raw RGB for ?model=0&height=…&width=…, or a palette
                      PNG for ?model=0 with a PNG, JPEG or WebP

An error is one sentence of plain text. Status 503 tells with Retry-After when to try again.
"""

import contextlib
import io
import json
import select
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
from nacre.export.onnx_file import OnnxModel
from nacre.export.page import served_page, settings_of
from nacre.predict.prediction import palette_image

MAX_BODY_BYTES = 64 << 20
MAX_PIXELS = MAX_BODY_BYTES // 3
"""Pixels of an image, however small its file is."""
TIMEOUT_SECONDS = 30.0
"""Time for a whole request to arrive, and for its response to be taken."""
MAX_CONNECTIONS = 16
MAX_RUNNING = 2
"""Requests that are classified at the same time; the others wait."""
MAX_WAIT_SECONDS = 20.0

_FORMATS = ("PNG", "JPEG", "WEBP")
_UNREADABLE = (OSError, ValueError, SyntaxError, Image.DecompressionBombError)
_LOCAL = ("127.0.0.1", "::1", "localhost")
_VERSIONS = ("HTTP/1.0", "HTTP/1.1")


class BadRequest(Exception):
    """A client's mistake, with the status and the sentence of the response."""

    def __init__(self, reason: str, status: HTTPStatus = HTTPStatus.BAD_REQUEST) -> None:
        super().__init__(reason)
        self.status = status


class ModelServer(ThreadingHTTPServer):
    """A server of a few models, with a thread per request.

    Args:
        models: The models and their names for display, in the order of their numbers.
        address: Host and port; port 0 picks a free one.
    """

    daemon_threads = True
    request_queue_size = 64

    def __init__(self, models: Sequence[tuple[str, OnnxModel]], address: tuple[str, int]) -> None:
        super().__init__(address, _Handler)
        self.models = [model for _, model in models]
        self.connections = threading.Semaphore(MAX_CONNECTIONS)
        self.running = threading.Semaphore(MAX_RUNNING)
        described = [(name, model.metadata) for name, model in models]
        self.page = served_page(described).encode()
        self.about = json.dumps(settings_of(described)).encode()

    def process_request(self, request: Any, client_address: Any) -> None:
        """Start a thread for a connection, or refuse it if there are too many."""
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
        """Answer the request of a connection."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self.connections.release()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Print an error in one line, except if the client left."""
        error = sys.exc_info()[1]
        if not isinstance(error, OSError):
            print(f"a request failed: {type(error).__name__}: {error}"[:300], file=sys.stderr)

    def model(self, number: int) -> OnnxModel:
        """Return a model by its number."""
        if not 0 <= number < len(self.models):
            raise BadRequest(f"no model {number}; the numbers are 0 to {len(self.models) - 1}")
        return self.models[number]


class _TimedInput(io.RawIOBase):
    """The input of a connection until a deadline.

    A timeout of every single read would let a client send one byte now and then forever.
    """

    def __init__(self, connection: socket.socket, deadline: float) -> None:
        self.connection, self.deadline = connection, deadline

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        self.connection.settimeout(max(0.001, self.deadline - time.monotonic()))
        return self.connection.recv_into(buffer)


class _Handler(BaseHTTPRequestHandler):
    """A connection with one request."""

    server: ModelServer
    protocol_version = "HTTP/1.1"
    default_request_version = "HTTP/1.1"  # without it, a bad first line gets no status

    def setup(self) -> None:
        """Limit the time of the request."""
        super().setup()
        timed = _TimedInput(self.connection, time.monotonic() + TIMEOUT_SECONDS)
        self.rfile = io.BufferedReader(timed)

    def parse_request(self) -> bool:
        """Read the first line and the headers; refuse other versions of HTTP."""
        if not super().parse_request():
            return False
        if self.request_version not in _VERSIONS:
            self.request_version = self.default_request_version
            self.send_error(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED)
            return False
        return True

    def do_GET(self) -> None:
        """Send the page or the description of the models."""
        self._respond(self._get)

    do_HEAD = do_GET

    def do_POST(self) -> None:
        """Send the class map of an image."""
        self._respond(self._post)

    def _respond(self, answer: Callable[[SplitResult], tuple[bytes, str]]) -> None:
        try:
            self._check_sender()
            content, content_type = answer(_split(self.path))
        except BadRequest as error:
            self.send_error(error.status, str(error))
        except Exception as error:
            if not isinstance(error, OSError):  # otherwise the client left
                self.send_error(HTTPStatus.INTERNAL_SERVER_ERROR, "the server failed")
            raise
        else:
            self._send(content, content_type)

    def _get(self, address: SplitResult) -> tuple[bytes, str]:
        if address.path == "/":
            return self.server.page, "text/html; charset=utf-8"
        if address.path == "/models":
            return self.server.about, "application/json"
        raise BadRequest("not found; GET / or /models", HTTPStatus.NOT_FOUND)

    def _post(self, address: SplitResult) -> tuple[bytes, str]:
        if address.path != "/classify":
            raise BadRequest("not found; POST images to /classify", HTTPStatus.NOT_FOUND)
        numbers = _read_query(address.query)
        model = self.server.model(numbers.get("model", 0))
        body = self._read_body(self._body_size())
        is_raw = "height" in numbers or "width" in numbers
        with self._turn():
            classes = _classify(model, _raw_pixels(body, numbers) if is_raw else _decode(body))
        if is_raw:
            return classes.tobytes(), "application/octet-stream"
        file = io.BytesIO()
        palette_image(classes, model.metadata.colors).save(file, "PNG")
        return file.getvalue(), "image/png"

    @contextlib.contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until few other requests are running; stop if the client has left meanwhile."""
        if not self.server.running.acquire(timeout=MAX_WAIT_SECONDS):
            raise BadRequest("the server is busy; try again", HTTPStatus.SERVICE_UNAVAILABLE)
        try:
            has_news = bool(select.select([self.connection], [], [], 0)[0])
            if has_news and not self.connection.recv(1, socket.MSG_PEEK):
                raise ConnectionAbortedError
            yield
        finally:
            self.server.running.release()

    def _check_sender(self) -> None:
        """Refuse host names that point to this machine from outside, and pages of other sites."""
        host = self.headers.get("Host", "").lower()
        name = _split(f"//{host}").hostname or ""
        if self.server.server_address[0] in _LOCAL and name not in _LOCAL:
            raise BadRequest("unexpected Host header; use localhost", HTTPStatus.FORBIDDEN)
        origin = self.headers.get("Origin")
        if origin is not None and _split(origin).netloc.lower() != host:
            raise BadRequest("pages of other sites are not allowed", HTTPStatus.FORBIDDEN)

    def _body_size(self) -> int:
        lengths = self.headers.get_all("Content-Length", [])
        if len(lengths) > 1 or (lengths and "Transfer-Encoding" in self.headers):
            raise BadRequest("the length of the body is given twice")
        if not lengths or not lengths[0].isascii() or not lengths[0].isdecimal():
            raise BadRequest("Content-Length is missing", HTTPStatus.LENGTH_REQUIRED)
        if len(lengths[0]) > 20 or int(lengths[0]) > MAX_BODY_BYTES:
            raise BadRequest(
                f"{lengths[0][:20]} bytes are too many; the limit is {MAX_BODY_BYTES:,}",
                HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
            )
        return int(lengths[0])

    def _read_body(self, size: int) -> bytes:
        try:
            body = self.rfile.read(size)
        except TimeoutError as error:
            raise BadRequest("the request took too long", HTTPStatus.REQUEST_TIMEOUT) from error
        if len(body) < size:
            raise BadRequest("the body ended early")
        return body

    def send_error(self, code: int, message: str | None = None, explain: str | None = None) -> None:
        """Send an error in one sentence; the standard library calls this method, too."""
        status = HTTPStatus(code)
        self._send((message or status.phrase).encode(), "text/plain; charset=utf-8", status)
        # A client that is cut off while it sends does not receive the response.
        with contextlib.suppress(OSError):
            self.connection.shutdown(socket.SHUT_WR)
            left = MAX_BODY_BYTES
            while left > 0 and (chunk := self.rfile.read1(1 << 16)):
                left -= len(chunk)

    def _send(self, content: bytes, content_type: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.connection.settimeout(TIMEOUT_SECONDS)
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
        """Return a name without the versions of the software."""
        return "nacre"

    def log_message(self, format: str, *args: Any) -> None:
        """Log nothing: requests are the user's own."""


def _split(address: str) -> SplitResult:
    try:
        return urlsplit(address)
    except ValueError as error:
        raise BadRequest("an address in the request is not valid") from error


def _read_query(query: str) -> dict[str, int]:
    """Read the numbers of a query."""
    try:
        pairs = parse_qsl(query, max_num_fields=8)
    except ValueError as error:
        raise BadRequest("too many parameters") from error
    numbers = {}
    for name, value in pairs:
        if name not in ("model", "height", "width"):
            raise BadRequest(f"unknown parameter {name[:40]!a}")
        if not value.isascii() or not value.isdecimal() or len(value) > 9:
            raise BadRequest(f"{name} must be a whole number")
        numbers[name] = int(value)
    return numbers


def _raw_pixels(body: bytes, numbers: dict[str, int]) -> Pixels:
    height, width = (numbers.get(name, 1) for name in ("height", "width"))
    if min(height, width) < 1 or height * width > MAX_PIXELS:
        raise BadRequest(
            f"{height} x {width} pixels are not allowed; give 1 to {MAX_PIXELS:,}",
            HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        )
    if len(body) != 3 * height * width:
        raise BadRequest(f"{len(body):,} bytes are not {height} x {width} pixels of RGB")
    return np.frombuffer(body, np.uint8).reshape(height, width, 3)


def _decode(body: bytes) -> Pixels:
    """Decode an image after a check of its size."""
    try:
        with Image.open(io.BytesIO(body), formats=_FORMATS) as image:
            if image.width * image.height > MAX_PIXELS:
                raise BadRequest(
                    f"{image.width} x {image.height} pixels are too many; the limit is "
                    f"{MAX_PIXELS:,}",
                    HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
                )
            return np.asarray(upright_rgb(image))
    except _UNREADABLE as error:
        raise BadRequest(
            "the body is not a complete PNG, JPEG or WebP", HTTPStatus.UNSUPPORTED_MEDIA_TYPE
        ) from error


def _classify(model: OnnxModel, image: Pixels) -> Pixels:
    try:
        return model.classify(image)
    except NacreError as error:  # scaled to the training size, a long image is too large
        raise BadRequest(str(error), HTTPStatus.REQUEST_ENTITY_TOO_LARGE) from error
