"""The machine: how many cores a process may use."""

import os
from pathlib import Path

from nacre.errors import NacreError

CORES = "NACRE_CORES"
"""Variable in which a grid tells a run its share of the machine's cores."""


def usable_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    share = os.environ.get(CORES, "")
    return min(cores, max(1, int(share))) if share.isdecimal() else cores


def user_cache() -> Path | None:
    """Return nacre's folder among the user's caches; None where the user has no home."""
    given = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(given) if given else Path.home() / ".cache") / "nacre"
    except RuntimeError:
        return None


def expand_user(path: Path) -> Path:
    """Return a path with the home folder in the place of ``~``."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise NacreError(f"{path}: there is no user whose home that could be") from error
