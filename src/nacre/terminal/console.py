"""The console that all commands print to: what comes from files is shown and does nothing.

A class, a file or a folder may have any name. It is never taken for rich's markup or for an emoji's
code, and a control character in it is shown as its number instead of reaching the terminal. A
character that the output's encoding does not have becomes one that is like it.
"""

import codecs
import sys
from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from nacre.errors import printable

_LIKE = {"█": "#", "░": ".", "…": "...", "±": "+-", "–": "-", "−": "-", "×": "x", "→": "->"}
_LIKE |= {"“": '"', "”": '"', "’": "'", "•": "*", "≥": ">=", "≤": "<="}


class PlainConsole(Console):
    """A console without markup, to which no text can do more than stand there."""

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
                yield Segment(printable(segment.text), segment.style)


def _like(error: UnicodeError) -> tuple[str, int]:
    """Return what stands for characters that an encoding does not have."""
    assert isinstance(error, UnicodeEncodeError)
    missing = error.object[error.start : error.end]
    return "".join(_LIKE.get(char, "?") for char in missing), error.end


codecs.register_error("nacre-like", _like)


def accept_any_character() -> None:
    """Let nothing that is printed fail for its characters, whatever the output's encoding."""
    for stream in (sys.stdout, sys.stderr):
        reconfigure = getattr(stream, "reconfigure", None)
        if reconfigure is not None:
            reconfigure(errors="nacre-like")
