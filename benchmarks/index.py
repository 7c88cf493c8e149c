"""Time of the index against merely decoding the masks, and against a plain loop, in one run.

    python benchmarks/index.py            # the masks in NACRE_TEST_DATA, else generated ones
    python benchmarks/index.py --tiny     # for correctness only

Three things take turns on one core, and the shortest processor time of each counts:

- ``decode``: open and decode every mask with Pillow, and nothing else;
- ``loop``: what is usually written: Pillow, then ``np.unique``;
- ``index``: ``build_index`` from nothing, with its checks (labels, sizes of the pictures, damage)
  and with writing the index.

Then the index is built by one core and by all of them, on the clock. Masks come at the size
they have and at Pascal VOC's own (long side 500).
"""

import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

import numpy as np
from PIL import Image

from measuring import TEST_DATA, Row, command, take_turns
from nacre.data.index import FOLDER, build_index
from nacre.data.scan import Pair
from nacre.data.sources.voc import SPACE

LONG_SIDE = 500
_TIMES = 6


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the index's time as ratios to decoding, to a plain loop and of one core to all."""
    count = 24 if tiny else 800
    with tempfile.TemporaryDirectory() as folder:
        sources = find_pairs(count) or generate(Path(folder) / "generated", count)
        large = enlarge(sources, Path(folder) / "large")
        return [*_compare("as stored", sources, rounds), *_compare("of VOC's size", large, rounds)]


def find_pairs(count: int) -> list[Pair]:
    """Return pictures and masks of the part of VOC, if it is there."""
    root = TEST_DATA / "voc2012-part" / "VOC2012"
    masks = sorted((root / "SegmentationClassAug").glob("*.png"))[:count]
    return [Pair(mask.stem, root / "JPEGImages" / f"{mask.stem}.jpg", mask) for mask in masks]


def generate(root: Path, count: int) -> list[Pair]:
    """Write pictures and palette masks with blobs of a few classes."""
    rng = np.random.default_rng(0)
    pairs = []
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for i in range(count):
        coarse = rng.choice([0, 0, 0, 8, 12, 15, 255], (6, 8)).astype(np.uint8)
        mask = Image.fromarray(coarse).resize((256, 192), Image.Resampling.NEAREST)
        mask.putpalette([value for label in range(256) for value in (label, label, label)])
        pair = Pair(f"{i:05}", root / "images" / f"{i:05}.jpg", root / "masks" / f"{i:05}.png")
        mask.save(str(pair.mask))
        mask.convert("RGB").save(str(pair.image))
        pairs.append(pair)
    return pairs


def enlarge(pairs: Sequence[Pair], root: Path) -> list[Pair]:
    """Write the pairs again with a long side of 500."""
    large = []
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for name, image, mask in pairs:
        pair = Pair(name, root / "images" / f"{name}.jpg", root / "masks" / f"{name}.png")
        for old, new in ((image, pair.image), (mask, pair.mask)):
            with Image.open(str(old)) as picture:
                scale = LONG_SIDE / max(picture.size)
                width, height = (round(side * scale) for side in picture.size)
                picture.resize((width, height), Image.Resampling.NEAREST).save(str(new))
        large.append(pair)
    return large


def _compare(name: str, pairs: list[Pair], rounds: int) -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)

        def index(these: list[Pair], workers: int | None) -> object:
            shutil.rmtree(root / FOLDER, ignore_errors=True)
            quiet = lambda done, total: None  # noqa: E731
            return build_index(
                these, SPACE, root=root, split="all", workers=workers, progress=quiet
            )

        alone: dict[str, Callable[[], object]] = {
            "decode": lambda: [_decode(pair) for pair in pairs],
            "loop": lambda: [_loop(pair) for pair in pairs],
            "index": lambda: index(pairs, 1),
        }
        # A pool of processes pays only for many masks, so each is there several times.
        many = [pair._replace(name=f"{i}-{pair.name}") for i in range(_TIMES) for pair in pairs]
        cores: dict[str, Callable[[], object]] = {
            "one core": lambda: index(many, 1),
            "all cores": lambda: index(many, None),
        }
        s = take_turns(alone, 2 * rounds, time.process_time)
        s |= take_turns(cores, max(1, rounds // 2), time.perf_counter)
    what = f"index of masks {name}: "
    return [
        _row(f"{what}time against decoding", s, "index", "decode", 1.25, "most"),
        _row(f"{what}times faster than a plain loop", s, "loop", "index", 2.5, "least"),
        _row(f"{what}times faster on all cores", s, "one core", "all cores", None, "least"),
    ]


def _row(
    what: str,
    seconds: dict[str, float],
    one: str,
    other: str,
    goal: float | None,
    bound: Literal["least", "most"],
) -> Row:
    behind = {f"{name} s": seconds[name] for name in (one, other)}
    return Row(what, seconds[one] / seconds[other], goal, bound, behind)


def _decode(pair: Pair) -> None:
    with Image.open(str(pair.mask)) as mask:
        mask.load()


def _loop(pair: Pair) -> object:
    with Image.open(str(pair.mask)) as mask:
        return np.unique(np.array(mask))


if __name__ == "__main__":
    command(measure, __doc__, rounds=5)
