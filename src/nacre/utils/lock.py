"""A lock on a folder: one process works in it. It is free again when that process is gone."""

import contextlib
import errno
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from nacre.errors import NacreError

NAME = ".lock"
"""The file in the folder that is locked; it goes when the work is done."""


class InUse(NacreError):
    """A folder in which another process works."""


@contextlib.contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Keep other processes from working in a folder, which is made if need be.

    Args:
        path: The folder.
        work: What is done in such a folder, by the command of that name: ``run`` or ``grid``.
    """
    lock = FileLock(path / NAME)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire(blocking=False)
    except Timeout as error:
        raise InUse(f"{path} is in use: another `nacre {work}` works in it") from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a file system without locks
            raise NacreError(f"{path} cannot be a {work} folder: {error.strerror}") from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes it by itself
            (path / NAME).unlink()
        lock.release()


def is_locked(path: Path) -> bool:
    """Whether a process works in a folder now."""
    if not (path / NAME).exists():
        return False
    try:
        with FileLock(path / NAME, blocking=False):
            return False
    except Timeout:
        return True
    except OSError:
        return False
