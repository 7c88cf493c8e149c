"""Images and masks of all formats, and files that are damaged, huge or rotated."""

import io
import os
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_data import blocks, save_image, save_mask, turned

from nacre.data import image_io
from nacre.data.image_io import (
    examine_image,
    load,
    open_image,
    read_mask,
    upright_rgb,
)
from nacre.errors import NacreError

MASK = blocks(6, 12, [0, 3, 255, 7])
EPS = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"
SIDEWAYS = (5, 6, 7, 8)


def image(width: int = 24, height: int = 16) -> Image.Image:
    rng = np.random.default_rng(0)
    return Image.fromarray(rng.integers(0, 255, (height, width, 3), np.uint8))


def encoded(image: Image.Image, form: str, **options: object) -> bytes:
    file = io.BytesIO()
    image.save(file, form, **options)
    return file.getvalue()


def chunk(kind: bytes, content: bytes) -> bytes:
    body = kind + content
    return struct.pack(">I", len(content)) + body + struct.pack(">I", zlib.crc32(body))


def png(width: int, height: int, bits: int, kind: int, rows: bytes) -> bytes:
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0))
    return b"\x89PNG\r\n\x1a\n" + head + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")


def png_with(after: bytes = b"", before: bytes = b"") -> bytes:
    """Return a PNG with chunks before and after its pixels."""
    whole = encoded(image(), "PNG")
    first, last = whole.index(b"IDAT") - 4, whole.index(b"IEND") - 4
    return whole[:first] + before + whole[first:last] + after + whole[last:]


@pytest.mark.parametrize("mode", ["P", "L", "I;16"])
def test_masks_keep_their_stored_values(tmp_path: Path, mode: str) -> None:
    mask = MASK.astype(np.uint16) * 257 if mode == "I;16" else MASK
    found = read_mask(save_mask(tmp_path / "m.png", mask, mode))
    assert found.dtype == mask.dtype
    np.testing.assert_array_equal(found, mask)


