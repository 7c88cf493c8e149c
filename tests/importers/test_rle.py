"""Run-length codes: against independent encoders, and strict where they are damaged."""

from functools import partial

import numpy as np
import pytest
from exports import brush_code, compress, png_bytes, runs_of
from numpy.typing import NDArray
from test_rasterize import whole

from nacre.importers.shapes import (
    check_runs,
    decode_brush,
    decode_columns,
    decode_rows,
    fill_bitmap,
    fill_whole_bitmap,
    parse_compressed,
)


def random_masks() -> list[NDArray[np.uint8]]:
    rng = np.random.default_rng(2)
    masks = [np.zeros((5, 7), np.uint8), np.ones((5, 7), np.uint8), np.ones((1, 1), np.uint8)]
    for _ in range(60):
        height, width = rng.integers(1, 60, 2)
        masks.append((rng.random((height, width)) < rng.random()).astype(np.uint8))
    return masks


def test_columns_of_coco_plain_and_compressed() -> None:
    for mask in random_masks():
        height, width = mask.shape
        runs = runs_of(mask.reshape(-1, order="F"))
        np.testing.assert_array_equal(parse_compressed(compress(runs)), runs)
        patch = decode_columns(check_runs(runs), (width, height), width, height)
        np.testing.assert_array_equal(whole(patch, width, height), mask.astype(bool))


def test_a_text_that_pycocotools_wrote() -> None:
    # mask.encode of pycocotools 2.0.11.
    text = "g;?f000000000D^O5b0K^O5b0K^O5b0K^O5b0K^O5b0K^O5b0K^O5b0700000000000000mg0H[XO000"
    mask = np.zeros((37, 53), np.bool_)
    mask[5:20, 10:30] = True
    mask[8:12, 15:22] = False
    mask[30:37, 50:53] = True
    np.testing.assert_array_equal(
        whole(decode_columns(parse_compressed(text), (53, 37), 53, 37), 53, 37), mask
    )


def test_rows_of_a_box_of_cvat() -> None:
    for mask in random_masks():
        height, width = mask.shape
        runs = check_runs(runs_of(mask.reshape(-1)))
        patch = decode_rows(runs, (3, 2, width, height), width + 3, height + 2)
        expected = np.zeros((height + 2, width + 3), np.bool_)
        expected[2:, 3:] = mask
        np.testing.assert_array_equal(whole(patch, width + 3, height + 2), expected)


def test_a_box_of_cvat_is_never_larger_than_its_image() -> None:
    """Each of a million such masks would take a second."""
    runs = check_runs([0, 16384 * 8192])
    with pytest.raises(ValueError, match="its box is 16384 x 8192 pixels, the image 24 x 16"):
        decode_rows(runs, (0, 0, 16384, 8192), 24, 16)


def test_a_bitmap_is_never_much_larger_than_its_image() -> None:
    data = png_bytes(np.zeros((4000, 2500), np.uint8))
    for fill in (partial(fill_bitmap, data, 0, 0), partial(fill_whole_bitmap, data)):
        with pytest.raises(ValueError, match="2500 x 4000 pixels, more than the image has"):
            fill(24, 16)


@pytest.mark.parametrize("literal", [False, True])
def test_brushes_of_label_studio(literal: bool) -> None:
    for mask in random_masks():
        height, width = mask.shape
        patch = decode_brush(bytes(brush_code(mask, literal)), (width, height), width, height)
        np.testing.assert_array_equal(patch.bits, mask.astype(bool))


def test_only_the_opacity_of_a_brush_counts() -> None:
    # One run over three bytes of a pixel must not paint it: the fourth is its opacity.
    bits = f"{8:032b}{7:05b}" + "".join(f"{size - 1:04b}" for size in (3, 4, 8, 16))
    bits += "100" + f"{2:03b}" + f"{255:08b}"  # r, g, b of pixel 0
    bits += "000" + f"{3:03b}" + "".join(f"{one:08b}" for one in (0, 9, 9, 9))  # a0, r1, g1, b1
    bits += "000" + f"{0:03b}" + f"{7:08b}"  # a1
    bits += "0" * (-len(bits) % 8)
    code = bytes(int(bits[i : i + 8], 2) for i in range(0, len(bits), 8))
    np.testing.assert_array_equal(decode_brush(code, (2, 1), 2, 1).bits, [[False, True]])


@pytest.mark.parametrize(
    ("runs", "message"),
    [
        ([10, 5], "15 pixels instead of 20"),
        ([10, 15], "25 pixels instead of 20"),
        ([30, -10], "a run of -10"),
        ([10.5, 9.5], "whole numbers"),
        ([1, "x"], "not a list"),
        ([[1, 2], [3, 4]], "whole numbers"),
        ([10, 2**40], "a run of"),
        ([float("nan"), 20], "whole numbers"),
        ([float("inf"), 20], "a run of inf"),
        ([None, 20], "whole numbers"),
        ([], "has 0 pixels"),
    ],
)
def test_damaged_runs(runs: list[object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        decode_columns(check_runs(runs), (5, 4), 5, 4)


@pytest.mark.parametrize("text", ["\x1f", "zzz", "5\u20ac", "P" * 30, "R"])
def test_damaged_compressed_runs(text: str) -> None:
    with pytest.raises(ValueError, match="RLE"):
        decode_columns(parse_compressed(text), (5, 4), 5, 4)


def test_damaged_brushes() -> None:
    code = bytes(brush_code(np.ones((4, 5), np.uint8)))
    with pytest.raises(ValueError, match="80 bytes instead of 120"):
        decode_brush(code, (5, 6), 5, 6)
    for end in range(len(code) - 1):
        with pytest.raises(ValueError, match="brush"):
            decode_brush(code[:end], (5, 4), 5, 4)
    with pytest.raises(ValueError, match="words of 16 bits"):
        decode_brush(bytes([0, 0, 0, 80, 0b01111_000, 0, 0, 0, 0, 0]), (5, 4), 5, 4)
