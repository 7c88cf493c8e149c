"""Pictures and masks that are damaged, huge, turned, or not what their names say."""

import io
import os
import struct
import zlib

import numpy as np
import pytest
from PIL import Image

from nacre.data import image_io, open_folder
from nacre.data.image_io import examine_image, load, open_image, orientation, read_mask
from nacre.data.validate import check_source
from nacre.errors import NacreError
from nacre.labels.space import read_classes

CLASSES = "classes: {1: cat, 2: dog}\n"
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


def picture(width=24, height=16):
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8))


@pytest.fixture
def data(tmp_path):
    """A folder of six pictures and masks."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    (tmp_path / "classes.yaml").write_text(CLASSES)
    for i in range(6):
        picture().save(tmp_path / "images" / f"p{i}.jpg")
        mask = np.zeros((16, 24), np.uint8)
        mask[:8], mask[8:, :12] = 1, 2
        Image.fromarray(mask).save(tmp_path / "masks" / f"p{i}.png")
    (tmp_path / "train.txt").write_text("p0\np1\np2\np3\n")
    (tmp_path / "val.txt").write_text("p4\np5\n")
    return tmp_path


def problems(data):
    """What `nacre data` and `nacre plan` find, which must be the same."""
    source = open_folder("folder", data)
    found = [one.text for one in check_source(source).splits[0].problems]
    if found:
        with pytest.raises(NacreError) as caught:
            source.index("train")
        assert found[0] in str(caught.value)
    else:
        source.index("train")
    return found


def encoded(image, form, **options):
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def png_with(after=b"", before=b""):
    """A PNG with chunks before and after its pixels."""
    whole = encoded(picture(), "PNG")
    first, last = whole.index(b"IDAT") - 4, whole.index(b"IEND") - 4
    return whole[:first] + before + whole[first:last] + after + whole[last:]


def chunk(kind, content):
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def exif(value):
    tags = Image.Exif()
    tags[0x0112] = value
    return tags


def broken_chunk():
    whole = bytearray(png_with())
    first = whole.index(b"IDAT")
    whole[first - 4 : first] = b"\xff\xff\xff\xff"
    return bytes(whole)


def cut(content):
    return content[: len(content) // 2]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("p0.jpg", cut(encoded(picture(200, 200), "JPEG"))),
        ("p0.png", cut(encoded(picture(200, 200), "PNG"))),
        ("p0.webp", cut(encoded(picture(200, 200), "WEBP"))),
        ("p0.bmp", cut(encoded(picture(200, 200), "BMP"))),
        ("p0.tif", cut(encoded(picture(200, 200), "TIFF"))),
        ("p0.png", broken_chunk()),
        ("p0.jpg", EPS),
        ("p0.png", EPS),
        ("p0.jpg", encoded(picture().convert("P"), "GIF")),
        ("p0.jpg", b""),
        ("p0.jpg", b"\xff\xd8\xff"),
        ("p0.jpg", b"\0" * 5000),
        ("p0.tif", encoded(Image.fromarray(np.full((16, 24), 0.5, np.float32)), "TIFF")),
        ("p0.tif", encoded(Image.fromarray(np.full((16, 24), 70_000, np.int32)), "TIFF")),
    ],
)
def test_a_picture_that_cannot_be_used_is_found_by_data_and_plan(data, name, content):
    (data / "images" / "p0.jpg").unlink()
    (data / "images" / name).write_bytes(content)
    (text,) = problems(data)
    assert name in text


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_whole_pictures_are_not_decoded_for_the_index(tmp_path, monkeypatch, form):
    path = tmp_path / "a"
    path.write_bytes(encoded(picture(300, 200), form))
    monkeypatch.setattr(image_io, "load", None)
    assert examine_image(path) == ((300, 200), False)
    with pytest.raises(NacreError):
        examine_image(path, decode=True)


def test_pipes_are_not_waited_for(data):
    for folder, name in (("images", "p0.jpg"), ("masks", "p0.png")):
        path = data / folder / name
        path.unlink()
        os.mkfifo(path)
        assert "not a regular file" in problems(data)[0]
        path.unlink()
        with pytest.raises(NacreError):
            open_image(path)
        picture().save(data / "images" / "p0.jpg")


def png_head(width, height):
    head = struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", b"") + chunk(b"IEND", b"")


@pytest.mark.parametrize("size", [(12_000, 12_000), (60_000, 60_000), (2**31 - 1, 1)])
def test_a_picture_that_is_too_large_is_refused_before_it_is_decoded(tmp_path, size):
    path = tmp_path / "large.png"
    path.write_bytes(png_head(*size))
    for read in (open_image, read_mask, examine_image):
        with pytest.raises(NacreError, match=r"large\.png"):
            read(path)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", [*range(10), 65535])
def test_the_index_and_the_loader_see_a_turned_picture_alike(tmp_path, form, value):
    path = tmp_path / "a"
    path.write_bytes(encoded(picture(), form, exif=exif(value)))
    size = load(open_image(path)).size
    assert examine_image(path)[0] == size
    assert size == ((16, 24) if value in (5, 6, 7, 8) else (24, 16))


def jpeg_with_late_exif():
    whole = encoded(picture(), "JPEG")
    data = b"Exif\0\0" + exif(6).tobytes().removeprefix(b"Exif\0\0")
    segment = b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data
    scan = whole.index(b"\xff\xda")
    return whole[:scan] + segment + whole[scan:]


ODD_PLACES = {
    "a PNG's EXIF after its pixels": png_with(after=chunk(b"eXIf", exif(6).tobytes()[6:])),
    "a PNG's EXIF before its pixels": png_with(before=chunk(b"eXIf", exif(6).tobytes()[6:])),
    "a JPEG's EXIF behind its frame": jpeg_with_late_exif(),
    "EXIF of random bytes": png_with(before=chunk(b"eXIf", b"\x13" * 40)),
    "a JPEG's EXIF cut off": encoded(picture(), "JPEG", exif=exif(6).tobytes()[:14]),
}


@pytest.mark.parametrize("content", ODD_PLACES.values(), ids=ODD_PLACES)
def test_exif_in_odd_places_is_one_thing_to_index_and_loader(tmp_path, content):
    path = tmp_path / "a"
    path.write_bytes(content)
    size = load(open_image(path)).size
    assert examine_image(path)[0] == size


def test_a_mask_drawn_on_the_stored_picture_is_told_of(data):
    picture().save(data / "images" / "p0.jpg", exif=exif(6))
    (text,) = problems(data)
    assert "EXIF data turn the image, and a mask must be drawn on the turned one" in text
    picture().save(data / "images" / "p0.jpg", exif=exif(3))
    assert problems(data) == []
    assert check_source(open_folder("folder", data)).splits[0].turned == 1


def test_a_mask_that_is_turned_itself_is_refused(data):
    mask = Image.open(data / "masks" / "p0.png")
    mask.load()
    mask.save(data / "masks" / "p0.png", exif=exif(3))
    assert "has EXIF data that turn it" in problems(data)[0]


def test_orientation_of_a_picture_in_memory():
    assert orientation(picture()) == 1


def test_a_byte_order_mark_in_a_list(data):
    (data / "train.txt").write_bytes(b"\xef\xbb\xbfp0\np1\n")
    assert [pair.name for pair in open_folder("folder", data).pairs("train")] == ["p0", "p1"]


def test_file_names_that_are_not_utf_8(data):
    os.rename(data / "images" / "p0.jpg", os.fsencode(data / "images") + b"/caf\xe9.jpg")
    with pytest.raises(NacreError, match="is not text in UTF-8"):
        open_folder("folder", data).pairs("train")


def test_an_index_is_not_written_through_a_link(data, tmp_path_factory, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (data / "nacre-index").symlink_to(elsewhere)
    open_folder("folder", data).index("train")
    assert list(elsewhere.iterdir()) == []


def test_there_need_not_be_a_home(data, monkeypatch):
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr("pathlib.Path.home", _no_home)
    assert len(open_folder("folder", data).index("train")) == 4


def _no_home():
    raise RuntimeError("Could not determine home directory.")


@pytest.mark.parametrize(
    "line", ["../../outside/o", "/../x", "../o.jpg ../o.png", "JPEGImages/../../o.jpg a.png"]
)
def test_lists_of_voc_do_not_lead_outside(tmp_path, line):
    for name in ("JPEGImages", "SegmentationClassAug", "splits"):
        (tmp_path / name).mkdir()
    (tmp_path / "splits" / "train_aug.txt").write_text(f"{line}\n")
    (tmp_path / "splits" / "val.txt").write_text("a\n")
    with pytest.raises(NacreError, match="leads out of"):
        open_folder("voc", tmp_path).pairs("train")


@pytest.mark.parametrize(
    "text",
    [
        'classes: {1: "a\\u001b[31m"}',
        f"classes: {{1: {'x' * 1000}}}",
        "classes: {1: cat}\ncolors: {true: [1, 2, 3]}",
        "classes: {1: cat}\ncolors: {2020-01-01: [1, 2, 3]}",
        "classes: {1: 2020-13-45}\nbackground: 10000000000000000000000",
        "classes: [" * 2000,
    ],
)
def test_classes_are_short_plain_names(tmp_path, text):
    (tmp_path / "classes.yaml").write_text(text)
    with pytest.raises(NacreError, match=r"classes\.yaml") as caught:
        read_classes(tmp_path / "classes.yaml")
    assert len(str(caught.value)) < 600
