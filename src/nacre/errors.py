"""The one kind of error that users see, and the help that its messages share."""

from collections.abc import Iterable
from difflib import get_close_matches


class NacreError(ValueError):
    """Something a user can mend: the message is the value, the place and what is allowed."""


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """Return `` (did you mean 'x'?)`` for the nearest known name, or nothing."""
    nearest = get_close_matches(word, list(known), n=1, cutoff=0.5)
    return f" (did you mean {nearest[0]!r}?)" if nearest else ""


def unknown_name(kind: str, word: str, known: Iterable[str]) -> NacreError:
    """Return the error for a name that is not in an explicit table."""
    names = sorted(known)
    return NacreError(
        f"unknown {kind} {word!r}{did_you_mean(word, names)}; known: {', '.join(names)}"
    )
