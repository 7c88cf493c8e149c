"""A data folder of noise, for tests that need any data."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

WEED = {1: "weed"}


def noise_folder(
    root: Path,
    count: int = 6,
    size: tuple[int, int] = (32, 32),
    classes: Mapping[int, str] = WEED,
    *,
    suffixes: Sequence[str] = (".png",),
    test: int = 0,
) -> Path:
    """Write images p0, p1, ... of noise and masks that have all of the classes.

    The last `test` of them are listed in val.txt, the others in train.txt; with 0, no list is made.
    """
    rng = np.random.default_rng(0)
    for part in ("images", "masks"):
        (root / part).mkdir(parents=True)
    for i in range(count):
        pixels = rng.integers(0, 256, (*size, 3), np.uint8)
        Image.fromarray(pixels).save(root / "images" / f"p{i}{suffixes[i % len(suffixes)]}")
        mask = np.array([0, *classes], np.uint8)[pixels[..., 0] % (len(classes) + 1)]
        Image.fromarray(mask).save(root / "masks" / f"p{i}.png")
    named = ", ".join(f"{label}: {name}" for label, name in classes.items())
    (root / "classes.yaml").write_text(f"classes: {{{named}}}\nbackground: 0\n")
    names = [f"p{i}\n" for i in range(count)]
    if test:
        (root / "train.txt").write_text("".join(names[:-test]))
        (root / "val.txt").write_text("".join(names[-test:]))
    return root
