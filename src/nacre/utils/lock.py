"""A lock on a folder: one process works in it. It is free again when that process is gone."""

import contextlib
import os
import sys
from collections.abc import Iterator
from pathlib import Path

from nacre.errors import NacreError

_held: set[int] = set()


def _let_go() -> None:
    """Close the locks in a forked helper: what outlives its parent must not hold them."""
    for handle in _held:
        os.close(handle)
    _held.clear()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_let_go)


@contextlib.contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Keep other processes from working in a folder, which is made if need be.

    Args:
        path: The folder.
        work: What is done in such a folder, by the command of that name: ``run`` or ``grid``.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = _open(path)
    except OSError as error:
        raise NacreError(f"{path} cannot be a {work} folder: {error.strerror}") from error
    if handle is None:
        raise NacreError(f"{path} is in use: another `nacre {work}` works in it")
    try:
        yield
    finally:
        _held.discard(handle)
        if handle >= 0:
            os.close(handle)


def is_locked(path: Path) -> bool:
    """Whether a process works in a folder now."""
    try:
        handle = _open(path)
    except OSError:
        return False
    if handle is not None and handle >= 0:
        _held.discard(handle)
        os.close(handle)
    return handle is None


def _open(path: Path) -> int | None:
    """Lock a folder; None if another process has, -1 where there are no locks."""
    if sys.platform == "win32":
        return -1
    import fcntl

    handle = os.open(path, os.O_RDONLY)
    _held.add(handle)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        _held.discard(handle)
        os.close(handle)
        return None
    except OSError:
        pass  # some network file systems have no locks: there is nothing to hold on to
    return handle
