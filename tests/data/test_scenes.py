"""Generated scenes are the same everywhere, and varied."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest

from nacre.data.scenes import (
    CLASS_NAMES,
    SPLIT_STREAMS,
    render,
)

SIZE = 48
COUNT = 200


def digest(seed: int, index: int, stream: int) -> str:
    image, mask = render(seed, index, SIZE, stream)
    return hashlib.sha256(image.tobytes() + mask.tobytes()).hexdigest()


@pytest.fixture(scope="module")
def world() -> tuple[np.ndarray, np.ndarray]:
    drawn = [render(5, index, SIZE) for index in range(COUNT)]
    return np.stack([image for image, _ in drawn]), np.stack([mask for _, mask in drawn])


def test_another_process_renders_the_same_scene() -> None:
    code = (
        "import hashlib, sys; from nacre.data.scenes import render\n"
        "image, mask = render(7, 123, 48, 1)\n"
        "print(hashlib.sha256(image.tobytes() + mask.tobytes()).hexdigest())\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout.strip() == digest(7, 123, 1)


def test_seeds_streams_and_indices_are_all_different() -> None:
    drawn = {
        digest(seed, index, stream) for seed in (0, 1) for stream in (0, 1) for index in (0, 1)
    }
    assert len(drawn) == 8
    assert len(set(SPLIT_STREAMS.values())) == len(SPLIT_STREAMS)


def test_all_classes_appear_equally_often(world: tuple[np.ndarray, np.ndarray]) -> None:
    _, masks = world
    assert len(CLASS_NAMES) == len(set(CLASS_NAMES)) >= 8
    assert set(np.unique(masks)) == set(range(len(CLASS_NAMES) + 1))
    images_with = [(masks == label).any((1, 2)).mean() for label in range(len(CLASS_NAMES) + 1)]
    assert images_with[0] > 0.95
    assert min(images_with[1:]) > 0.2
    assert max(images_with[1:]) < 0.5


def test_colors_do_not_identify_classes(world: tuple[np.ndarray, np.ndarray]) -> None:
    """Mean colors of a class in its images: far apart within, equal between classes."""
    images, masks = world
    means = []
    for label in range(1, len(CLASS_NAMES) + 1):
        colors = [
            image[mask == label].mean(0)
            for image, mask in zip(images, masks, strict=True)
            if (mask == label).sum() > 20
        ]
        spread = np.std(colors, axis=0)
        assert spread.min() > 25
        means.append(np.mean(colors, axis=0))
    assert np.ptp(means, axis=0).max() < 30
