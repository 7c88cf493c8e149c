"""Long passes: how far they have come, told to whoever shows it, and processes that share them.

Modules that do the work know nothing of terminals: they open a bar here by its title. It is silent
until a program says how bars are shown (`set_progress_bar`), as the command line does.
"""

import os
import signal
import sys
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from itertools import repeat
from typing import TYPE_CHECKING

from nacre.errors import NacreError
from nacre.utils.signals import block_signals, die_with_parent, ignore_stop_signals

if TYPE_CHECKING:
    from concurrent.futures import Executor

Progress = Callable[[int, int], None]
"""Told how much is done, and of how much."""

Bar = Callable[[str], AbstractContextManager[Progress]]


def _silent(title: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


_bar: Bar = _silent


def set_progress_bar(bar: Bar) -> None:
    """Show every bar of this process in this way from now on."""
    global _bar
    _bar = bar


def show_progress(title: str) -> AbstractContextManager[Progress]:
    """Open a bar with a title; it takes how much is done, and of how much."""
    return _bar(title)


@contextmanager
def worker_pool(count: int, what: str) -> Iterator["Executor"]:
    """Give processes by fork on Linux; elsewhere threads, which share most of the decoding.

    Forked processes have all that this one holds in their memory already, so that little need be
    sent to them. Spawned ones would import the caller's main module anew, which breaks plain
    scripts.

    Args:
        count: How many.
        what: What they do, for the sentence about one that is killed.
    """
    from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
    from concurrent.futures.process import BrokenProcessPool
    from multiprocessing import get_context

    if sys.platform != "linux":
        with ThreadPoolExecutor(count) as threads:
            yield threads
        return
    pool = ProcessPoolExecutor(count, get_context("fork"), _begin, (os.getpid(),))
    try:
        # The children touch neither torch nor locks of other threads; start them all here, where
        # the warning about forking a program with threads can be kept quiet.
        with warnings.catch_warnings(), block_signals():
            warnings.simplefilter("ignore", DeprecationWarning)
            list(pool.map(abs, repeat(0, count)))
        yield pool
    except BrokenProcessPool as error:
        raise NacreError(f"a process that {what} was killed; is the memory enough?") from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Begin a worker process, in which stops are the parent's business, and die with it."""
    die_with_parent(parent, signal.SIGKILL)
    # A pool that lost a process ends the others by SIGTERM.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ignore_stop_signals(signal.SIGTERM)
