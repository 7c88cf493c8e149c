"""Crops: image and mask stay aligned, and only the generator decides."""

import io
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from small_data import save_image

from nacre.data.image_io import open_image
from nacre.data.transforms import (
    ASPECT,
    FILL,
    Box,
    ImagesConfig,
    _draw_box,
    eval_sample,
    nearest_pixels,
    train_sample,
)
from nacre.errors import NacreError, check

POLICIES = get_args(ImagesConfig.model_fields["crop"].annotation)
COLORS = np.array(
    [[0, 0, 0], [250, 20, 30], [20, 240, 60], [40, 50, 230], [240, 240, 40]], np.uint8
)
PAD = 200


def _config(policy: str, crop: int, eval_mode: str = "crop") -> ImagesConfig:
    return check(ImagesConfig, {"crop": policy, "crop_size": crop, "eval_mode": eval_mode})


def _cut(mask: np.ndarray, config: ImagesConfig, seed: int) -> tuple[np.ndarray, np.ndarray]:
    return train_sample(_paint(mask), mask, config, np.random.default_rng(seed), PAD)


def _jpeg(image: Image.Image) -> Image.Image:
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=95, subsampling=0)
    return Image.open(io.BytesIO(buffer.getvalue()))


def _patches(height: int, width: int) -> np.ndarray:
    """Return a mask of unequal patches without any symmetry."""
    mask = np.zeros((height, width), np.uint8)
    mask[: height // 3, : width // 2] = 1
    mask[height // 2 :, width // 4 : width // 3] = 2
    mask[height // 4 : height // 2, 2 * width // 3 :] = 3
    mask[-height // 5 :, -width // 6 :] = 4
    return mask


def _paint(mask: np.ndarray) -> Image.Image:
    return Image.fromarray(COLORS[mask])


def _inner(mask: np.ndarray, reach: int) -> np.ndarray:
    """Return which pixels have only their own label around them."""
    padded = np.pad(mask, reach, mode="edge")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * reach + 1,) * 2)
    return (windows == mask[..., None, None]).all((2, 3))


def _assert_aligned(image: np.ndarray, mask: np.ndarray, reach: int, close: int) -> None:
    colors = np.concatenate([COLORS, np.zeros((PAD - len(COLORS), 3)), [FILL]])
    inner = _inner(mask, reach)
    assert inner.mean() > 0.4
    difference = abs(image.transpose(1, 2, 0).astype(int) - colors[mask])[inner]
    assert difference.max() <= close


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("size", [(90, 130), (130, 90), (40, 50), (300, 200)])
def test_image_and_mask_stay_aligned(policy: str, size: tuple[int, int]) -> None:
    for seed in range(12):
        image, labels = _cut(_patches(*size), _config(policy, 96), seed)
        _assert_aligned(image, labels, reach=3, close=1)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_jpeg_decoded_at_a_smaller_scale_stays_aligned(policy: str) -> None:
    mask = _patches(1000, 1400)
    smaller = 0
    for seed in range(8):
        image, rng = _jpeg(_paint(mask)), np.random.default_rng(seed)
        pixels, labels = train_sample(image, mask, _config(policy, 48), rng, PAD)
        _assert_aligned(pixels, labels, reach=2, close=40)
        smaller += image.size != (1400, 1000)
    assert smaller == (8 if policy == "paper" else 0)


@settings(max_examples=60, deadline=None)
@given(
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    crop=st.integers(8, 40),
    policy=st.sampled_from(POLICIES),
    seed=st.integers(0, 2**32),
    kind=st.sampled_from([np.uint8, np.uint16]),
)
def test_any_size_gives_a_whole_crop_from_the_generator_alone(
    size: tuple[int, int], crop: int, policy: str, seed: int, kind: type
) -> None:
    mask = np.random.default_rng(seed).integers(0, 5, size).astype(kind)
    config = _config(policy, crop)
    image, labels = _cut(mask, config, seed)
    assert (image.shape, image.dtype) == ((3, crop, crop), np.uint8)
    assert (labels.shape, labels.dtype) == ((crop, crop), kind)
    assert image.flags.c_contiguous
    assert labels.flags.c_contiguous
    assert set(np.unique(labels)) <= set(np.unique(mask)) | {PAD}
    assert (labels != PAD).any()
    assert (image[:, labels == PAD] == np.array(FILL)[:, None]).all()
    table = np.full(65536, 7, np.uint8)
    table[:5] = [0, 3, 0, 255, 1]
    rng = np.random.default_rng(seed)
    again, targets = train_sample(_paint(mask), mask, config, rng, 9, table)
    np.testing.assert_array_equal(image, again)
    np.testing.assert_array_equal(targets, np.where(labels == PAD, 9, table[labels]))


@pytest.mark.parametrize("size", [(61, 97), (97, 61), (300, 200), (33, 33), (1, 3)])
def test_the_test_crop_is_the_center_of_the_scaled_image(size: tuple[int, int]) -> None:
    mask = _patches(*size)
    noise = np.random.default_rng(0).integers(0, 256, (*size, 3)).astype(np.uint8)
    image = Image.fromarray(noise)
    pixels, labels = eval_sample(image, mask, _config("paper", 64))
    height, width = (64 * side // min(size) for side in size)
    left, top = round((width - 64) / 2), round((height - 64) / 2)
    box = (left, top, left + 64, top + 64)
    expected = np.asarray(image.resize((width, height), Image.Resampling.BILINEAR).crop(box))
    assert abs(expected.transpose(2, 0, 1).astype(int) - pixels).max() <= 1
    nearest = Image.fromarray(mask).resize((width, height), Image.Resampling.NEAREST).crop(box)
    np.testing.assert_array_equal(labels, nearest)


@pytest.mark.parametrize("mode", ["full", "sliding"])
def test_a_whole_image_is_tested_unchanged(mode: str) -> None:
    mask = _patches(37, 53)
    image, labels = eval_sample(_paint(mask), mask, _config("paper", 16, mode))
    np.testing.assert_array_equal(image, COLORS[mask].transpose(2, 0, 1))
    np.testing.assert_array_equal(labels, mask)


@pytest.mark.parametrize("new_length", [*range(1, 66), 96, 160, 255, 256, 320, 511, 512, 513, 1024])
def test_masks_agree_with_pillow_at_every_size(new_length: int) -> None:
    for length in [*range(1, 130), *range(130, 701, 7)]:
        row = Image.fromarray(np.arange(length, dtype=np.int32)[None])
        expected = np.asarray(row.resize((new_length, 1), Image.Resampling.NEAREST))[0]
        found = nearest_pixels(length, new_length)
        np.testing.assert_array_equal(found, expected, f"{length} pixels")


@pytest.mark.parametrize("mode", ["crop", "full", "sliding"])
def test_a_jpeg_is_decoded_fully_in_testing(mode: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (400, 600, 3)).astype(np.uint8)
    lazy, decoded = (_jpeg(Image.fromarray(noise)) for _ in range(2))
    decoded.load()
    mask, config = np.zeros((400, 600), np.uint8), _config("paper", 96, mode)
    pixels = [eval_sample(one, mask, config)[0] for one in (lazy, decoded)]
    np.testing.assert_array_equal(*pixels)


@pytest.mark.parametrize(
    ("policy", "eval_mode", "expected"),
    [
        ("paper", "crop", "crop"),
        ("paper", "full", "full"),
        ("paper", "sliding", "sliding"),
        ("deeplab", "crop", "full"),
        ("plain", "crop", "full"),
        ("plain", "sliding", "sliding"),
    ],
)
def test_new_images_keep_the_scale_of_training(policy: str, eval_mode: str, expected: str) -> None:
    assert _config(policy, 16, eval_mode).predict_mode == expected


def test_boxes_of_the_paper_have_its_areas_and_aspect_ratios() -> None:
    rng = np.random.default_rng(0)
    boxes = [_draw_box(500, 375, rng) for _ in range(2000)]
    areas = np.array([box.width * box.height / (500 * 375) for box in boxes])
    aspects = np.array([box.width / box.height for box in boxes])
    assert areas.min() > 0.49
    assert areas.max() <= 1
    assert (aspects.min() > ASPECT[0] - 0.01, aspects.max() < ASPECT[1] + 0.01) == (True, True)
    assert all(box.left + box.width <= 500 and box.top + box.height <= 375 for box in boxes)
    assert len({box.left for box in boxes}) > 100
    assert len({box.top for box in boxes}) > 60


@pytest.mark.parametrize(
    ("width", "height", "box"),
    [
        (1000, 100, Box(433, 0, 133, 100)),
        (100, 1000, Box(0, 433, 100, 133)),
        (1, 50, Box(0, 24, 1, 1)),
    ],
)
def test_without_a_fitting_box_the_crop_is_the_center(width: int, height: int, box: Box) -> None:
    assert {_draw_box(width, height, np.random.default_rng(seed)) for seed in range(5)} == {box}


def test_an_error_names_a_damaged_image_or_one_of_another_size(tmp_path: Path) -> None:
    path, mask = save_image(tmp_path / "odd.jpg", 200, 200), np.zeros((200, 200), np.uint8)
    with pytest.raises(NacreError, match=r"odd\.jpg is 200 x 200, its mask is 200 x 100"):
        eval_sample(open_image(path), mask[:100], _config("paper", 8))
    path.write_bytes(path.read_bytes()[:1200])
    with pytest.raises(NacreError, match=r"the image .*odd\.jpg is damaged"):
        train_sample(open_image(path), mask, _config("paper", 8), np.random.default_rng(0), PAD)
