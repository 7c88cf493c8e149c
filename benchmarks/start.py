"""Seconds until a command answers: `nacre --help` and `nacre methods`.

python benchmarks/start.py
"""

from __future__ import annotations

import subprocess
import sys
import time

from measuring import Row, command, take_turns


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the shortest time of each command."""
    jobs = {"--help": lambda: run("--help"), "methods": lambda: run("methods")}
    seconds = take_turns(jobs, rounds, time.perf_counter)
    return [
        Row(f"nacre {name}: seconds", seconds[name], 0.5, "most") for name in ("--help", "methods")
    ]


def run(*arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "nacre", *arguments], check=True, stdout=subprocess.DEVNULL
    )


if __name__ == "__main__":
    command(measure, __doc__, rounds=5)
