"""The machine: how many cores a process may use, its folders, and its memory."""

import ctypes
import os
import sys
from pathlib import Path

from nacre.errors import NacreError

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1  # as mallopt(3) has it


def keep_freed_memory() -> bool:
    """Have this process keep what it frees; return whether the C library can (glibc can).

    An update frees hundreds of large buffers and asks for the same ones again. glibc returns such
    buffers to the system at once, so that every update has all its pages cleared and mapped anew,
    a fifth of its time on a CPU or more. The commands that learn call this; in a program of one's
    own it is one's own choice, as it holds for the whole process.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _NEVER))


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
