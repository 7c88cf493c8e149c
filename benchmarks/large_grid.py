"""A grid of a thousand runs on ten thousand images: to list it, and to watch it.

    python benchmarks/large_grid.py

Listing is the whole command, `nacre grid … --status --json`, with the index there already. Watching
is what the live table takes while eight runs are worked on and write an event every two seconds:
the share of one core. Both count processor time, which other programs on the machine disturb less.
"""

from __future__ import annotations

import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from many_images import SIDE, generate
from measuring import Row, command
from nacre.cli.grid import GridDisplay
from nacre.sweeps.engines import POLL_SECONDS
from nacre.sweeps.grid import Job, check_grid, make_jobs

METHODS = ["ft", "lwf", "mib", "ewc", "ilt", "plop", "lwf-mc", "pi", "rw", "joint"]
RUNNING = 8
WATCH_SECONDS = 30


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the seconds of a list, and the share of a core that the display takes."""
    images, seeds = (200, 2) if tiny else (10_000, 100)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder) / "data"
        generate(root, images)
        grid = {
            "scenarios": ["folder/2-1/overlapped"], "methods": METHODS, "seeds": list(range(seeds)),
            "config": {"data": {"root": str(root)}, "images": {"crop_size": SIDE}},
        }  # fmt: skip
        file = Path(folder) / "grid.yaml"
        file.write_text(json.dumps(grid))
        out = Path(folder) / "out"
        listed(file, out)  # which builds the index
        seconds = min(listed(file, out) for _ in range(rounds))
        jobs = make_jobs(check_grid(grid), out)
        share = watched(jobs, 1 if tiny else WATCH_SECONDS)
    what = f"{len(jobs):,} runs on {images:,} images"
    return [
        Row(f"{what}: seconds to check and list them", seconds, 10, "most"),
        Row(f"{what}: share of a core to watch them", share, 0.02, "most"),
    ]


def listed(file: Path, out: Path) -> float:
    """Return the processor time of the command that lists a grid."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    command = [sys.executable, "-m", "nacre", "grid", str(file), "--out", str(out)]
    subprocess.run([*command, "--status", "--json"], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def watched(jobs: list[Job], seconds: float) -> float:
    """Return the share of a core that reading the events and drawing the table take."""
    running = jobs[:RUNNING]
    for job in running:
        job.folder.path.mkdir(parents=True)
        job.state = "running"
    screen = Console(file=io.StringIO(), force_terminal=True, width=140, height=50)
    spent, iteration = 0.0, 0
    until = time.monotonic() + seconds
    with GridDisplay(screen) as display:
        display(jobs)
        while time.monotonic() < until:
            iteration += 1
            for job in running if iteration % 4 == 0 else ():
                event = {"event": "train", "step": 0, "iteration": iteration, "losses": {"ce": 1.0}}
                with job.folder.events.open("a") as events:
                    events.write(json.dumps(event) + "\n")
            began = time.process_time()
            display(jobs)
            spent += time.process_time() - began
            time.sleep(POLL_SECONDS)
    return spent / seconds


if __name__ == "__main__":
    command(measure, __doc__, rounds=2)
