"""What installed packages register under entry points: methods, kinds of networks, data sets.

It is imported when it is asked for by name, so that one that is broken breaks only itself. A name
of ours stays ours.
"""

from collections.abc import Callable, Container
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from nacre.errors import NacreError


def registered(group: str, ours: Container[str]) -> dict[str, EntryPoint]:
    """Return what other packages register in a group, by name."""
    return {point.name: point for point in entry_points(group=group) if point.name not in ours}


def load_registered(point: EntryPoint, what: str, kind: str, fits: Callable[[Any], bool]) -> Any:
    """Import what a package registers.

    Args:
        point: Where it is.
        what: What it is to people, such as ``the method``.
        kind: What it must be.
        fits: Whether it is that.

    Raises:
        NacreError: it cannot be imported, or is something else.
    """
    try:
        found = point.load()
    except Exception as error:  # whatever somebody else's module does when it is imported
        reason = " ".join(str(error).split())[:300]
        raise NacreError(
            f"{what} {point.name!r} cannot be loaded from {point.value}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    if not fits(found):
        raise NacreError(f"{what} {point.name!r} is no {kind}: {point.value} is {found!r}")
    return found
