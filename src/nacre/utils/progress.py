"""Progress bars of long passes, and pools of worker processes.

Library code opens a bar by its title. Bars are silent until a program sets how to show them
(`set_progress_bar`), as the command line does.
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
"""Receives the number of items done, and of all items."""

Bar = Callable[[str], AbstractContextManager[Progress]]


def _silent(title: str) -> AbstractContextManager[Progress]:
    return nullcontext(lambda done, total: None)


_bar: Bar = _silent


def set_progress_bar(bar: Bar) -> None:
    """Set the function that opens all progress bars of this process."""
    global _bar
    _bar = bar


def show_progress(title: str) -> AbstractContextManager[Progress]:
    """Open a progress bar with a title."""
    return _bar(title)


@contextmanager
def worker_pool(count: int, what: str) -> Iterator["Executor"]:
    """Yield a pool of forked processes on Linux, of threads elsewhere.

    Forked processes share this process's memory, so that little must be sent to them. Spawned
    processes would import the caller's main module again, which breaks plain scripts. Threads
    still run most of the decoding in parallel.

    Args:
        count: Number of workers.
        what: Task of the workers, for the error if one is killed: "reads masks".
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
        # The children use neither torch nor locks of other threads. All of them start here, where
        # the warning about forking a program with threads can be suppressed.
        with warnings.catch_warnings(), block_signals():
            warnings.simplefilter("ignore", DeprecationWarning)
            list(pool.map(abs, repeat(0, count)))
        yield pool
    except BrokenProcessPool as error:
        raise NacreError(
            f"a process that {what} was killed, probably because the memory is full"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)


def _begin(parent: int) -> None:
    """Set up a worker process: it ignores stop signals and dies with its parent."""
    die_with_parent(parent, signal.SIGKILL)
    # A pool that lost a process ends the others with SIGTERM.
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    ignore_stop_signals(signal.SIGTERM)