@pytest.mark.parametrize(("bits", "labels"), [(1, [0, 1]), (2, [0, 1, 2, 3]), (4, [0, 9, 15])])
@pytest.mark.parametrize("mode", ["P", "L"])
def test_masks_of_few_bits_keep_their_values(
    tmp_path: Path, bits: int, labels: list[int], mode: str
) -> None:
    mask, path = blocks(5, 13, labels), tmp_path / "m.png"
    if mode == "P":
        save_mask(path, mask)
        Image.open(path).save(path, bits=bits)
    else:  # which Pillow cannot write
        lines = ["".join(f"{label:0{bits}b}" for label in row) for row in mask]
        lines = [line + "0" * (-len(line) % 8) for line in lines]
        rows = b"".join(b"\0" + int(line, 2).to_bytes(len(line) // 8) for line in lines)
        path.write_bytes(png(13, 5, bits, 0, rows))
    np.testing.assert_array_equal(read_mask(path), mask)


def test_masks_without_labels_are_refused(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match=r"c\.png contains colors \(mode RGB\), not labels"):
        read_mask(save_image(tmp_path / "c.png"))
    with pytest.raises(NacreError, match=r"c\.jpg is a JPEG, whose compression changes labels"):
        read_mask(save_image(tmp_path / "c.jpg"))
    gray = tmp_path / "gray.png"
    Image.fromarray(MASK).save(gray, "JPEG")
    with pytest.raises(NacreError, match=r"gray\.png is a JPEG, whose compression changes labels"):
        read_mask(gray)
    Image.fromarray(MASK).save(gray, exif=turned(3))
    with pytest.raises(NacreError, match="has EXIF data that rotate it"):
        read_mask(gray)


@pytest.mark.parametrize("mode", ["LA", "RGB", "RGBA"])
def test_a_gray_mask_may_be_saved_as_rgb(tmp_path: Path, mode: str) -> None:
    mask = Image.fromarray(MASK).convert("RGB").convert(mode)
    mask.save(tmp_path / "m.png")
    np.testing.assert_array_equal(read_mask(tmp_path / "m.png"), MASK)


def test_a_16_bit_rgb_mask_is_refused(tmp_path: Path) -> None:
    rows = b"".join(b"\0" + b"\0\1" * 3 * 4 for _ in range(5))
    (tmp_path / "m.png").write_bytes(png(4, 5, 16, 2, rows))
    with pytest.raises(NacreError, match="contains colors"):
        read_mask(tmp_path / "m.png")


@pytest.mark.parametrize("keep", [0, 4, 20, 30, 60, -100, -60, None])
def test_a_damaged_mask_is_named(tmp_path: Path, keep: int | None) -> None:
    path = save_mask(tmp_path / "m.png", np.random.default_rng(0).integers(0, 9, (50, 50)))
    content = bytearray(path.read_bytes())
    content[len(content) // 2 + 200] ^= 0xFF
    path.write_bytes(content if keep is None else path.read_bytes()[:keep])
    with pytest.raises(NacreError, match=r"the mask .*m\.png is damaged"):
        read_mask(path)


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".tif"])
def test_every_format_is_rgb(tmp_path: Path, suffix: str) -> None:
    path = save_image(tmp_path / f"a{suffix}", 100, 80)
    found = open_image(path)
    assert (found.mode, found.size, examine_image(path)[0]) == ("RGB", (80, 100), (80, 100))
    # A plain JPEG is not decoded before it must be.
    assert (found.draft("RGB", (40, 50)) is not None) == (suffix == ".jpg")


@pytest.mark.parametrize("mode", ["L", "LA", "RGBA", "P", "CMYK", "I;16"])
def test_every_mode_becomes_rgb(tmp_path: Path, mode: str) -> None:
    gray = Image.fromarray(blocks(8, 8, [0, 200]))
    if mode == "I;16":
        gray = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    path = tmp_path / ("a.tif" if mode == "CMYK" else "a.png")
    (gray if mode == "I;16" else gray.convert(mode)).save(path)
    pixels = np.asarray(open_image(path))
    assert pixels.shape == (8, 8, 3)
    assert (pixels[:, :4] < 5).all()
    assert abs(pixels[:, 4:].astype(int) - 200).max() < 5


def test_32_bit_gray_in_memory_is_refused_unless_its_range_is_16_bits() -> None:
    for value in (200, -300):
        with pytest.raises(NacreError, match=r"32-bit pixels of unknown range \(mode I\)"):
            upright_rgb(Image.fromarray(np.full((8, 8), value, np.int32)))
    wide = upright_rgb(Image.fromarray(np.full((8, 8), 200 * 257, np.int32)))
    assert (np.asarray(wide) == 200).all()


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_the_orientation_of_a_camera_is_applied(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"a{suffix}"
    Image.fromarray(blocks(8, 16, [0, 255])).convert("RGB").save(path, exif=turned(6))
    pixels = np.asarray(open_image(path))
    assert pixels.shape == (16, 8, 3)
    assert pixels[:8].mean() < 20
    assert pixels[8:].mean() > 235


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP", "TIFF"])
@pytest.mark.parametrize("value", [*range(10), 65535])
def test_index_and_loader_rotate_an_image_equally(tmp_path: Path, form: str, value: int) -> None:
    path = tmp_path / "a"
    path.write_bytes(encoded(image(), form, exif=turned(value)))
    size = load(open_image(path)).size
    assert examine_image(path)[0] == size
    assert size == ((16, 24) if value in SIDEWAYS else (24, 16))


def jpeg_with_late_exif() -> bytes:
    whole = encoded(image(), "JPEG")
    data = b"Exif\0\0" + turned(6).tobytes().removeprefix(b"Exif\0\0")
    segment = b"\xff\xe1" + struct.pack(">H", len(data) + 2) + data
    scan = whole.index(b"\xff\xda")
    return whole[:scan] + segment + whole[scan:]


ODD_PLACES = {
    "a PNG's EXIF after its pixels": png_with(after=chunk(b"eXIf", turned(6).tobytes()[6:])),
    "a PNG's EXIF before its pixels": png_with(before=chunk(b"eXIf", turned(6).tobytes()[6:])),
    "a JPEG's EXIF behind its frame": jpeg_with_late_exif(),
    "EXIF of random bytes": png_with(before=chunk(b"eXIf", b"\x13" * 40)),
    "a JPEG's EXIF cut off": encoded(image(), "JPEG", exif=turned(6).tobytes()[:14]),
}


@pytest.mark.parametrize("content", ODD_PLACES.values(), ids=ODD_PLACES)
def test_index_and_loader_read_unusual_exif_data_equally(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "a"
    path.write_bytes(content)
    assert examine_image(path)[0] == load(open_image(path)).size


def broken_chunk() -> bytes:
    whole = bytearray(png_with())
    first = whole.index(b"IDAT")
    whole[first - 4 : first] = b"\xff\xff\xff\xff"
    return bytes(whole)


LARGE = image(200, 200)
UNUSABLE = {
    **{f"half a {form}": encoded(LARGE, form) for form in ("JPEG", "PNG", "WEBP", "BMP", "TIFF")},
    "a PNG with a broken chunk": broken_chunk(),
    "a program in PostScript": EPS,
    "a GIF": encoded(image().convert("P"), "GIF"),
    "nothing": b"",
    "the start of a JPEG": b"\xff\xd8\xff",
    "zeros": b"\0" * 5000,
    "text": b"not an image",
    "shares": encoded(Image.fromarray(np.full((16, 24), 0.5, np.float32)), "TIFF"),
    "32 bits": encoded(Image.fromarray(np.full((16, 24), 70_000, np.int32)), "TIFF"),
    **{f"{side} x {side}": png(side, side, 8, 2, b"") for side in (12_000, 60_000)},
}


@pytest.mark.parametrize("what", UNUSABLE)
def test_index_and_loader_name_an_unusable_image(tmp_path: Path, what: str) -> None:
    path, content = tmp_path / "odd.png", UNUSABLE[what]
    path.write_bytes(content[: len(content) // 2] if what.startswith("half") else content)
    with pytest.raises(NacreError, match=r"^the image .*odd\.png "):
        examine_image(path, decode=True)
    if what != "a PNG with a broken chunk":  # of which Pillow takes the pixels
        with pytest.raises(NacreError, match=r"^the image .*odd\.png "):
            load(open_image(path))
    if what not in ("shares", "32 bits"):
        with pytest.raises(NacreError, match=r"odd\.png"):
            examine_image(path)


@pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
def test_the_index_does_not_decode_complete_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, form: str
) -> None:
    path = tmp_path / "a"
    path.write_bytes(encoded(image(300, 200), form))
    monkeypatch.setattr(image_io, "load", None)
    assert examine_image(path) == ((300, 200), False)
    with pytest.raises(NacreError):
        examine_image(path, decode=True)


def test_all_readers_refuse_missing_and_huge_files_and_pipes(tmp_path: Path) -> None:
    (tmp_path / "large.png").write_bytes(png(2**31 - 1, 1, 8, 0, b""))
    os.mkfifo(tmp_path / "pipe")
    reasons = {"gone.png": "is missing", "large.png": "too large|pixels", "pipe": "not a regular"}
    for name, reason in reasons.items():
        for read in (open_image, read_mask, examine_image):
            with pytest.raises(NacreError, match=rf"{name}.*({reason})"):
                read(tmp_path / name)
