"""The machine and its packages: cores, memory, folders, extras, plug-ins, a Ray cluster.

A plug-in is a method, a kind of network, a data set or a format that another package registers
under an entry point. It is imported when it is requested by name, so a broken one breaks only
itself. It cannot replace a name of nacre.
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
_NEVER = -1


def keep_freed_memory() -> bool:
    """Make malloc keep freed memory; return True if the C library can (glibc can).

    An update frees hundreds of large buffers and allocates the same ones again. glibc returns such
    buffers to the system at once, so that the pages are mapped and cleared for every update: a
    fifth of its time on a CPU or more. The commands that train call this function. It affects the
    whole process, so other programs decide for themselves.
    """
    if not sys.platform.startswith("linux"):
        return False
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    return mallopt is not None and bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, _NEVER))


CORES = "NACRE_CORES"
"""Environment variable with the number of cores that a grid gives to a run."""


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        cores = len(os.sched_getaffinity(0))
    else:
        cores = os.cpu_count() or 1
    limit = os.environ.get(CORES, "")
    return min(cores, max(1, int(limit))) if limit.isdecimal() else cores


def user_cache() -> Path | None:
    """Return nacre's folder in the user's cache; None if the user has no home folder."""
    cache = os.environ.get("XDG_CACHE_HOME")
    try:
        return (Path(cache) if cache else Path.home() / ".cache") / "nacre"
    except RuntimeError:
        return None


def expand_user(path: Path) -> Path:
    """Replace ``~`` in a path by the home folder."""
    try:
        return path.expanduser()
    except RuntimeError as error:
        raise NacreError(f"{path}: this user has no home folder; give the whole path") from error


def install_line(extra: str = "") -> str:
    """Return the command that installs nacre, or one of its extras, from the source folder."""
    if not extra:
        return "pip install -c constraints.txt ."
    return f"pip install -c constraints.txt '.[{extra}]'"


def import_extra(name: str, extra: str = "export", package: str | None = None) -> Any:
    """Import a module of an extra; if it is missing, the error contains the install command."""
    package = package or name.split(".")[0]
    try:
        return import_module(name)
    except ImportError as error:
        raise NacreError(
            f"this needs the package {package}, which is not installed: {install_line(extra)}"
        ) from error
    except (RuntimeError, ValueError) as error:
        reason = " ".join(str(error).split())[:200]
        raise NacreError(
            f"this needs the package {package}, which cannot be imported here ({reason}); install "
            "a version for the installed torch, and check the environment variables of the package"
        ) from error


def registered(group: str, own: Container[str]) -> dict[str, EntryPoint]:
    """Return the entry points of other packages in a group, by name."""
    return {point.name: point for point in entry_points(group=group) if point.name not in own}


def find_entry(
    own: Mapping[str, T], name: str, group: str, entry_type: type[T], what: str, where: str = ""
) -> T:
    """Return an entry by name, from nacre's own or from another package's.

    Args:
        own: nacre's own entries.
        name: Name of the entry.
        group: Group of entry points where other packages register theirs.
        entry_type: Class of an entry.
        what: Description of an entry for errors, such as ``data set``.
        where: Description of the name in the error for an unknown one. Default: `what`.
    """
    if name in own:
        return own[name]
    others = registered(group, own)
    if name not in others:
        raise unknown_name(where or what, name, [*own, *others])
    entry: T = load_registered(
        others[name],
        f"the {what}",
        entry_type.__name__,
        lambda value: isinstance(value, entry_type),
    )
    return entry


def load_registered(
    point: EntryPoint, what: str, class_name: str, fits: Callable[[Any], bool]
) -> Any:
    """Import an entry that another package registers.

    Args:
        point: Its entry point.
        what: Description of the entry for errors, such as ``the method``.
        class_name: Name of the class that it must have, for errors.
        fits: Returns True if a value is such an entry.

    Raises:
        NacreError: The entry cannot be imported, or is something else.
    """
    try:
        value = point.load()
    except Exception as error:  # another package may raise anything while it is imported
        reason = " ".join(str(error).split())[:300]
        raise NacreError(
            f"{what} {point.name!r} cannot be loaded from {point.value}: "
            f"{type(error).__name__}: {reason}"
        ) from error
    if not fits(value):
        raise NacreError(f"{what} {point.name!r} is not a {class_name}: {point.value} is {value!r}")
    return value


def join_cluster(wanted_by: str) -> Any:
    """Connect to the running Ray cluster; return the package ``ray``.

    Args:
        wanted_by: Option that needs the cluster, for errors.
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
            f"{wanted_by}: there is no Ray cluster here ({reason}); start one with `ray start "
            "--head`, or set RAY_ADDRESS"
        ) from error
    return ray
