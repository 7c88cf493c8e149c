"""Helpers of the benchmarks: table rows, alternating timings, peak memory, the command line."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import torch
from rich.console import Console
from rich.table import Table

TEST_DATA = Path(os.environ.get("NACRE_TEST_DATA") or Path(__file__).parents[2] / "shared" / "data")
PAGE = 4096
"""Size of a memory page, the smallest unit that counts."""

Result = TypeVar("Result")


@dataclass(frozen=True)
class Row:
    """One measured number.

    Attributes:
        what: Description.
        value: The number, usually a ratio.
        goal: Its minimum or maximum, if there is a goal.
        bound: Whether the goal is the minimum or the maximum.
        behind: The seconds, bytes or counts behind the ratio.
    """

    what: str
    value: float
    goal: float | None = None
    bound: Literal["least", "most"] = "least"
    behind: dict[str, float] = field(default_factory=dict)

    @property
    def is_met(self) -> bool | None:
        if self.goal is None:
            return None
        return self.value >= self.goal if self.bound == "least" else self.value <= self.goal


def take_turns(
    jobs: dict[str, Callable[[], object]],
    rounds: int,
    clock: Callable[[], float] | None = None,
    often: Collection[str] = (),
) -> dict[str, float]:
    """Return the shortest time of each job; jobs alternate, and those in ``often`` run repeatedly.

    With one thread it measures processor time, which other programs disturb less; with several
    threads, wall time.
    """
    if clock is None:
        clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    best = dict.fromkeys(jobs, float("inf"))
    for _ in range(rounds):
        for name, job in jobs.items():
            for _ in range(5 if name in often else 1):
                start = clock()
                job()
                best[name] = min(best[name], clock() - start)
    return best


def peak_bytes(
    function: Callable[..., object], make: Callable[..., tuple[Any, ...]], *case: Any
) -> int:
    """Return the peak memory of `function(*make(*case))` in a fresh process, without its inputs.

    Both functions must be importable. The process runs `function` on `make()`, its smallest case,
    first, so that libraries that load at the first use do not count.
    """
    return apart(_peak_bytes, function, make, case)


def apart(function: Callable[..., Result], *args: Any) -> Result:
    """Call a function in a fresh process with the same number of threads."""
    with multiprocessing.get_context("spawn").Pool(
        1, torch.set_num_threads, (torch.get_num_threads(),)
    ) as pool:
        return pool.apply(function, args)


def _peak_bytes(
    function: Callable[..., object],
    make: Callable[..., tuple[Any, ...]],
    case: tuple[Any, ...],
) -> int:
    function(*make())
    inputs = make(*case)
    return peaks_of(lambda: function(*inputs))[0]


def peaks_of(*jobs: Callable[[], object]) -> list[int]:
    """Return the peak memory of each job in this process above the memory before all jobs."""
    before = _reset_peak()
    peaks = []
    for job in jobs:
        _reset_peak()
        job()
        peaks.append(max(peak_of_process() - before, PAGE))
    return peaks


def _reset_peak() -> int:
    """Reset the peak if the system allows it (Linux); return the memory in use."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")
    return peak_of_process()


def peak_of_process() -> int:
    """Return the peak memory of this process in bytes."""
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    import resource  # missing on Windows

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024


def show(rows: Sequence[Row]) -> None:
    """Print rows as a table."""
    table = Table(box=None, pad_edge=False)
    table.add_column("what", overflow="fold")
    for title in ("measured", "goal", ""):
        table.add_column(title, justify="right", no_wrap=True)
    table.add_column("from", style="dim", overflow="fold")
    for row in rows:
        goal = "" if row.goal is None else f"at {row.bound} {row.goal:g}"
        met = {None: "", True: "[green]met", False: "[red]missed"}[row.is_met]
        behind = ", ".join(f"{name} {_short(value)}" for name, value in row.behind.items())
        table.add_row(row.what, _short(row.value), goal, met, behind)
    Console(width=None if sys.stdout.isatty() else 150).print(table)


def _short(value: float) -> str:
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:,.0f}"


def save(rows: Sequence[Row], path: Path) -> None:
    """Write rows and the machine as JSON."""
    machine = {"cores": os.cpu_count(), "threads": torch.get_num_threads()}
    content = {
        "versions": {"python": sys.version.split()[0], "torch": torch.__version__},
        "machine": machine,
        "rows": [asdict(row) | {"is_met": row.is_met} for row in rows],
    }
    path.write_text(json.dumps(content, indent=1) + "\n")


def command(measure: Callable[[bool, int], list[Row]], doc: str | None, rounds: int = 3) -> None:
    """Run one benchmark from the command line."""
    parser = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tiny", action="store_true", help="small, for correctness only")
    parser.add_argument("--rounds", type=int, default=rounds, help=f"turns of each ({rounds})")
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", type=Path, help="also write the figures to this file")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    rows = run(measure, given.tiny, given.rounds)
    show(rows)
    if given.json:
        save(rows, given.json)


def run(measure: Callable[[bool, int], list[Row]], tiny: bool, rounds: int) -> list[Row]:
    """Run a benchmark; the tiny form has no goals."""
    if not tiny:
        return measure(False, rounds)
    return [replace(row, goal=None) for row in measure(True, 1)]
