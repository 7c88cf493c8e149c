"""Twenty steps of one class each: whether time and memory of a step stay what they were.

    python benchmarks/many_steps.py [--method mib] [--steps 20] [--images 64] [--updates 30]

A first model of four classes, then one class a step, by `nacre learn` on folders of generated
scenes in which nothing but the step's class is labeled. The scenes have eight kinds of things; a
kind in the left, middle or right third of an image is a class of its own here: that makes 24.
Each step is a process of its own: its processor time, its peak of memory, and the size of the model
file, which holds what the method keeps. The last line compares the last five steps with the first.
"""

import argparse
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from rich.table import Table

from measuring import apart, peak_of_process
from nacre.data.sources.scenes import CLASS_NAMES, render
from nacre.runs.learn import find_start, plan_learning

FIRST = 4
SIZE = 64
THIRDS = ("left", "middle", "right")
NAMES = [f"{name} {third}" for third in THIRDS for name in CLASS_NAMES]


@dataclass(frozen=True)
class Cost:
    """What a step took: processor time, the process's peak, the model's file."""

    seconds: float
    memory: int
    file: int


def write_step(root: Path, step: int, labels: range, images: int) -> Path:
    """Write so many scenes that hold one of the labels, with masks of nothing else."""
    for folder in ("images", "masks"):
        (root / folder).mkdir(parents=True)
    third = np.arange(SIZE) * len(THIRDS) // SIZE * len(CLASS_NAMES)
    index = kept = 0
    while kept < images:
        image, kinds = render(7, index, SIZE, stream=10 + step)
        index += 1
        mask = np.where(kinds > 0, kinds + third, 0)
        mask[~np.isin(mask, list(labels))] = 0
        if mask.any():
            Image.fromarray(image).save(root / "images" / f"{kept}.png")
            Image.fromarray(mask.astype(np.uint8)).save(root / "masks" / f"{kept}.png")
            kept += 1
    listed = ", ".join(f"{label}: {NAMES[label - 1]}" for label in labels)
    (root / "classes.yaml").write_text(f"classes: {{{listed}}}\n")
    return root


def learn(data: Path, start: Path | None, out: Path, method: str, updates: int) -> Cost:
    """Learn a step in this process."""
    values = {
        "method": {"name": method},
        "images": {"crop_size": SIZE, "crop": "plain"},
        "train": {"iterations": updates, "batch_size": 8, "lr": 0.05, "incremental_lr": 0.02},
    }
    if start is None:
        values["model"] = {"backbone": "tiny", "decoder_channels": 32}
    began = time.process_time()
    plan_learning([data], find_start(start), values=values).learn(out)
    seconds = time.process_time() - began
    return Cost(seconds, peak_of_process(), (out / "model.safetensors").stat().st_size)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--method", default="mib", help="which (mib)")
    parser.add_argument("--steps", type=int, default=20, help="steps of one class (20)")
    parser.add_argument("--images", type=int, default=64, help="images of a step (64)")
    parser.add_argument("--updates", type=int, default=30, help="updates of a step (30)")
    given = parser.parse_args()
    assert 10 <= given.steps <= len(NAMES) - FIRST, f"10 to {len(NAMES) - FIRST} steps"
    torch.set_num_threads(1)
    table = Table("step", "classes", "processor s", "peak MiB", "model kB", box=None)
    costs: list[Cost] = []
    with tempfile.TemporaryDirectory() as folder:
        start = None
        for step in range(given.steps + 1):
            labels = range(FIRST + step, FIRST + step + 1) if step else range(1, FIRST + 1)
            data = write_step(Path(folder) / f"data-{step}", step, labels, given.images)
            out = Path(folder) / f"model-{step}"
            cost = apart(learn, data, start, out, given.method, given.updates)
            costs.append(cost)
            row = (cost.seconds, cost.memory / 2**20, cost.file / 1e3)
            table.add_row(str(step), str(FIRST + step), *(f"{value:.1f}" for value in row))
            start = out
    Console().print(table)
    first, last = costs[1:6], costs[-5:]
    time_ratio = sum(c.seconds for c in last) / sum(c.seconds for c in first)
    memory_ratio = sum(c.memory for c in last) / sum(c.memory for c in first)
    print(
        f"last five steps beside the first five: time {time_ratio:.2f}, memory {memory_ratio:.2f}"
    )


if __name__ == "__main__":
    main()
