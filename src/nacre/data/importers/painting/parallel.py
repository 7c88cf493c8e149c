"""Importing pictures by all cores."""

import os
import signal
import sys
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from itertools import islice, repeat
from multiprocessing import get_context
from typing import Any

from nacre.data.importers.painting.paint import Job, Outcome, import_picture
from nacre.errors import NacreError
from nacre.utils.signals import die_with_parent, held_back, leave_stops_to_parent
from nacre.utils.system import usable_cores

_ALONE_SECONDS = 0.5
_CHUNK = 4

_job: Job | None = None


def import_pictures(
    job: Job,
    indices: Sequence[int],
    progress: Callable[[int, int], None],
    workers: int | None = None,
) -> Iterator[Outcome]:
    """Yield what became of each picture, in the given order.

    Args:
        job: What is to be written.
        indices: Which pictures.
        progress: Told how many are done, and of how many.
        workers: How many processes; all cores by default, and none for little work.
    """
    progress(0, len(indices))
    began = time.perf_counter()
    done = 0
    for index in indices:
        if done and time.perf_counter() - began > _ALONE_SECONDS and workers != 1:
            break
        yield import_picture(job, index)
        done += 1
        progress(done, len(indices))
    rest = indices[done:]
    if not rest:
        return
    workers = min(workers or usable_cores(), len(rest))
    chunks = iter(rest[i : i + _CHUNK] for i in range(0, len(rest), _CHUNK))
    with _executor(job, workers) as executor:
        # Few are under way at a time, so that little is waited for when the user stops it.
        under_way = deque(executor.submit(_import, one) for one in islice(chunks, 2 * workers))
        while under_way:
            for outcome in under_way.popleft().result():
                yield outcome
                done += 1
                progress(done, len(indices))
            under_way.extend(executor.submit(_import, one) for one in islice(chunks, 1))


@contextmanager
def _executor(job: Job, workers: int) -> Iterator[Any]:
    """Give forked processes on Linux, which have the whole catalogue already; elsewhere threads."""
    global _job
    if sys.platform != "linux":
        _job = job
        with ThreadPoolExecutor(workers) as threads:
            yield threads
        return
    context = get_context("fork")
    pool = ProcessPoolExecutor(workers, context, _begin, (job, os.getpid()))
    try:
        with warnings.catch_warnings(), held_back():
            # The children touch no lock of another thread.
            warnings.simplefilter("ignore", DeprecationWarning)
            list(pool.map(abs, repeat(0, workers)))
        yield pool
    except BrokenProcessPool as error:
        raise NacreError(
            "a process that imports pictures was killed; is the memory enough?"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(job: Job, parent: int) -> None:
    """Begin a worker process, in which stops are the parent's business, and die with it."""
    global _job
    die_with_parent(parent, signal.SIGKILL)
    # A pool that lost a process ends the others by SIGTERM.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    leave_stops_to_parent(signal.SIGTERM)
    _job = replace(job, export=job.export.reopened())


def _import(indices: Sequence[int]) -> list[Outcome]:
    assert _job is not None
    return [import_picture(_job, index) for index in indices]
