"""What the processes that load pictures read, so that a death has a file's name.

A process that is killed (most often because memory ran out) or that crashes while it decodes
says nothing itself. So each has a place in shared memory where it writes what it begins to read.
torch reports a death wherever the trainer happens to be, sometimes only as a broken pipe.
"""

import contextlib
import ctypes
import multiprocessing
import os
import re
import signal
import time
import weakref
from collections.abc import Iterator
from multiprocessing.sharedctypes import RawArray

from nacre.errors import NacreError
from nacre.utils.signals import die_with_parent, leave_stops_to_parent

_ROOM = 1024
_slot: memoryview | None = None  # of this process, if it loads for another
_monitors: "weakref.WeakSet[WorkerMonitor]" = weakref.WeakSet()


def set_current_file(what: str) -> None:
    """Leave word of what this process begins to read."""
    if _slot is not None:
        word = f"{os.getpid()} {what}".encode(errors="replace")[:_ROOM]
        _slot[:] = word.ljust(_ROOM, b"\0")


class WorkerMonitor:
    """Places for so many loading processes; each takes its own when it begins."""

    def __init__(self, workers: int) -> None:
        self._memory = RawArray(ctypes.c_char, max(workers, 1) * _ROOM)
        self._trainer = os.getpid()
        _monitors.add(self)

    def __call__(self, worker: int) -> None:
        """Begin as a worker, in the new process."""
        self.take_place(worker)
        # Nothing that a helper holds is worth a moment more than its trainer.
        is_served = multiprocessing.get_start_method() == "forkserver"  # which dies with it too
        die_with_parent(os.getppid() if is_served else self._trainer, signal.SIGKILL)
        leave_stops_to_parent()

    def take_place(self, worker: int) -> None:
        """Have this process write what it reads into the place of this number."""
        global _slot
        _slot = memoryview(self._memory).cast("B")[worker * _ROOM : (worker + 1) * _ROOM]
        set_current_file("")

    def clear(self) -> None:
        """Forget the processes: they ended as they should."""
        _monitors.discard(self)

    def last_files(self) -> dict[int, str]:
        """Return what each process began to read last, by its number."""
        memory = bytes(memoryview(self._memory))
        places = [memory[i : i + _ROOM] for i in range(0, len(memory), _ROOM)]
        texts = [place.rstrip(b"\0").decode(errors="replace").partition(" ") for place in places]
        return {int(process): what for process, _, what in texts if process}


@contextlib.contextmanager
def explain_worker_crash() -> Iterator[None]:
    """Have the death of a loading process meanwhile told in one sentence, with the file."""
    try:
        yield
    except (RuntimeError, ConnectionError, EOFError) as error:
        reported = str(error).startswith("DataLoader worker")
        if isinstance(error, RuntimeError) and not reported:
            raise
        message = f"{error} {error.__cause__ or ''}"  # the signal stands in either
        dead = _dead(message if reported else "")
        if dead is None:
            raise
        how = message.partition("is killed by ")[2].partition(".")[0].strip()
        began = f"; the last file it began to read is {dead}" if dead else ""
        raise NacreError(
            f"a process that loads pictures died{f' ({how})' if how else ''}{began}; if memory ran "
            "out, fewer train.num_workers need less, and with 0 the run itself reads and tells "
            "errors"
        ) from error
    finally:
        _monitors.clear()


def _dead(message: str) -> str | None:
    """Return what the process read that died, by torch's message or because it is gone."""
    files = {
        process: what for monitor in _monitors for process, what in monitor.last_files().items()
    }
    named = [int(number) for number in re.findall(r"\d+", message)]
    for _ in range(10):
        alive = {child.pid for child in multiprocessing.active_children()}
        for process, what in files.items():
            if process in named or (not named and process not in alive):
                return what
        if named:
            return ""
        time.sleep(0.1)  # a pipe breaks before its process is gone
    return None
