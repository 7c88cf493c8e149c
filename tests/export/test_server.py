"""The local server: pixels in, classes out, and nothing else that a request could ask for."""

import http.client
import io
import json
import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from PIL import Image

from nacre.export import server as server_module
from nacre.export.onnx_file import Exported
from nacre.export.runtime import OnnxModel
from nacre.export.server import ModelServer, Served
from nacre.export.verify import noise_picture


@pytest.fixture(scope="module")
def opened(exported: Exported) -> OnnxModel:
    return OnnxModel(exported.path, threads=1)


@pytest.fixture(scope="module")
def port(opened: OnnxModel):
    with ModelServer([Served("tiny", opened)], ("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.server_address[1]
        server.shutdown()
        thread.join()


def ask(port: int, method: str, path: str, body: bytes | None = None, headers=None):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, answer.read(), answer
    finally:
        connection.close()


def test_raw_pixels_come_back_as_classes(port: int, opened: OnnxModel) -> None:
    picture = noise_picture((45, 70))
    status, body, _ = ask(port, "POST", "/classify?model=0&height=45&width=70", picture.tobytes())
    assert status == 200
    assert (np.frombuffer(body, np.uint8).reshape(45, 70) == opened.classify(picture)).all()


def test_a_batch_comes_back_in_its_order(port: int, opened: OnnxModel) -> None:
    pictures = np.stack([noise_picture((32, 40), seed) for seed in range(3)])
    path = "/classify?height=32&width=40&count=3"
    _, body, _ = ask(port, "POST", path, pictures.tobytes())
    found = np.frombuffer(body, np.uint8).reshape(3, 32, 40)
    assert (found == np.stack([opened.classify(one) for one in pictures])).all()


def test_an_encoded_picture_comes_back_as_a_palette(port: int, opened: OnnxModel) -> None:
    picture = noise_picture((50, 60))
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG")
    status, body, answer = ask(port, "POST", "/classify", file.getvalue())
    assert (status, answer.getheader("Content-Type")) == (200, "image/png")
    assert (np.asarray(Image.open(io.BytesIO(body))) == opened.classify(picture)).all()


def test_concurrent_requests_get_their_own_answers(port: int, opened: OnnxModel) -> None:
    def one(seed: int) -> bool:
        picture = noise_picture((32, 32 + seed), seed)
        path = f"/classify?height=32&width={32 + seed}"
        _, body, _ = ask(port, "POST", path, picture.tobytes())
        return bool((np.frombuffer(body, np.uint8) == opened.classify(picture).ravel()).all())

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(one, range(24)))


def test_the_page_and_the_models_are_there(port: int, opened: OnnxModel) -> None:
    status, body, answer = ask(port, "GET", "/")
    assert status == 200
    assert b"connect-src &#39;self&#39;" in body
    assert answer.getheader("X-Content-Type-Options") == "nosniff"
    status, body, _ = ask(port, "GET", "/models")
    assert json.loads(body)[0]["classes"] == opened.metadata.classes


@pytest.mark.parametrize(
    "path",
    ["/etc/passwd", "/../../etc/passwd", "/%2e%2e/pyproject.toml", "//etc/passwd", "/model.onnx"],
)
def test_no_path_is_ever_opened(port: int, path: str) -> None:
    status, body, _ = ask(port, "GET", path)
    assert (status, body) == (404, b"there is / and /models")


@pytest.mark.parametrize(
    ("path", "body", "status", "says"),
    [
        ("/classify?height=4&width=4", b"123", 400, "3 bytes are not 1 x 4 x 4"),
        ("/classify?height=0&width=4", b"", 413, "1 to"),
        ("/classify?height=99999&width=99999", b"", 413, "are taken"),
        ("/classify?height=-1&width=4", b"", 400, "whole number"),
        ("/classify?height=1e3&width=4", b"", 400, "whole number"),
        ("/classify?model=7&height=1&width=1", b"abc", 400, "there are 1, from 0"),
        ("/classify?file=/etc/passwd", b"", 400, "unknown parameter"),
        ("/classify", b"no picture", 415, "no whole PNG, JPEG or WebP"),
        ("/elsewhere", b"", 404, "/classify"),
    ],
)
def test_a_bad_request_is_one_sentence(port: int, path, body, status, says) -> None:
    found, text, _ = ask(port, "POST", path, body)
    assert found == status
    assert says in text.decode()
    assert b"Traceback" not in text


def test_bodies_have_a_limit(port: int) -> None:
    headers = {"Content-Length": str(server_module.LARGEST_BODY + 1)}
    assert ask(port, "POST", "/classify", None, headers)[0] == 413
    assert ask(port, "POST", "/classify", None, {"Content-Length": "many"})[0] == 411


def test_a_small_file_that_unfolds_is_refused_before_it_does(port: int) -> None:
    file = io.BytesIO()
    Image.new("1", (20_000, 20_000)).save(file, "PNG")
    assert ask(port, "POST", "/classify", file.getvalue())[0] in (413, 415)


def test_other_names_of_this_machine_are_refused(port: int) -> None:
    assert ask(port, "GET", "/", headers={"Host": "evil.example"})[0] == 403
    assert ask(port, "GET", "/", headers={"Host": f"localhost:{port}"})[0] == 200
