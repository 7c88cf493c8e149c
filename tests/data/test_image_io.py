"""Images and masks of every kind, and files that are not what they should be."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from small_data import blocks, save_image, save_mask

from nacre.data.image_io import (
    count_labels,
    examine_image,
    open_image,
    read_mask,
    upright_rgb,
)
from nacre.errors import NacreError

MASK = blocks(6, 12, [0, 3, 255, 7])


@pytest.mark.parametrize("mode", ["P", "L", "I;16"])
def test_masks_are_read_as_they_are_stored(tmp_path: Path, mode: str) -> None:
    mask = read_mask(save_mask(tmp_path / "m.png", MASK, mode))
    assert mask.dtype == (np.uint16 if mode == "I;16" else np.uint8)
    np.testing.assert_array_equal(mask, MASK)


@pytest.mark.parametrize(("bits", "labels"), [(1, [0, 1]), (2, [0, 1, 2, 3]), (4, [0, 9, 15])])
@pytest.mark.parametrize("mode", ["P", "L"])
def test_masks_of_few_bits(tmp_path: Path, bits: int, labels: list[int], mode: str) -> None:
    mask = blocks(5, 13, labels)
    path = tmp_path / "m.png"
    if mode == "P":
        save_mask(path, mask)
        Image.open(path).save(path, bits=bits)
    else:
        path.write_bytes(_gray_png(mask, bits))
    np.testing.assert_array_equal(read_mask(path), mask)


def test_a_mask_of_colours_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match=r"c\.jpg holds colors \(mode RGB\), not labels"):
        read_mask(save_image(tmp_path / "c.jpg"))


def test_the_real_masks_are_counted_right(voc_part: Path) -> None:
    for path in sorted((voc_part / "VOC2012" / "SegmentationClassAug").iterdir())[::200]:
        mask = np.asarray(Image.open(path))
        slow = {label: int((mask == label).sum()) for label in np.unique(mask).tolist()}
        assert count_labels(read_mask(path)) == slow


def test_a_plain_jpeg_is_not_decoded_before_it_must_be(tmp_path: Path) -> None:
    image = open_image(save_image(tmp_path / "a.jpg", 100, 80))
    assert image.size == (80, 100)
    assert image.draft("RGB", (40, 50)) is not None


@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".bmp", ".tif"])
def test_every_kind_of_picture_is_rgb(tmp_path: Path, suffix: str) -> None:
    path = save_image(tmp_path / f"a{suffix}", 9, 14)
    image = open_image(path)
    assert (image.mode, image.size, _size(path)) == ("RGB", (14, 9), (14, 9))


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


def test_gray_of_32_bits_in_memory_is_refused_unless_its_range_is_that_of_16() -> None:
    with pytest.raises(NacreError, match=r"32 bits \(mode I\), whose range nobody knows"):
        upright_rgb(Image.fromarray(np.full((8, 8), 200, np.int32)))
    with pytest.raises(NacreError, match="whose range nobody knows"):
        upright_rgb(Image.fromarray(np.full((8, 8), -300, np.int32)))
    wide = upright_rgb(Image.fromarray(np.full((8, 8), 200 * 257, np.int32)))
    assert (np.asarray(wide) == 200).all()


@pytest.mark.parametrize("suffix", [".jpg", ".png"])
def test_the_orientation_of_a_camera_is_applied(tmp_path: Path, suffix: str) -> None:
    exif = Image.Exif()
    exif[0x0112] = 6
    path = tmp_path / f"a{suffix}"
    Image.fromarray(blocks(8, 16, [0, 255])).convert("RGB").save(path, exif=exif)
    image = open_image(path)
    assert image.size == _size(path) == (8, 16)
    pixels = np.asarray(image)
    assert pixels[:8].mean() < 20
    assert pixels[8:].mean() > 235


def test_a_file_that_is_no_picture_is_named(tmp_path: Path) -> None:
    path = tmp_path / "note.png"
    path.write_text("not an image")
    for read in (open_image, _size):
        with pytest.raises(NacreError, match=r"image .*note\.png is damaged or not an image"):
            read(path)
    with pytest.raises(NacreError, match=r"mask .*note\.png is damaged or not an image"):
        read_mask(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NacreError, match=r"the image .*a\.jpg is missing"):
        open_image(tmp_path / "a.jpg")
    with pytest.raises(NacreError, match=r"the mask .*a\.png is missing"):
        read_mask(tmp_path / "a.png")


@pytest.mark.parametrize("keep", [0, 4, 20, 30, 60, -100, -60])
def test_a_truncated_mask_is_named(tmp_path: Path, keep: int) -> None:
    path = save_mask(tmp_path / "m.png", np.random.default_rng(0).integers(0, 9, (50, 50)))
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(NacreError, match=r"the mask .*m\.png is damaged"):
        read_mask(path)


def test_a_mask_with_a_flipped_byte_is_named(tmp_path: Path) -> None:
    path = save_mask(tmp_path / "m.png", np.random.default_rng(0).integers(0, 9, (50, 50)))
    data = bytearray(path.read_bytes())
    data[len(data) // 2 + 200] ^= 0xFF
    path.write_bytes(data)
    with pytest.raises(NacreError, match=r"the mask .*m\.png is damaged"):
        read_mask(path)


def _size(path: Path) -> tuple[int, int]:
    return examine_image(path)[0]


def _gray_png(mask: np.ndarray, bits: int) -> bytes:
    """Encode a gray PNG of few bits, which Pillow cannot write."""
    import struct
    import zlib

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    rows = b""
    for row in mask:
        text = "".join(f"{label:0{bits}b}" for label in row)
        text += "0" * (-len(text) % 8)
        rows += b"\0" + bytes(int(text[i : i + 8], 2) for i in range(0, len(text), 8))
    head = struct.pack(">IIBBBBB", mask.shape[1], mask.shape[0], bits, 0, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body
