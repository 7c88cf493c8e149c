"""What the processes that load pictures read at the moment, so that a death has a file's name.

A process that is killed (most often because memory ran out) or that crashes while it decodes
says nothing itself. So each has a place in shared memory where it writes what it begins to read.
"""

import ctypes
import os
import re
import signal
from multiprocessing.sharedctypes import RawArray

from nacre.errors import NacreError

_ROOM = 1024
_place: "memoryview | None" = None  # of this process, if it loads for another


def note_reading(what: str) -> None:
    """Leave word of what this process begins to read."""
    if _place is not None:
        word = f"{os.getpid()} {what}".encode()[:_ROOM]
        _place[:] = word.ljust(_ROOM, b"\0")


class Desk:
    """Places for so many loading processes; each takes its own when it begins."""

    def __init__(self, workers: int) -> None:
        self._memory = RawArray(ctypes.c_char, max(workers, 1) * _ROOM)

    def __call__(self, worker: int) -> None:
        """Begin as a worker, in the new process."""
        global _place
        _place = memoryview(self._memory).cast("B")[worker * _ROOM : (worker + 1) * _ROOM]
        # Ctrl-C reaches every process, but only the trainer can save.
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    def explain(self, error: RuntimeError) -> NacreError | None:
        """Say what a process read that torch reports as dead; None if it reports another thing."""
        message = f"{error} {error.__cause__ or ''}"  # the signal stands in either
        if not message.startswith("DataLoader worker"):
            return None
        dead = re.findall(r"\d+", message)
        how = message.partition("is killed by ")[2].strip().rstrip(".")
        read = [what for pid, what in self._words() if pid in dead]
        return NacreError(
            f"a process that loads pictures died{f' ({how})' if how else ''}"
            f" while it read {' and '.join(read) or 'its first picture'}: memory may have run out "
            "(fewer train.workers need less; 0 loads without them and shows other errors)"
        )

    def _words(self) -> list[tuple[str, str]]:
        memory = bytes(memoryview(self._memory))
        places = [memory[at : at + _ROOM] for at in range(0, len(memory), _ROOM)]
        words = [place.rstrip(b"\0").decode(errors="replace") for place in places]
        return [(pid, what) for pid, _, what in (word.partition(" ") for word in words)]
