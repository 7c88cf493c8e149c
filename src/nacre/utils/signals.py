"""Signals: a wish to stop that is heard where it is safe to stop, and whom it reaches.

A run has helpers (processes that load images, runs of a grid). A signal often reaches all of
them at once: a terminal, SLURM and systemd signal whole groups. Only who can save may listen.
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

# Ctrl-C; `kill` and schedulers; a terminal that closes; SLURM's warning (--signal=USR1@120), for
# which submitit takes USR2.
STOP_SIGNALS = tuple(
    getattr(signal, name)
    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2")
    if hasattr(signal, name)
)
PARENT = "NACRE_PARENT"
"""Variable in which a command that starts others says who it is, so that they end with it."""

_AGAIN_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1


class Interrupted(Exception):
    """The user asked to stop; what was learned so far is saved, and the same call goes on."""


class StopSignal:
    """Turns the first signal into a wish to stop, and a later Ctrl-C into a stop at once.

    Only a second Ctrl-C is impatience, and only after a second: torchrun and schedulers send what
    the processes got already. Before anybody has asked for the wish there is nothing to save,
    so that a signal ends the work at once. Signals that were ignored before (nohup) stay ignored.
    """

    def __init__(self) -> None:
        self.requested: float | None = None
        self.is_heard = False

    def __enter__(self) -> "StopSignal":
        """Begin to listen; signals reach the main thread only."""
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            for number in STOP_SIGNALS:
                if signal.getsignal(number) is not signal.SIG_IGN:
                    self.before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Return whether a stop was asked for."""
        self.is_heard = True
        return self.requested is not None

    def _receive(self, number: int, frame: FrameType | None) -> None:
        now = time.monotonic()
        first, self.requested = self.requested, self.requested or now
        if first is None:
            if not self.is_heard:
                raise KeyboardInterrupt
        elif number == signal.SIGINT and now - first > _AGAIN_SECONDS:
            raise KeyboardInterrupt


@contextlib.contextmanager
def block_signals() -> Iterator[None]:
    """Keep every stop from this thread, and from a process that it starts until that is ready."""
    if not hasattr(signal, "pthread_sigmask"):  # Windows
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOP_SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def ignore_stop_signals(*spared: int) -> None:
    """Ignore stops in a helper process: its parent stops it when it has saved."""
    for number in STOP_SIGNALS:
        if number not in spared:
            signal.signal(number, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)


def die_with_parent(parent: int, number: int = signal.SIGTERM) -> None:
    """Signal this process when its parent dies, however that dies; Linux alone knows how.

    Args:
        parent: The parent's number: it may be gone already.
        number: The signal.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, int(number), 0, 0, 0)
    if hasattr(os, "getppid") and os.getppid() != parent:
        os.kill(os.getpid(), number)


def exit_with_parent() -> None:
    """End with the command that started this one, if one did: a stop is what that means here."""
    parent = os.environ.pop(PARENT, "")
    if parent.isdecimal():
        die_with_parent(int(parent))
