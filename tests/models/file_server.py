"""A server on loopback that behaves as servers do: whole, cut off, wrong, absent, elsewhere."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = bytes(range(256)) * 40
"""A file of the site."""


@dataclass
class Site:
    """What the server has and what it was asked for.

    Attributes:
        address: its URL.
        files: content by path.
        headers: more headers by path, of a HEAD request and of a redirection.
        moved: where a path is redirected to.
        cut: bytes after which each answer breaks off; None answers whole.
        ranges: whether it can begin in the middle.
        asked: method, path and range of each request.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    moved: dict[str, str] = field(default_factory=dict)
    cut: int | None = None
    ranges: bool = True
    asked: list[tuple[str, str, str | None]] = field(default_factory=list)


@contextlib.contextmanager
def serving() -> Iterator[Site]:
    """Serve a site until the end of the context."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        def do_HEAD(self) -> None:
            self._answer(body=False)

        def do_GET(self) -> None:
            self._answer(body=True)

        def _answer(self, body: bool) -> None:
            site.asked.append((self.command, self.path, self.headers.get("Range")))
            if self.path in site.moved:
                return self._head(302, {"Location": site.moved[self.path], "Content-Length": "0"})
            if self.path not in site.files:
                return self.send_error(404)
            content, start = site.files[self.path], 0
            asked = self.headers.get("Range")
            if asked and site.ranges:
                start = int(asked.removeprefix("bytes=").rstrip("-"))
                if start >= len(content):
                    return self._head(416, {"Content-Length": "0"})
            self._head(206 if start else 200, {"Content-Length": str(len(content) - start)})
            if body:
                end = len(content) if site.cut is None else start + site.cut
                self.wfile.write(content[start:end])

        def _head(self, code: int, headers: dict[str, str]) -> None:
            self.send_response(code)
            for name, value in (headers | site.headers.get(self.path, {})).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        site.address = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield site
        finally:
            server.shutdown()
            thread.join()
