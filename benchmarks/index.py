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

import argparse
import json
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image

from nacre.data.index import build_index
from nacre.data.keeping import FOLDER
from nacre.data.scanning import Pair, usable_cores
from nacre.data.voc import SPACE

BESIDE_THE_PROJECT = Path(__file__).parents[2] / "shared" / "data"
LONG_SIDE = 500
_TIMES = 6

Job = tuple[Callable[[], float], Callable[[], object]]


def measure(tiny: bool = False, rounds: int = 5) -> dict[str, float]:
    """Return ratios; the goals are `index_to_decode` <= 1.25 and `loop_to_index` >= 2.5."""
    count, rounds = (24, 1) if tiny else (800, rounds)
    ratios: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as folder:
        sources = find_pairs(count) or generate(Path(folder) / "generated", count)
        large = enlarge(sources, Path(folder) / "large")
        for name, pairs in (("as_stored", sources), ("voc_size", large)):
            ratios |= {f"{key}_{name}": value for key, value in _compare(pairs, rounds).items()}
    return ratios


def find_pairs(count: int) -> list[Pair]:
    """Return pictures and masks of the part of VOC, if it is there."""
    base = Path(os.environ.get("NACRE_TEST_DATA") or BESIDE_THE_PROJECT)
    root = base / "voc2012-part" / "VOC2012"
    masks = sorted((root / "SegmentationClassAug").glob("*.png"))[:count]
    return [Pair(mask.stem, root / "JPEGImages" / f"{mask.stem}.jpg", mask) for mask in masks]


def generate(root: Path, count: int) -> list[Pair]:
    """Write pictures and palette masks with blobs of a few classes."""
    rng = np.random.default_rng(0)
    pairs = []
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    for at in range(count):
        coarse = rng.choice([0, 0, 0, 8, 12, 15, 255], (6, 8)).astype(np.uint8)
        mask = Image.fromarray(coarse).resize((256, 192), Image.Resampling.NEAREST)
        mask.putpalette([value for label in range(256) for value in (label, label, label)])
        pair = Pair(f"{at:05}", root / "images" / f"{at:05}.jpg", root / "masks" / f"{at:05}.png")
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


def _compare(pairs: list[Pair], rounds: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)

        def index(these: list[Pair], workers: int | None) -> object:
            shutil.rmtree(root / FOLDER, ignore_errors=True)
            quiet = lambda done, total: None  # noqa: E731
            return build_index(
                these, SPACE, root=root, split="all", workers=workers, progress=quiet
            )

        alone: dict[str, Job] = {
            "decode": (time.process_time, lambda: [_decode(pair) for pair in pairs]),
            "loop": (time.process_time, lambda: [_loop(pair) for pair in pairs]),
            "index": (time.process_time, lambda: index(pairs, 1)),
        }
        # A pool of processes pays only for many masks, so each is there several times.
        many = [pair._replace(name=f"{at}-{pair.name}") for at in range(_TIMES) for pair in pairs]
        cores: dict[str, Job] = {
            "one_core": (time.perf_counter, lambda: index(many, 1)),
            "all_cores": (time.perf_counter, lambda: index(many, None)),
        }
        seconds = _take_turns(alone, rounds) | _take_turns(cores, max(1, rounds // 2))
    return {
        "index_to_decode": seconds["index"] / seconds["decode"],
        "loop_to_index": seconds["loop"] / seconds["index"],
        "one_core_to_all_cores": seconds["one_core"] / seconds["all_cores"],
    }


def _take_turns(jobs: dict[str, Job], rounds: int) -> dict[str, float]:
    """Return the shortest time of each job."""
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(rounds):
        for name, (clock, job) in jobs.items():
            start = clock()
            job()
            best[name] = min(best[name], clock() - start)
    return best


def _decode(pair: Pair) -> None:
    with Image.open(str(pair.mask)) as mask:
        mask.load()


def _loop(pair: Pair) -> object:
    with Image.open(str(pair.mask)) as mask:
        return np.unique(np.array(mask))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="few masks, once")
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    ratios = {key: round(value, 2) for key, value in measure(args.tiny, args.rounds).items()}
    print(json.dumps({"cores": usable_cores(), **ratios}, indent=1))


if __name__ == "__main__":
    main()
