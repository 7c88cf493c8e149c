"""How the index, the plan and the first batch grow with the images: seconds and memory.

    python benchmarks/many_images.py                    # 25,000, then 100,000
    python benchmarks/many_images.py --images 20000 80000

The images are hard links to a few small ones, in folders of a thousand. Each part is carried out
in a process of its own, whose peak memory counts (that of a process that only imports is told
too). The index is built once from the masks, and once read from where it is kept.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from measuring import Row, peak_of_process, show

SIDE = 16
KINDS = 8  # and more where there would be more links to one than file systems allow
LINKS = 50_000
MANY = (25_000, 100_000)


def generate(root: Path, count: int) -> None:
    """Write a few images and masks, and link them under many names."""
    rng = np.random.default_rng(0)
    for kind in ("images", "masks"):
        (root / kind).mkdir(parents=True)
    (root / "classes.yaml").write_text("classes: {1: one, 2: two, 3: three}\n")
    first = []
    kinds = max(KINDS, -(-count // LINKS))
    for at in range(kinds):
        mask = Image.fromarray(rng.integers(0, 4, (SIDE, SIDE)).astype(np.uint8))
        paths = root / f"{at}.jpg", root / f"{at}.png"
        mask.convert("RGB").save(paths[0])
        mask.save(paths[1])
        first.append(paths)
    for at in range(count):
        folder = f"{at // 1000:05}"
        if at % 1000 == 0:
            for kind in ("images", "masks"):
                (root / kind / folder).mkdir()
        image, mask = first[at % kinds]
        os.link(image, root / "images" / folder / f"{at % 1000:03}.jpg")
        os.link(mask, root / "masks" / folder / f"{at % 1000:03}.png")


def _data(root: str):
    from nacre.runs.run import open_scenario
    from nacre.training.config import build_config

    values = {"scenario": "folder/2-1/overlapped", "data": {"root": root}}
    values |= {"images": {"crop_size": SIDE}, "train": {"batch_size": 16}}
    config = build_config(overrides=values)
    return config, open_scenario(config)


def index(root: str) -> tuple[float, int]:
    """Return the seconds and the peak memory of the index."""
    _, data = _data(root)
    began = time.perf_counter()
    assert len(data.train_index) + len(data.val_index) > 0
    return time.perf_counter() - began, peak_of_process()


def plan_and_batch(root: str) -> tuple[float, float, int]:
    """Return the seconds until the plan and until the first batch, and the peak memory."""
    from nacre.data.dataset import train_batches
    from nacre.runs.run import step_sampler
    from nacre.scenarios.plan import make_plan

    began = time.perf_counter()
    config, data = _data(root)
    make_plan(data.scenario, data.train_index, data.image_lists)
    planned = time.perf_counter() - began
    dataset = data.train_dataset(1)
    sampler = step_sampler(config, len(dataset), 1)
    next(train_batches(dataset, sampler, 0, 0, False))
    return planned, time.perf_counter() - began, peak_of_process()


def imports() -> int:
    """Return the peak memory of a process that has the modules and no data."""
    import nacre.runs.run
    import nacre.training.config  # noqa: F401

    return peak_of_process()


def apart(function: Callable[..., Any], *given: Any) -> Any:
    """Call a function in a fresh process, which may have processes of its own."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        return pool.submit(function, *given).result()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--images", type=int, nargs=2, default=MANY, help="fewer, and more")
    given = parser.parse_args()
    nothing = apart(imports)
    figures = []
    for count in given.images:
        folder = Path(tempfile.mkdtemp(prefix="nacre-images-"))
        try:
            generate(folder, count)
            built = apart(index, str(folder))
            figures.append((*built, *apart(plan_and_batch, str(folder))))
        finally:
            shutil.rmtree(folder)
    show(_rows(given.images, figures, nothing))


def _rows(counts: tuple[int, int], figures: list[tuple[float, ...]], nothing: int) -> list[Row]:
    few, many = figures
    times = counts[1] / counts[0]
    rows = []
    for at, what in ((0, "index from the masks"), (2, "plan from the index"), (3, "first batch")):
        behind = {
            f"{count:,} images s": one[at] for count, one in zip(counts, figures, strict=True)
        }
        rows.append(Row(f"{what}: seconds an image, more / fewer", many[at] / few[at] / times,
                        1.3, "most", behind))  # fmt: skip
    for at, what in ((1, "index"), (4, "plan and first batch")):
        behind = {"GB of the imports alone": nothing / 1e9, "GB of fewer": few[at] / 1e9}
        rows.append(Row(f"{what} of {counts[1]:,}: GB", many[at] / 1e9, 1.0, "most", behind))
    return rows


if __name__ == "__main__":
    main()
