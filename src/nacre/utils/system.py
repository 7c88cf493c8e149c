"""The machine and what is installed on it: cores, folders, memory, packages, plug-ins, a cluster.

A plug-in is what another package registers under an entry point: a method, a kind of network, a
data set. It is imported when it is asked for by name, so that one that is broken breaks only
itself. A name of ours stays ours.
"""

import ctypes
import os
import sys
from collections.abc import Callable, Container, Mapping
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from nacre.errors import NacreError, unknown_name

T = TypeVar("T")

# From glibc's malloc.h.
_TRIM_THRESHOLD, _MMAP_MAX = -1, -4
_NEVER = -1  # as mallopt(3) has it


def keep_freed_memory() -> bool:
    """Make this process keep what it frees; return whether the C library can (glibc can).

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


def install_line(extra: str = "") -> str:
    """Return the command that installs nacre, or an extra of it, in its source folder."""
    if not extra:
        return "pip install -c constraints.txt ."
    return f"pip install -c constraints.txt '.[{extra}]'"


def import_extra(name: str, extra: str = "export", package: str | None = None) -> Any:
    """Import a module of an extra's package, or say how to get it."""
    package = package or name.split(".")[0]
    try:
        return import_module(name)
    except ImportError as error:
        raise NacreError(
            f"this needs the package {package}, which is not installed: {install_line(extra)}"
        ) from error
    except (RuntimeError, ValueError) as error:  # compiled for another torch, or wrong settings
        reason = " ".join(str(error).split())[:200]
        raise NacreError(
            f"this needs the package {package}, which cannot be imported here ({reason}): it must "
            "be made for the installed version of torch, and understand the variables set for it"
        ) from error


def registered(group: str, ours: Container[str]) -> dict[str, EntryPoint]:
    """Return what other packages register in a group, by name."""
    return {point.name: point for point in entry_points(group=group) if point.name not in ours}


def find_entry(
    table: Mapping[str, T], name: str, group: str, kind: type[T], what: str, where: str = ""
) -> T:
    """Return a row of a table by name; one of another package is loaded only when it is named.

    Args:
        table: Ours.
        name: The name.
        group: Where other packages register theirs.
        kind: What a row is.
        what: What it is to people, such as ``data set``.
        where: What names it, for the sentence about an unknown one, if that is something else.
    """
    if name in table:
        return table[name]
    others = registered(group, table)
    if name not in others:
        raise unknown_name(where or what, name, [*table, *others])
    found: T = load_registered(
        others[name], f"the {what}", kind.__name__, lambda one: isinstance(one, kind)
    )
    return found


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


def join_cluster(wanted_by: str) -> Any:
    """Join the Ray cluster that is there; return the package ``ray``.

    Args:
        wanted_by: the option that asks for it.

    Raises:
        NacreError: there is none.
    """
    ray = import_extra("ray", "ray")
    try:
        ray.init(
            address="auto",
            log_to_driver=False,
            logging_level="ERROR",
            ignore_reinit_error=True,
        )
    except (ConnectionError, ValueError, RuntimeError) as error:
        reason = str(error).splitlines()[0]
        raise NacreError(
            f"{wanted_by}: there is no Ray cluster here ({reason}); `ray start --head` makes one "
            "of this machine, RAY_ADDRESS names another"
        ) from error
    return ray
