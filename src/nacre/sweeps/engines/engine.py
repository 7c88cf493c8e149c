"""What an engine does for a grid: take runs, and tell how they ended."""

from typing import Protocol

from nacre.sweeps.carry import Outcome, RunTask
from nacre.utils.claim import Seen


class Handle(Protocol):
    """A run that an engine has taken."""

    def poll(self) -> Outcome | None:
        """Return how it ended, once it has."""

    def stop(self) -> None:
        """Have it save what it has, without waiting for that."""

    def wait(self) -> Outcome:
        """Wait until a run that was stopped has ended."""


class Engine(Protocol):
    """Carries out runs.

    Attributes:
        capacity: How many it takes at a time; those above wait with the grid.
        begins_at_once: Whether a run that it took runs, or waits in the engine's own queue.
    """

    capacity: int
    begins_at_once: bool

    def begin(self, task: RunTask, seen: Seen | None) -> Handle | None:
        """Take a run; None if another was faster.

        Args:
            task: The run.
            seen: The claim on it as it was last seen: free, or its holder dead.
        """

    def close(self) -> None:
        """End what still runs, without waiting."""
