"""A local model server, and raw requests to it."""

import contextlib
import socket
import threading
from collections.abc import Iterator
from typing import Any

from nacre.export.server import ModelServer


@contextlib.contextmanager
def serving(model: Any) -> Iterator[int]:
    """Serve a model; yields the port."""
    with ModelServer([("tiny", model)], ("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def send(port: int, content: bytes) -> bytes:
    """Send bytes; return the whole answer."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as connection:
        connection.sendall(content)
        return b"".join(iter(lambda: connection.recv(65536), b""))
