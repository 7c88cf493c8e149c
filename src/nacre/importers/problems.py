"""Problems of an export, and helpers for their messages.

A problem of one image leaves out this image, which is counted (`Unusable`). A problem that concerns
the whole export, or that makes all masks doubtful, ends the import (`NacreError`), and nothing is
written.
"""

from collections.abc import Iterable
from reprlib import Repr
from typing import Any

_MAX_LENGTH = 80
_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _MAX_LENGTH

DAMAGED = "a shape is damaged"


class Unusable(Exception):
    """An image that cannot be imported.

    Attributes:
        reason: The problem, in the same words for all images that have it.
        detail: What is specific to this image; may be empty.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


def brief(value: Any) -> str:
    """Return a value from an export for a message: short, on one line, printable."""
    text = value[: 4 * _MAX_LENGTH] if isinstance(value, str) else _REPR.repr(value)
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= _MAX_LENGTH else text[: _MAX_LENGTH - 1] + "…"


def some(names: Iterable[Any], count: int = 5) -> str:
    """Return the first few names and the number of the others."""
    all_names = list(names)
    more = f" and {len(all_names) - count:,} more" if len(all_names) > count else ""
    return ", ".join(brief(name) for name in all_names[:count]) + more
