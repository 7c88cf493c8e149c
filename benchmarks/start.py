"""Seconds until a command answers: `nacre --help`, and `nacre plan` from a large index.

    python benchmarks/start.py

The index names the labels of the 10,582 training images of the augmented Pascal VOC 2012.
"""

from __future__ import annotations

import lzma
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from measuring import Row, command, take_turns

INDEX = Path(__file__).parents[1] / "tests" / "facts" / "voc_train_aug.csv.xz"


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the shortest time of each command."""
    with tempfile.TemporaryDirectory() as folder:
        index = Path(folder) / "index.csv"
        index.write_bytes(lzma.decompress(INDEX.read_bytes()))
        images = len(index.read_text().splitlines()) - 1
        jobs = {
            "--help": lambda: run("--help"),
            "plan": lambda: run("plan", "voc/15-5/overlapped", "--index", str(index)),
        }
        seconds = take_turns(jobs, rounds, time.perf_counter)
    return [
        Row("nacre --help: seconds", seconds["--help"], 0.5, "most"),
        Row(f"nacre plan from {images:,} images: seconds", seconds["plan"], 1, "most"),
    ]


def run(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "nacre", *arguments], check=True, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    command(measure, __doc__, rounds=5)
