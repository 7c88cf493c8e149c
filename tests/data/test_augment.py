"""The operations of the augmentation, each against its definition; off unless asked for."""

import numpy as np
import pytest
from PIL import Image, ImageEnhance, ImageFilter

from nacre.data.transforms import (
    Augment,
    ImagesConfig,
    blur,
    jitter_colors,
    rotate90,
    train_sample,
)
from nacre.errors import NacreError, check

RNG = np.random.default_rng
OPERATIONS = {"rotate90": 1.0, "color_jitter": 0.5, "gray": 1.0, "blur": 16.0}


def noise(side: int = 24) -> tuple[np.ndarray, np.ndarray]:
    pixels = RNG(0).integers(0, 256, (3, side, side), np.uint8)
    return pixels, RNG(1).integers(0, 5, (side, side)).astype(np.uint8)


def sample(seed: int, **augment: float) -> tuple[np.ndarray, np.ndarray]:
    image = Image.fromarray(RNG(2).integers(0, 256, (40, 50, 3), np.uint8))
    mask = RNG(3).integers(0, 5, (40, 50)).astype(np.uint8)
    config = ImagesConfig(crop_size=24, augment=Augment(**augment))
    return train_sample(image, mask, config, RNG(seed), pad=255)


def test_only_the_flip_is_on_by_default():
    pixels, labels = noise()
    rng = RNG(0)
    assert Augment().flip == 0.5
    assert all(getattr(Augment(), name) == 0 for name in OPERATIONS)
    unchanged = Augment(flip=0).apply(pixels, labels, rng)
    assert unchanged[0] is pixels
    assert unchanged[1] is labels
    assert rng.random() == RNG(0).random(), "what is off draws nothing"


def test_flip_is_the_probability_of_a_flip():
    seeds = range(60)
    never, half, always = ([sample(seed, flip=share) for seed in seeds] for share in (0, 0.5, 1))
    for (_, plain), (_, mirrored) in zip(never, always, strict=True):
        assert np.array_equal(plain[:, ::-1], mirrored)
    same = [np.array_equal(one[1], other[1]) for one, other in zip(half, always, strict=True)]
    assert 20 < sum(same) < 40


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_changes_the_crop_and_depends_on_the_generator_alone(name):
    options = {name: OPERATIONS[name]}
    first, second, off = sample(5, **options), sample(5, **options), sample(5)
    for one, other in zip(first, second, strict=True):
        assert np.array_equal(one, other)
        assert one.flags.c_contiguous
    assert (first[0].shape, first[0].dtype) == (off[0].shape, off[0].dtype)
    assert not np.array_equal(first[0], off[0])
    moves_labels = not np.array_equal(first[1], off[1])
    assert moves_labels == (name == "rotate90")


@pytest.mark.parametrize("turns", [1, 2, 3])
def test_image_and_mask_are_rotated_together(turns):
    pixels, labels = noise()
    turned, mask = rotate90(pixels, labels, turns)
    expected = Image.fromarray(labels).rotate(90 * turns)
    assert np.array_equal(mask, np.asarray(expected))
    for channel, found in zip(pixels, turned, strict=True):
        assert np.array_equal(found, np.asarray(Image.fromarray(channel).rotate(90 * turns)))


@pytest.mark.parametrize(
    ("factors", "enhance"),
    [
        ((0.6, 1, 1), ImageEnhance.Brightness),
        ((1, 0.6, 1), ImageEnhance.Contrast),
        ((1, 1, 0.6), ImageEnhance.Color),
        ((1, 1, 0), ImageEnhance.Color),
        ((1, 1.4, 1), ImageEnhance.Contrast),
    ],
)
def test_color_jitter_equals_pillows(factors, enhance):
    pixels, _ = noise()
    image = Image.fromarray(pixels.transpose(1, 2, 0))
    factor = next((one for one in factors if one != 1), 1)
    expected = np.asarray(enhance(image).enhance(factor)).transpose(2, 0, 1)
    found = jitter_colors(pixels, *factors)
    assert abs(found.astype(int) - expected).max() <= 2
    assert np.array_equal(jitter_colors(pixels, 1, 1, 1), pixels)


def test_a_blur_is_a_gaussian_and_keeps_a_constant_image():
    pixels, _ = noise(48)
    assert blur(pixels, 0.0) is pixels
    plane = np.full((3, 9, 9), 77, np.uint8)
    assert np.array_equal(blur(plane, 5.0), plane), "the edge is continued"
    impulse = np.zeros((3, 41, 41), np.uint8)
    impulse[:, 20, 20] = 255
    found = blur(impulse, 1.0)[0].astype(float)
    i = np.arange(-20, 21)
    line = np.exp(-(i**2) / 2) / np.exp(-(i**2) / 2).sum()
    assert abs(found - 255 * np.outer(line, line)).max() < 1
    ours = blur(pixels, 2.0).astype(float)
    image = Image.fromarray(pixels.transpose(1, 2, 0)).filter(ImageFilter.GaussianBlur(2))
    theirs = np.asarray(image).transpose(2, 0, 1)
    assert abs(ours - theirs)[:, 8:-8, 8:-8].max() < 12, "Pillow's is made of boxes"


@pytest.mark.parametrize(
    ("key", "value"), [("flip", 1.5), ("blur", -1), ("color_jitter", 1.0), ("mirror", 0.5)]
)
def test_invalid_strengths_are_refused(key, value):
    with pytest.raises(NacreError, match=rf"^augment\.{key}: "):
        check(ImagesConfig, {"augment": {key: value}})
