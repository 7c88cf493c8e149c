"""A Hugging Face hub on loopback: repositories are made, commits are taken, files are served."""

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Hub:
    """What the hub has.

    Attributes:
        address: Its URL.
        made: Repositories that were made.
        files: Content by repository and path.
        refuses: Whether it takes no commits.
    """

    address: str = ""
    made: list[str] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    refuses: bool = False


@contextlib.contextmanager
def hub_site() -> Iterator[Hub]:
    """Run a hub until the end of the context."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
            if self.path == "/api/repos/create":
                given = json.loads(body)
                name = f"{given['organization']}/{given['name']}"
                hub.made.append(name)
                self._json({"url": f"{hub.address}/{name}", "id": name, "name": name})
            elif self.path == "/api/validate-yaml":
                self._json({"errors": [], "warnings": []})
            elif self.path.endswith("/preupload/main"):
                asked = json.loads(body)["files"]
                plain = {"uploadMode": "regular", "shouldIgnore": False, "oid": None}
                self._json({"files": [{"path": one["path"], **plain} for one in asked]})
            elif "/commit/main" in self.path and not hub.refuses:
                self._commit(self.path.split("/api/models/")[1].split("/commit/")[0], body)
            else:
                self._json({"error": "not allowed"}, 403)

        def _commit(self, repository: str, body: bytes) -> None:
            for line in body.decode().splitlines():
                entry = json.loads(line)
                if entry["key"] == "file":
                    content = base64.b64decode(entry["value"]["content"])
                    hub.files[f"/{repository}/resolve/main/{entry['value']['path']}"] = content
            commit = {"commitUrl": f"{hub.address}/{repository}/commit/{'0' * 40}"}
            self._json(commit | {"commitOid": "0" * 40, "success": True})

        def do_GET(self) -> None:
            self._file(body=True)

        def do_HEAD(self) -> None:
            self._file(body=False)

        def _file(self, body: bool) -> None:
            content = hub.files.get(self.path)
            if self.path.startswith("/api/models/"):
                return self._json({"id": "x", "sha": "0" * 40, "siblings": [], "tags": []})
            if content is None:
                return self._json({"error": "not found"}, 404)
            self.send_response(200)
            self.send_header("Content-Length", str(len(content)))
            self.send_header("X-Repo-Commit", "0" * 40)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.end_headers()
            if body:
                self.wfile.write(content)

        def _json(self, content: object, status: int = 200) -> None:
            text = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(text)

        def log_message(self, *args: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.address = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
