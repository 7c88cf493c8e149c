"""Importing pictures by all cores."""

import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice

from nacre.importers.painting.paint import Job, Outcome, import_picture
from nacre.utils.system import usable_cores
from nacre.utils.workers import worker_pool

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
    # Closed when the user stops it: no process may write on after that.
    with closing(_share(job, rest, min(workers or usable_cores(), len(rest)))) as outcomes:
        for count, outcome in enumerate(outcomes, start=done + 1):
            yield outcome
            progress(count, len(indices))


def _share(job: Job, indices: Sequence[int], workers: int) -> Generator[Outcome, None, None]:
    """Import pictures by several processes."""
    chunks = iter(indices[i : i + _CHUNK] for i in range(0, len(indices), _CHUNK))
    begin = partial(_take, job)
    with worker_pool(workers, begin, "imports pictures", cancel=True) as executor:
        # Few are under way at a time, so that little is waited for when the user stops it.
        under_way = deque(executor.submit(_import, one) for one in islice(chunks, 2 * workers))
        while under_way:
            yield from under_way.popleft().result()
            under_way.extend(executor.submit(_import, one) for one in islice(chunks, 1))


def _take(job: Job, forked: bool) -> None:
    """Hold what is to be done; forked processes do not read through each other's open files."""
    global _job
    _job = replace(job, export=job.export.reopened()) if forked else job


def _import(indices: Sequence[int]) -> list[Outcome]:
    assert _job is not None
    return [import_picture(_job, index) for index in indices]
