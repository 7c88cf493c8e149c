"""Time and peak memory of competing functions, for the benchmarks that compare them."""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch


def shortest_times(
    slow: Callable[[], object], fast: Callable[[], object], rounds: int, more: int = 5
) -> tuple[float, float]:
    """Return the shortest time of each of two functions that take turns.

    The fast one runs several times a round. With one thread it is processor time that counts, which
    other programs on the machine disturb less; with several it is the clock's.
    """
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    slow_times, fast_times = [], []
    for _ in range(rounds):
        slow_times.append(_time(slow, clock))
        fast_times += [_time(fast, clock) for _ in range(more)]
    return min(slow_times), min(fast_times)


def _time(function: Callable[[], object], clock: Callable[[], float]) -> float:
    start = clock()
    function()
    return clock() - start


def peak_bytes(
    function: Callable[..., object], make: Callable[..., tuple[Any, ...]], *case: Any
) -> int:
    """Return how far `function(*make(*case))` lifts the memory of a fresh process above its inputs.

    Both functions must be importable. The process runs `function` on `make()`, its smallest case,
    first, so that libraries that load at the first use do not count.
    """
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_peak_bytes, (torch.get_num_threads(), function, make, case))


def _peak_bytes(
    threads: int,
    function: Callable[..., object],
    make: Callable[..., tuple[Any, ...]],
    case: tuple[Any, ...],
) -> int:
    torch.set_num_threads(threads)
    function(*make())
    inputs = make(*case)
    before = _reset_peak()
    function(*inputs)
    return _peak() - before


def _reset_peak() -> int:
    """Forget the peak so far where the system can (Linux); return the memory in use."""
    reset = Path("/proc/self/clear_refs")
    if reset.exists():
        reset.write_text("5")
    return _peak()


def _peak() -> int:
    status = Path("/proc/self/status")
    if status.exists():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        return int(line.split()[1]) * 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
