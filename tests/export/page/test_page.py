"""The page in a real browser: its class maps, no errors, and no requests."""

import base64
import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms

from export.page.browser import Browser, find_browser
from local_server import serving
from nacre.errors import NacreError
from nacre.export.onnx_file import OnnxModel, noise_image
from nacre.export.page import make_page, served_page, web_runtime

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
def predicted(browser: Browser, image: Path) -> Browser:
    """The page after the prediction of an image."""
    browser.run("images.length = 0, shown = null, at('gallery').replaceChildren()")
    browser.choose("#files", image)
    browser.until("shown && shown.results.size === 1 && !at('layout').hidden")
    return browser


def test_a_saved_mask_is_a_palette_of_classes(predicted: Browser, opened: OnnxModel) -> None:
    content = predicted.run(
        "maskOf(shown).then(blob => blob.arrayBuffer())"
        ".then(buffer => btoa(String.fromCharCode(...new Uint8Array(buffer))))"
    )
    mask = Image.open(io.BytesIO(base64.b64decode(content)))
    assert (mask.mode, mask.size) == ("P", (110, 70))
    colors = np.array(mask.getpalette()).reshape(-1, 3)[: len(opened.metadata.colors)]
    assert colors.tolist() == [list(color) for color in opened.metadata.colors]
    classes, width, height = predicted.run(
        "(one => [Array.from(one.classes), one.width, one.height])(shown.results.get(1))"
    )
    wanted = Image.fromarray(np.array(classes, np.uint8).reshape(height, width))
    assert (np.asarray(mask) == np.asarray(wanted.resize((110, 70), 0))).all()


def test_two_steps_are_compared(predicted: Browser) -> None:
    change = "at('before-model').dispatchEvent(new Event('change'))"
    predicted.run(f"at('before-model').value = '0', {change}")
    predicted.until("shown.results.size === 2 && !at('divider').hidden")
    assert not predicted.run("at('divide').disabled")
    predicted.run(f"at('before-model').value = '', {change}")
    predicted.until("at('divider').hidden")


@pytest.mark.parametrize(("width", "scheme"), [(1200, "light"), (390, "dark")])
def test_the_page_fits_desks_and_phones(predicted: Browser, width: int, scheme: str) -> None:
    predicted.resize(width, 900, scheme)
    assert predicted.run("innerWidth") == width
    assert predicted.run("document.documentElement.scrollWidth - innerWidth") <= 0
    light = predicted.run("getComputedStyle(document.body).backgroundColor") == "rgb(250, 249, 247)"
    assert light == (scheme == "light")
    predicted.resize(1200, 900)


def swapped_profile() -> bytes:
    """Return a color profile that swaps red and blue."""
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    head, tail = profile[:600], profile[600:]
    for one, other in ((b"rXYZ", b"#XYZ"), (b"bXYZ", b"rXYZ"), (b"#XYZ", b"bXYZ")):
        head = head.replace(one, other)
    return head + tail


def test_color_profiles_are_ignored(predicted: Browser, tmp_path: Path) -> None:
    pixels = noise_image((12, 20))
    Image.fromarray(pixels).save(tmp_path / "profile.png", icc_profile=swapped_profile())
    predicted.choose("#files", tmp_path / "profile.png")
    predicted.until("shown.name === 'profile.png' && shown.results.size === 1")
    found = predicted.run("Array.from(withoutAlpha(pixelsOf(shown.source, 20, 12)))")
    assert (np.array(found).reshape(12, 20, 3) == pixels).all()


def test_the_camera_is_predicted(predicted: Browser) -> None:
    predicted.run("at('camera').click()")
    predicted.until("shown.name === 'camera' && shown.results.size === 1")
    assert predicted.run("at('camera').getAttribute('aria-pressed')") == "true"
    predicted.run("at('camera').click()")
    predicted.until("at('camera').getAttribute('aria-pressed') === 'false'")


def test_the_page_has_no_errors_and_makes_no_requests(browser: Browser, page: Path) -> None:
    assert browser.console == []
    assert browser.requests == [page.as_uri()]


def test_nothing_can_leave_the_page(browser: Browser) -> None:
    refused = browser.run("fetch('http://127.0.0.1:9/').then(() => false, () => true)")
    assert refused
    assert any("Content Security Policy" in line for line in browser.console)
    browser.console.clear()


def test_hostile_class_names_stay_text(opened: OnnxModel, tmp_path: Path) -> None:
    name = "</script><script>alert(1)</script>"
    classes = ["background", name, *opened.metadata.classes[2:]]
    text = served_page([(name, replace(opened.metadata, classes=classes))])
    assert "<script>alert(1)" not in text
    settings = text.split('type="application/json">')[1].split("</script>")[0]
    assert json.loads(settings)["models"][0]["classes"][1] == name


def test_the_served_page_sends_images_to_its_server(
    opened: OnnxModel, image: Path, tmp_path: Path
) -> None:
    find_browser()
    with serving(opened) as port:
        browser = Browser(tmp_path / "profile")
        try:
            home = f"http://127.0.0.1:{port}/"
            browser.open(home)
            browser.until("at('status').textContent.startsWith('Ready')")
            browser.choose("#files", image)
            browser.until("shown && shown.results.size === 1")
            classes = browser.run("Array.from(shown.results.get(0).classes)")
            assert browser.console == []
            assert {url.split("?")[0] for url in browser.requests} == {home, f"{home}classify"}
        finally:
            browser.close()
    assert 0 < len(set(classes)) <= len(opened.metadata.classes)
