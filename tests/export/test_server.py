"""The local server: class maps for images, and one sentence for every other request."""

import contextlib
import http.client
import io
import json
import socket
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from local_server import send, serving
from nacre.cli.app import program
from nacre.export import onnx_file
from nacre.export import server as server_module
from nacre.export.onnx_file import OnnxModel, noise_image
from nacre.export.page import served_page


@pytest.fixture(scope="module")
def opened(exported: Path) -> OnnxModel:
    return OnnxModel(exported, threads=1)


@pytest.fixture(scope="module")
def port(opened: OnnxModel):
    with serving(opened) as number:
        yield number


def ask(port: int, method: str, path: str, body: bytes | None = None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer
    finally:
        connection.close()


def test_raw_pixels_come_back_as_classes(port: int, opened: OnnxModel) -> None:
    image = noise_image((45, 70))
    status, body, _ = ask(port, "POST", "/classify?model=0&height=45&width=70", image.tobytes())
    assert status == 200
    assert (np.frombuffer(body, np.uint8).reshape(45, 70) == opened.classify(image)).all()


def test_the_page_and_the_models_are_there(port: int, opened: OnnxModel) -> None:
    status, body, answer = ask(port, "GET", "/")
    assert status == 200
    assert b"connect-src &#39;self&#39;" in body
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    status, body, _ = ask(port, "GET", "/models")
    assert json.loads(body)[0]["classes"] == opened.metadata.classes


@pytest.mark.parametrize(
    "path",
    ["/../../etc/passwd", "/%2e%2e/pyproject.toml", "//etc/passwd", "/model.onnx"],
)
def test_no_path_is_ever_opened(port: int, path: str) -> None:
    status, body, _ = ask(port, "GET", path)
    assert (status, body) == (404, b"not found; GET / or /models")


@pytest.mark.parametrize(
    ("path", "body", "status", "error"),
    [
        ("/classify?height=4&width=4", b"123", 400, "3 bytes are not 4 x 4"),
        ("/classify?height=0&width=4", b"", 413, "give 1 to"),
        ("/classify?height=99999&width=99999", b"", 413, "not allowed"),
        ("/classify?height=-1&width=4", b"", 400, "whole number"),
        ("/classify?height=1e3&width=4", b"", 400, "whole number"),
        ("/classify?model=7&height=1&width=1", b"abc", 400, "the numbers are 0 to 0"),
        ("/classify?file=/etc/passwd", b"", 400, "unknown parameter"),
        ("/classify", b"no image", 415, "not a complete PNG, JPEG or WebP"),
        ("/elsewhere", b"", 404, "/classify"),
    ],
)
def test_a_bad_request_is_one_sentence(port: int, path, body, status, error) -> None:
    found, text, _ = ask(port, "POST", path, body)
    assert found == status
    assert error in text.decode()
    assert b"Traceback" not in text


def test_bodies_and_images_have_a_limit(port: int) -> None:
    headers = {"Content-Length": str(server_module.MAX_BODY_BYTES + 1)}
    assert ask(port, "POST", "/classify", None, headers)[0] == 413
    assert ask(port, "POST", "/classify", None, {"Content-Length": "many"})[0] == 411
    small_file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(small_file, "PNG")
    assert ask(port, "POST", "/classify", small_file.getvalue())[0] in (413, 415)


def test_other_host_names_are_refused(port: int) -> None:
    assert ask(port, "GET", "/", headers={"Host": "evil.example"})[0] == 403
    assert ask(port, "GET", "/", headers={"Host": f"localhost:{port}"})[0] == 200


def post(*headers: str, query: str = "") -> bytes:
    lines = [f"POST /classify{query} HTTP/1.1", "Host: localhost", *headers, "", ""]
    return "\r\n".join(lines).encode()


@pytest.mark.parametrize(
    ("content", "status"),
    [
        (b"GET / HTTP/1.1\r\nHost: [\r\n\r\n", 400),
        (b"GET / HTTP/1.1\r\nHost: [::1\r\n\r\n", 400),
        (b"GET http://[ HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (b"GET / HTTP/0.9\r\nHost: localhost\r\n\r\n", 505),
        (b"GET / HTTP/3.0\r\nHost: localhost\r\n\r\n", 505),
        (b"GET / HTTP/x.y\r\nHost: localhost\r\n\r\n", 400),
        (b"GET\r\n\r\n", 400),
        (b"\x00\xff\r\n\r\n", 400),
        (b"GET /" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n", 414),
        (b"GET / HTTP/1.1\r\n" + b"a: b\r\n" * 200 + b"\r\n", 431),
        (b"PUT / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"OPTIONS / HTTP/1.1\r\nHost: localhost\r\n\r\n", 501),
        (b"GET / HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 403),
        (post("Origin: null", "Content-Length: 0"), 403),
        (post("Content-Length: 3", "Content-Length: 3") + b"abc", 400),
        (post("Content-Length: 3", "Transfer-Encoding: chunked"), 400),
        (post("Transfer-Encoding: chunked"), 411),
        (post("Content-Length: " + "9" * 5000), 413),
        (post("Content-Length: 0", query="?" + "&".join(["model=0"] * 9)), 400),
    ],
)
def test_a_malformed_request_gets_one_plain_sentence(port, content, status, capfd) -> None:
    answer = send(port, content)
    assert answer.startswith(f"HTTP/1.1 {status} ".encode())
    head, _, text = answer.partition(b"\r\n\r\n")
    assert b"X-Content-Type-Options: nosniff" in head
    assert b"Content-Type: text/plain" in head
    assert text
    assert b"<" not in text
    assert capfd.readouterr() == ("", "")


def test_only_pages_of_this_server_may_send_requests(port: int) -> None:
    own = {"Host": f"localhost:{port}", "Origin": f"http://localhost:{port}"}
    assert ask(port, "GET", "/models", headers=own)[0] == 200
    assert ask(port, "GET", "/models", headers={**own, "Origin": "http://localhost"})[0] == 403


@pytest.mark.parametrize("begin", [b"GET / HT", post("Content-Length: 1000")])
def test_a_client_that_sends_one_byte_now_and_then_is_cut_off(opened, monkeypatch, begin) -> None:
    monkeypatch.setattr(server_module, "TIMEOUT_SECONDS", 0.5)
    with (
        serving(opened) as port,
        socket.create_connection(("127.0.0.1", port), timeout=0.05) as connection,
    ):
        connection.sendall(begin)
        deadline = time.monotonic() + 120
        answer = None
        while answer is None or not (answer == b"" or b"408 Request Timeout" in answer):
            assert time.monotonic() < deadline, "the client may continue forever"
            with contextlib.suppress(TimeoutError, ConnectionError):
                answer = connection.recv(1000)
            with contextlib.suppress(ConnectionError):
                connection.sendall(b"x")


def test_connections_have_a_limit(opened, monkeypatch) -> None:
    monkeypatch.setattr(server_module, "MAX_CONNECTIONS", 2)
    with serving(opened) as port:
        idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(2)]
        with socket.create_connection(("127.0.0.1", port), timeout=60) as third:
            assert third.recv(1000).startswith(b"HTTP/1.1 503 ")
        for one in idle:
            one.close()
        wait_until(lambda: ask_or_none(port) == 200)


def ask_or_none(port: int) -> int | None:
    with contextlib.suppress(ConnectionError):
        return ask(port, "GET", "/models")[0]
    return None


def wait_until(is_so) -> None:
    until = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < until
        time.sleep(0.01)


class Slow:
    """A model that waits before it classifies images of one width."""

    def __init__(self, like: OnnxModel, slow_width: int) -> None:
        self.metadata, self.slow_width = like.metadata, slow_width
        self.go, self.count = threading.Event(), 0

    def classify(self, image):
        self.count += 1
        if image.shape[1] == self.slow_width:
            self.go.wait(60)
        return np.zeros(image.shape[:2], np.uint8)


def ask_width(port: int, width: int) -> int:
    return ask(port, "POST", f"/classify?height=1&width={width}", bytes(3 * width))[0]


def test_a_request_does_not_wait_forever(opened, monkeypatch) -> None:
    monkeypatch.setattr(server_module, "MAX_WAIT_SECONDS", 0.1)
    model = Slow(opened, 7)
    monkeypatch.setattr(server_module, "MAX_RUNNING", 1)
    with serving(model) as port, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask_width, port, 7)
        wait_until(lambda: model.count == 1)
        assert ask_width(port, 8) == 503
        model.go.set()
        assert first.result() == 200


def test_a_request_whose_client_left_is_not_computed(opened, monkeypatch, capfd) -> None:
    model = Slow(opened, 7)
    monkeypatch.setattr(server_module, "MAX_RUNNING", 1)
    with serving(model) as port, ThreadPoolExecutor(2) as pool:
        first = pool.submit(ask_width, port, 7)
        wait_until(lambda: model.count == 1)
        with socket.create_connection(("127.0.0.1", port)) as leaving:
            leaving.sendall(post("Content-Length: 3", query="?height=1&width=1") + b"abc")
        last = pool.submit(ask_width, port, 8)
        time.sleep(0.2)
        model.go.set()
        assert (first.result(), last.result()) == (200, 200)
    assert model.count == 2
    assert capfd.readouterr() == ("", "")


def test_a_model_that_fails_is_one_line(opened, capfd) -> None:
    model = Slow(opened, 7)
    model.classify = lambda image: [][1]
    with serving(model) as port:
        assert ask_width(port, 8) == 500
    printed = ""
    deadline = time.monotonic() + 60
    while not printed and time.monotonic() < deadline:  # it is printed after the response
        printed = capfd.readouterr().err
    assert printed == "a request failed: IndexError: list index out of range\n"


def test_all_models_are_found_before_the_first_is_exported(
    learned: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_onnx(*given: object) -> str:
        raise AssertionError("exported")

    monkeypatch.setattr(onnx_file, "export_onnx", export_onnx)
    done = CliRunner().invoke(program, ["serve", str(learned), "nope"])
    assert "no model at nope" in str(done.exception) + done.output
    done = CliRunner().invoke(program, ["serve", str(learned)])
    assert f"preparing {learned.name} (about a minute)" in done.output


def test_a_page_of_two_models_names_the_classes_of_both(opened: OnnxModel) -> None:
    def model(*steps: str):
        history = [{"classes": [name], "images": 1} for name in steps]
        return replace(opened.metadata, classes=["background", *steps], history=history)

    text = served_page([("a", model("dog", "cat")), ("b", model("dog", "sheep"))])
    assert "<h1>What is where: dog, cat, sheep</h1>" in text
    assert "Learned in this order" not in text
    text = served_page([("a", model("dog", "cat")), ("b", model("dog", "cat"))])
    assert "Learned in this order: dog → cat." in text
