"""Stop signals: a run saves before it stops, and its helper processes leave that to it.

The helpers of a run load images; those of a grid are its runs. Terminals, SLURM and systemd signal
whole process groups, so a signal often reaches the helpers, too. Only a process that can save
reacts.
"""

import contextlib
import ctypes
import os
import signal
import sys
import threading
import time
from collections.abc import Iterator
from types import FrameType

# Ctrl-C; `kill` and schedulers; a closed terminal; SLURM's warning (--signal=USR1@120), for which
# submitit uses USR2.
STOP_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
PARENT = "NACRE_PARENT"
"""Environment variable with the process number of a command that starts others."""

_AGAIN_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


class Interrupted(Exception):
    """The user asked to stop; the progress is saved, and the same call resumes."""


class StopSignal:
    """Records the first stop signal as a request; a later Ctrl-C stops at once.

    Calling it returns True once a stop was requested. Before its first call there is nothing to
    save, so that a signal stops at once. A second signal within a second is ignored: torchrun and
    schedulers repeat the terminal's. Signals that were ignored before (nohup) stay ignored.
    """

    def __init__(self) -> None:
        self.requested: float | None = None
        self.was_called = False

    def __enter__(self) -> "StopSignal":
        """Install the handlers; Python delivers signals to the main thread only."""
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        """Restore the earlier handlers."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Return True if a stop was requested."""
        self.was_called = True
        return self.requested is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        first, self.requested = self.requested, self.requested or now
        if first is None:
            if not self.was_called:
                raise KeyboardInterrupt
        elif number == signal.SIGINT and now - first > _AGAIN_SECONDS:
            raise KeyboardInterrupt


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Block stop signals in this thread, and in the processes that it starts meanwhile."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals(*exceptions: int) -> None:
    """Ignore stop signals in a helper process: its parent stops it after saving."""
    for number in STOP_SIGNALS:
        if number not in exceptions:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Make the system signal this process when its parent dies (on Linux only).

    Args:
        parent: Process number of the parent; it may be dead already.
        number: The signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if hasattr(os, "getppid") and os.getppid() != parent:
        os.kill(os.getpid(), number)


def exit_with_parent() -> None:
    """Request a stop when the command that started this one dies, if there is one."""
    parent = os.environ.pop(PARENT, "")
    if parent.isdecimal():
        die_with_parent(int(parent))
