"""Problems of an export, and their texts.

A mistake that concerns one image leaves that image out and is counted (`Unusable`). One that
concerns the export as a whole, or that would make all masks doubtful, ends the import
(`NacreError`), and nothing is written.
"""

from collections.abc import Iterable
from reprlib import Repr
from typing import Any

_LONGEST = 80
_REPR = Repr()
_REPR.maxstring = _REPR.maxother = _REPR.maxlong = _LONGEST

DAMAGED = "a shape is damaged"


class Unusable(Exception):
    """One image that cannot be imported.

    Attributes:
        reason: Why, in words that are the same for all images of which it is true.
        detail: What is particular to this one; may be empty.
    """

    def __init__(self, reason: str, detail: str = "") -> None:
        super().__init__(reason, detail)
        self.reason = reason
        self.detail = detail

    def __str__(self) -> str:
        return f"{self.reason} ({self.detail})" if self.detail else self.reason


def brief(value: Any) -> str:
    """Return a value from an export for a sentence: short, on one line, printable."""
    text = value[: 4 * _LONGEST] if isinstance(value, str) else _REPR.repr(value)
    text = "".join(char if char.isprintable() else "\N{REPLACEMENT CHARACTER}" for char in text)
    return text if len(text) <= _LONGEST else text[: _LONGEST - 1] + "…"


def some(names: Iterable[Any], count: int = 5) -> str:
    """Return the first few names and how many more there are."""
    all_names = list(names)
    more = f" and {len(all_names) - count:,} more" if len(all_names) > count else ""
    return ", ".join(brief(name) for name in all_names[:count]) + more


def counted(count: int, one: str, many: str | None = None) -> str:
    """Return ``1 image`` or ``3 images``."""
    return f"{count:,} {one if count == 1 else many or one + 's'}"
