"""Importing pictures by all cores."""

import os
import signal
import sys
import threading
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from dataclasses import replace
from itertools import repeat
from multiprocessing import get_context
from typing import Any

from nacre.data.importers.painting.paint import Job, Outcome, import_picture
from nacre.errors import NacreError
from nacre.utils.system import usable_cores

_ALONE_SECONDS = 0.5
_LARGEST_CHUNK = 64
_WATCH_SECONDS = 1.0

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
    with _executor(job, min(workers or usable_cores(), len(rest))) as executor:
        size = min(_LARGEST_CHUNK, len(rest) // (8 * usable_cores()) + 1)
        for outcome in executor.map(_import, rest, chunksize=size):
            yield outcome
            done += 1
            progress(done, len(indices))


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
        with warnings.catch_warnings():
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
    """Begin a worker process: signals are the parent's business, and it ends with the parent."""
    global _job
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    _job = replace(job, export=job.export.reopened())
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(_WATCH_SECONDS)
    os._exit(1)


def _import(index: int) -> Outcome:
    assert _job is not None
    return import_picture(_job, index)
