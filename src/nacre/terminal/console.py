"""The console that all commands print to: names from files are shown as they are.

A class, a file or a folder may have any name. It is never read as rich's markup or an emoji's
code, and a control character in it is shown as its number. A character that the output's encoding
lacks is replaced by a similar one. Lost output, as with `nacre run | head` or on a full disk, does
not end a run.
"""

import codecs
import contextlib
import os
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nacre.errors import escape_control


class Output:
    """Passes writes on to a stream until that is closed, full or gone; later ones are dropped.

    Args:
        stream: The stream; None if the command has no output at all (``>&-``).
    """

    def __init__(self, stream: IO[str] | None) -> None:
        self.stream, self.is_broken = stream, stream is None

    def write(self, text: str) -> int:
        """Write the text, if that is possible."""
        self._try("write", text)
        return len(text)

    def flush(self) -> None:
        """Flush the stream, if that is possible."""
        self._try("flush")

    def isatty(self) -> bool:
        """Return True if the stream is a terminal."""
        return self.stream is not None and self.stream.isatty()

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the stream."""
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
        """Report lost output once and discard the rest: it must not fail when Python ends."""
        with contextlib.suppress(OSError, ValueError, AttributeError):
            reason = getattr(error, "strerror", None) or str(error)
            print(f"the output is lost ({reason}); the work continues", file=sys.stderr, flush=True)
        with contextlib.suppress(OSError, ValueError, AttributeError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, self.stream.fileno())  # type: ignore[union-attr]
            os.close(nowhere)


_LIKE = {"█": "#", "░": ".", "…": "...", "±": "+-", "–": "-", "−": "-", "×": "x", "→": "->"}
_LIKE |= {"“": '"', "”": '"', "’": "'", "•": "*", "≥": ">=", "≤": "<="}


class PlainConsole(Console):
    """A console without markup, on which text is only text."""

    def __init__(self, file: IO[str] | None = None, **options: Any) -> None:
        super().__init__(file=file, markup=False, emoji=False, **options)

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render something, with control characters made visible."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text.isprintable():
                yield segment
            else:
                yield Segment(escape_control(segment.text), segment.style)


def _like(error: UnicodeError) -> tuple[str, int]:
    """Return a replacement for characters that an encoding lacks."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(_LIKE.get(char, "?") for char in missing), error.end


codecs.register_error("nacre-like", _like)


def accept_any_character() -> None:
    """Replace characters that the output's encoding lacks instead of failing."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="nacre-like")
