"""A headless Chromium that is controlled over a pipe."""

import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--use-fake-device-for-media-stream",
    "--use-fake-ui-for-media-stream",
    "--remote-debugging-pipe",
)


def find_browser() -> str:
    found = [path for name in NAMES if (path := shutil.which(name))]
    if not found:
        pytest.skip(f"no browser is installed: none of {', '.join(NAMES)}")
    return found[0]


class Browser:
    """A page in a browser.

    Attributes:
        console: Lines of the page's console, and its uncaught errors.
        requests: The addresses of all requests, except blobs and data.
    """

    def __init__(self, folder: Path) -> None:
        to_read, self.write_end = os.pipe()
        self.read_end, to_write = os.pipe()

        def give_pipes() -> None:
            # The browser reads commands from 3 and writes answers to 4.
            reading, writing = os.dup(to_read), os.dup(to_write)
            os.dup2(reading, 3)
            os.dup2(writing, 4)

        self.process = subprocess.Popen(
            [find_browser(), *FLAGS, f"--user-data-dir={folder}", "about:blank"],
            preexec_fn=give_pipes,
            close_fds=False,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_read)
        os.close(to_write)
        self.count, self.rest, self.session = 0, b"", None
        self.console: list[str] = []
        self.requests: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self.session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self.count += 1
        message: dict[str, Any] = {"id": self.count, "method": method, "params": parameters}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.write_end, json.dumps(message).encode() + b"\0")
        until = time.monotonic() + 240
        while time.monotonic() < until:
            answer = self._receive(until)
            if answer.get("id") == self.count:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)
        raise TimeoutError(method)

    def _receive(self, until: float) -> dict[str, Any]:
        while b"\0" not in self.rest:
            ready, _, _ = select.select([self.read_end], [], [], max(0, until - time.monotonic()))
            assert ready, "the browser does not answer"
            chunk = os.read(self.read_end, 1 << 16)
            assert chunk, "the browser is gone"
            self.rest += chunk
        message, _, self.rest = self.rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict[str, Any]) -> None:
        method, details = event.get("method"), event.get("params", {})
        if method == "Runtime.consoleAPICalled":
            self.console.append(" ".join(str(one.get("value", one)) for one in details["args"]))
        elif method == "Runtime.exceptionThrown":
            self.console.append(json.dumps(details["exceptionDetails"])[:500])
        elif method == "Log.entryAdded":
            self.console.append(details["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            url = details["request"]["url"]
            if not url.startswith(("blob:", "data:")):
                self.requests.append(url)

    def resize(self, width: int, height: int, scheme: str = "light") -> None:
        self.send(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        feature = {"name": "prefers-color-scheme", "value": scheme}
        self.send("Emulation.setEmulatedMedia", features=[feature])

    def open(self, url: str) -> None:
        self.send("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def run(self, script: str) -> Any:
        """Evaluate an expression, waiting for its promise."""
        answer = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True
        )
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def until(self, condition: str, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while not self.run(condition):
            assert time.monotonic() < end, f"never true: {condition}; {self.console}"
            time.sleep(0.1)

    def choose(self, selector: str, *files: Path) -> None:
        """Choose files in a file input."""
        root = self.send("DOM.getDocument")["root"]["nodeId"]
        node = self.send("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        self.send("DOM.setFileInputFiles", nodeId=node, files=[str(path) for path in files])

    def close(self) -> None:
        try:
            self.session = None
            self.send("Browser.close")
            self.process.wait(20)
        finally:
            if self.process.poll() is None:
                self.process.kill()
                self.process.wait()
            os.close(self.write_end)
            os.close(self.read_end)
