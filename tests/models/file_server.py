"""Servers on loopback with valid and invalid responses."""

from __future__ import annotations

import contextlib
import hashlib
import socketserver
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

CONTENT = bytes(range(256)) * 40
"""A file of the site."""

COMMIT = "c0ffee" + "0" * 34
"""The commit that every branch of every repository of the site is at."""


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class Site:
    """What the server has and what it was asked for.

    Attributes:
        address: its URL.
        files: content by path; those of a repository are served as the hub does.
        headers: more headers by path, of whatever is answered.
        status: what is answered instead of 404.
        asked: method and path of each request.
    """

    address: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    headers: dict[str, dict[str, str]] = field(default_factory=dict)
    status: int = 404
    asked: list[tuple[str, str]] = field(default_factory=list)


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
            site.asked.append((self.command, self.path))
            if self.path not in site.files:
                return self._head(site.status, {"Content-Length": "0"})
            content = site.files[self.path]
            headers = {"Content-Length": str(len(content))}
            if "/resolve/" in self.path:
                headers |= {"X-Repo-Commit": COMMIT, "ETag": f'"{sha256(content)}"'}
            self._head(200, headers)
            if body:
                self.wfile.write(content)

        def _head(self, code: int, headers: dict[str, str]) -> None:
            self.send_response(code)
            for name, value in (headers | site.headers.get(self.path, {})).items():
                self.send_header(name, value)
            self.end_headers()

        def log_message(self, *args: object) -> None:
            pass

    with running(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as site.address:
        yield site


@contextlib.contextmanager
def answering(answer: bytes) -> Iterator[str]:
    """Answer every request by the same bytes, whatever they are; yield the address."""

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            while self.rfile.readline() not in (b"\r\n", b""):
                pass
            self.wfile.write(answer)

    with running(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as address:
        yield address


@contextlib.contextmanager
def running(server: socketserver.TCPServer) -> Iterator[str]:
    """Run a server until the end of the context; yield its address."""
    with server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()
