"""The page in a real browser: onnxruntime's classes, no errors, nothing that leaves it."""

import base64
import io
import json
import os
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from export.page.browser import Browser, find_browser
from nacre.errors import NacreError
from nacre.export.onnx_file import OnnxModel, noise_image
from nacre.export.page import make_page, served_page, web_runtime
from nacre.export.server import ModelServer

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def opened(exported: Path) -> OnnxModel:
    return OnnxModel(exported)


@pytest.fixture(scope="module")
def page(exported: Path, opened: OnnxModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    find_browser()
    try:
        runtime = web_runtime()
    except NacreError as error:
        pytest.skip(f"the runtime for browsers is not here: {error}")
    out = tmp_path_factory.mktemp("page") / "model.html"
    graph = exported.read_bytes()
    shown = [("step 0", opened.metadata), ("step 1", opened.metadata)]
    out.write_text(make_page(shown, [graph, graph], runtime))
    return out


@pytest.fixture(scope="module")
def browser(page: Path, tmp_path_factory: pytest.TempPathFactory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    try:
        browser.resize(1200, 900)
        browser.open(page.as_uri())
        browser.until("!at('status').textContent.startsWith('Loading')")
        assert browser.run("at('status').textContent") == "Ready: choose an image."
        yield browser
    finally:
        browser.close()


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("images") / "noise.png"
    Image.fromarray(noise_image((70, 110), 8)).save(path)
    return path


@pytest.fixture
def seen(browser: Browser, image: Path) -> Browser:
    """The page with an image that it has looked at."""
    browser.run("images.length = 0, shown = null, at('gallery').replaceChildren()")
    browser.choose("#files", image)
    browser.until("shown && shown.seen.size === 1 && !at('layout').hidden")
    return browser


def test_a_saved_mask_is_a_palette_of_classes(seen: Browser, opened: OnnxModel) -> None:
    told = seen.run(
        "maskOf(shown).then(blob => blob.arrayBuffer())"
        ".then(buffer => btoa(String.fromCharCode(...new Uint8Array(buffer))))"
    )
    mask = Image.open(io.BytesIO(base64.b64decode(told)))
    assert (mask.mode, mask.size) == ("P", (110, 70))
    colors = np.array(mask.getpalette()).reshape(-1, 3)[: len(opened.metadata.colors)]
    assert colors.tolist() == [list(color) for color in opened.metadata.colors]
    classes, width, height = seen.run(
        "(one => [Array.from(one.classes), one.width, one.height])(shown.seen.get(1))"
    )
    wanted = Image.fromarray(np.array(classes, np.uint8).reshape(height, width))
    assert (np.asarray(mask) == np.asarray(wanted.resize((110, 70), 0))).all()


def test_two_steps_are_compared(seen: Browser) -> None:
    seen.run(
        "at('before-model').value = '0', at('before-model').dispatchEvent(new Event('change'))"
    )
    seen.until("shown.seen.size === 2 && !at('divider').hidden")
    assert not seen.run("at('divide').disabled")
    seen.run("at('before-model').value = '', at('before-model').dispatchEvent(new Event('change'))")
    seen.until("at('divider').hidden")


def test_everything_is_reached_by_the_keyboard(seen: Browser) -> None:
    seen.run("document.body.tabIndex = -1, document.body.focus()")
    reached = []
    for _ in range(40):
        seen.press("Tab", 9)
        reached.append(seen.run("document.activeElement.id || document.activeElement.tagName"))
    assert {"files", "camera", "opacity", "after-model", "save-mask", "class-1"} <= set(reached)
    seen.run("at('opacity').focus()")
    before = int(seen.run("at('opacity').value"))
    seen.press("ArrowRight", 39)
    assert int(seen.run("at('opacity').value")) == before + 1


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_is_whole_at_two_widths(seen: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    seen.resize(width, 900, scheme)
    assert seen.run("innerWidth") == width
    assert seen.run("document.documentElement.scrollWidth - innerWidth") <= 0
    light = seen.run("getComputedStyle(document.body).backgroundColor") == "rgb(250, 249, 247)"
    assert light == (scheme == "light")
    kept = os.environ.get("NACRE_SCREENSHOTS")
    seen.screenshot((Path(kept) if kept else tmp_path) / f"page-{width}.png")
    seen.resize(1200, 900)


def swapped_profile() -> bytes:
    """Return a color profile by which red is blue: who heeds it sees another image."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    head, tail = profile[:600], profile[600:]
    for one, other in ((b"rXYZ", b"#XYZ"), (b"bXYZ", b"rXYZ"), (b"#XYZ", b"bXYZ")):
        head = head.replace(one, other)
    return head + tail


def test_the_stored_colors_count_whatever_the_profile(seen: Browser, tmp_path: Path) -> None:
    pixels = noise_image((12, 20))
    Image.fromarray(pixels).save(tmp_path / "profile.png", icc_profile=swapped_profile())
    seen.choose("#files", tmp_path / "profile.png")
    seen.until("shown.name === 'profile.png' && shown.seen.size === 1")
    found = seen.run("Array.from(withoutAlpha(pixelsOf(shown.source, 20, 12)))")
    assert (np.array(found).reshape(12, 20, 3) == pixels).all()


def test_the_camera_is_looked_at(seen: Browser) -> None:
    seen.run("at('camera').click()")
    seen.until("shown.name === 'camera' && shown.seen.size === 1")
    assert seen.run("at('camera').getAttribute('aria-pressed')") == "true"
    seen.run("at('camera').click()")
    seen.until("at('camera').getAttribute('aria-pressed') === 'false'")


def test_no_errors_and_no_requests(browser: Browser, page: Path) -> None:
    assert browser.console == []
    assert browser.requests == [page.as_uri()]


def test_nothing_can_leave_the_page(browser: Browser) -> None:
    refused = browser.run("fetch('http://127.0.0.1:9/').then(() => false, () => true)")
    assert refused
    assert any("Content Security Policy" in line for line in browser.console)
    browser.console.clear()


def test_hostile_class_names_stay_text(opened: OnnxModel, tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script>"
    said = replace(opened.metadata, classes=["background", name, *opened.metadata.classes[2:]])
    text = served_page([(name, said)])
    assert "<script>alert(1)" not in text
    settings = text.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(settings)["models"][0]["classes"][1] == name


def test_the_served_page_asks_its_server(opened: OnnxModel, image: Path, tmp_path: Path) -> None:
    find_browser()
    with ModelServer([("tiny", opened)], ("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        browser = Browser(tmp_path / "profile")
        try:
            home = f"http://127.0.0.1:{server.server_address[1]}/"
            browser.open(home)
            browser.until("at('status').textContent.startsWith('Ready')")
            browser.choose("#files", image)
            browser.until("shown && shown.seen.size === 1")
            found = browser.run("Array.from(shown.seen.get(0).classes)")
            assert browser.console == []
            assert {url.split("?")[0] for url in browser.requests} == {home, f"{home}classify"}
        finally:
            browser.close()
            server.shutdown()
            thread.join()
    assert len(found) > 0
    assert set(found) <= set(range(len(opened.metadata.classes)))
