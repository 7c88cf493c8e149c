"""Processes that share a pass over many files."""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, ProcessPoolExecutor, ThreadPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from itertools import repeat
from multiprocessing import get_context

from nacre.errors import NacreError
from nacre.utils.signals import die_with_parent, held_back, leave_stops_to_parent


@contextmanager
def worker_pool(
    count: int, begin: Callable[[bool], None], what: str, *, cancel: bool = False
) -> Iterator[Executor]:
    """Give processes by fork on Linux; elsewhere threads, which share most of the decoding.

    Forked processes have all that this one holds in their memory already, so that little need be
    sent to them. Spawned ones would import the caller's main module anew, which breaks plain
    scripts.

    Args:
        count: How many.
        begin: Called in each process before its work, with True; with threads, once, with False.
        what: What they do, for the sentence about one that is killed.
        cancel: Whether leaving drops the work that has not begun.
    """
    if sys.platform != "linux":
        begin(False)
        with ThreadPoolExecutor(count) as threads:
            yield threads
        return
    pool = ProcessPoolExecutor(count, get_context("fork"), _begin, (begin, os.getpid()))
    try:
        # The children touch neither torch nor locks of other threads; start them all here, where
        # the warning about forking a program with threads can be kept quiet.
        with warnings.catch_warnings(), held_back():
            warnings.simplefilter("ignore", DeprecationWarning)
            list(pool.map(abs, repeat(0, count)))
        yield pool
    except BrokenProcessPool as error:
        raise NacreError(f"a process that {what} was killed; is the memory enough?") from error
    finally:
        pool.shutdown(cancel_futures=cancel)


def _begin(begin: Callable[[bool], None], parent: int) -> None:
    """Begin a worker process, in which stops are the parent's business, and die with it."""
    die_with_parent(parent, signal.SIGKILL)
    # A pool that lost a process ends the others by SIGTERM.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    leave_stops_to_parent(signal.SIGTERM)
    begin(True)
