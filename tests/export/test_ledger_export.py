"""A model of the ledger in a server and on a page: the head in closed form is an ordinary one."""

import base64
from pathlib import Path

import numpy as np
import pytest

from export.page.browser import Browser, find_browser
from local_server import send, serving
from nacre.errors import NacreError
from nacre.export.onnx_file import Exported, export_onnx
from nacre.export.page.page import PageModel, write_page
from nacre.export.page.web_runtime import web_runtime
from nacre.export.runtime import OnnxModel
from nacre.export.verify import noise_picture
from nacre.models.io import find_model, load_model
from tiny_runs import tiny_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def exported(tmp_path_factory: pytest.TempPathFactory) -> Exported:
    root = tmp_path_factory.mktemp("ledger")
    tiny_run(root / "run", scenario="scenes/4-4/overlapped", method={"name": "ledger"})
    network, info, _ = load_model(find_model(root / "run"))
    assert network.config.decoder == "stages"
    return export_onnx(network, info, root / "model.onnx")


@pytest.fixture(scope="module")
def opened(exported: Exported) -> OnnxModel:
    return OnnxModel(exported.path, threads=1)


def test_the_file_has_the_head_and_no_sums(exported: Exported) -> None:
    assert exported.comparison.agreement > 0.999
    model = find_model(exported.path.parent / "run")
    assert exported.path.stat().st_size < model.stat().st_size / 2


def test_a_server_answers_with_its_classes(opened: OnnxModel) -> None:
    pixels = noise_picture((45, 70))
    head = b"POST /classify?model=0&height=45&width=70 HTTP/1.0\r\nHost: 127.0.0.1\r\n"
    with serving(opened) as port:
        answer = send(port, head + b"Content-Length: 9450\r\n\r\n" + pixels.tobytes())
    status, _, body = answer.partition(b"\r\n\r\n")
    assert b" 200 " in status.splitlines()[0]
    assert (np.frombuffer(body, np.uint8).reshape(45, 70) == opened.classify(pixels)).all()


def test_a_page_in_a_browser_finds_the_same_classes(
    exported: Exported, opened: OnnxModel, tmp_path: Path
) -> None:
    find_browser()
    try:
        runtime = web_runtime()
    except NacreError as error:
        pytest.skip(f"the runtime for browsers is not here: {error}")
    page = tmp_path / "model.html"
    write_page(page, [PageModel("ledger", opened.metadata)], [exported.path.read_bytes()], runtime)
    pixels = noise_picture((45, 77), 9)
    sent = base64.b64encode(pixels.tobytes()).decode()
    browser = Browser(tmp_path / "profile")
    try:
        browser.open(page.as_uri())
        browser.until("!at('status').textContent.startsWith('Loading')")
        found = browser.run(
            f"classify(0, Uint8Array.from(atob('{sent}'), c => c.charCodeAt(0)), 45, 77)"
            ".then(classes => Array.from(classes))"
        )
    finally:
        browser.close()
    assert (np.array(found, np.uint8).reshape(45, 77) == opened.classify(pixels)).all()
