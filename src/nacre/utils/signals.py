"""Signals: a wish to stop that is heard where it is safe to stop."""

import signal
import threading
from types import FrameType


class StopSignal:
    """Turns the first Ctrl-C (or SIGTERM) into a wish to stop, the second into a stop at once."""

    def __init__(self) -> None:
        self.requested = False

    def __enter__(self) -> "StopSignal":
        """Begin to listen; signals reach the main thread only."""
        self.before = {}
        if threading.current_thread() is threading.main_thread():
            for number in (signal.SIGINT, signal.SIGTERM):
                self.before[number] = signal.signal(number, self._receive)
        return self

    def __exit__(self, *error: object) -> None:
        """Stop listening."""
        for number, handler in self.before.items():
            signal.signal(number, handler)

    def __call__(self) -> bool:
        """Whether a stop was asked for."""
        return self.requested

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.requested:
            raise KeyboardInterrupt
        self.requested = True
