"""Output that cannot end a run: `nacre run | head` and a full disk lose lines, not work."""

import contextlib
import os
import sys
from typing import IO, Any


class Output:
    """Passes writes on to a stream until it is closed, full or gone; from then on to nowhere.

    Args:
        stream: Where to write; None where the command has no output at all (``>&-``).
    """

    def __init__(self, stream: IO[str] | None) -> None:
        self.stream, self.is_broken = stream, stream is None

    def write(self, text: str) -> int:
        """Write as far as that is possible."""
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        """Flush as far as that is possible."""
        self._try("flush")

    def isatty(self) -> bool:
        """Whether a person looks on."""
        return self.stream is not None and self.stream.isatty()

    def __getattr__(self, name: str) -> Any:
        """Be like the stream in everything else."""
        return getattr(self.stream, name)

    def _try(self, name: str, *values: str) -> None:
        if self.is_broken:
            return
        try:
            getattr(self.stream, name)(*values)
        except (OSError, ValueError) as error:  # ValueError: the stream was closed
            self.is_broken = True
            self._give_up(error)

    def _give_up(self, error: Exception) -> None:
        """Say so where it can be said; what is still buffered must not fail when Python ends."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            reason = getattr(error, "strerror", None) or str(error)
            print(f"the output is lost ({reason}); the work goes on", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # type: ignore[union-attr]
            os.close(nowhere)
