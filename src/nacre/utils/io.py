"""Files and folders: atomic writing, bounded reading, locks.

Writing: a temporary file is flushed and then renamed. If that fails (a full disk, a quota), the
earlier file is kept and the temporary one is removed. Reading: only regular files (a pipe would
block) up to a maximum size; an error is one sentence with the file. Locks: one process at a time
works in a folder; the lock ends with the process. Texts: safe for Markdown and spreadsheets.
"""

import contextlib
import errno
import glob
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nacre.errors import NacreError

MAX_TEXT_BYTES = 1 << 26
"""Default limit for the size of a text file."""

_TEMPORARY = "." + 8 * "[a-z0-9_]" + ".part"  # the end of the names that atomic_write makes
_SAFETENSORS = ".tmp" + 6 * "[A-Za-z0-9]"  # safetensors writes such a file and renames it


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder; at the end, rename the file to ``path``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("r+b") as file:  # Windows flushes only files open for writing
            os.fsync(file.fileno())
        # mkstemp creates private files; results should be as readable as any other new file.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(folder: Path, name: str | None = None) -> None:
    """Remove the temporary files that killed processes left in a folder.

    Args:
        folder: A folder in which no other process writes now.
        name: Remove only the temporary files of this file. Other processes may write other files.
    """
    patterns = [f".*{_TEMPORARY}", _SAFETENSORS]
    if name is not None:
        patterns = [f".{glob.escape(name)}{_TEMPORARY}"]
    for pattern in patterns:
        for path in folder.glob(pattern):
            with contextlib.suppress(OSError):
                path.unlink()


def save(path: Path, write: Callable[[Path], Any]) -> None:
    """Write ``path`` atomically by ``write``; report a full disk in one sentence."""
    is_kept = path.exists()
    try:
        with atomic_write(path) as temporary:
            write(temporary)
    except Exception as error:
        # safetensors has its own exception for a full disk.
        if not (isinstance(error, OSError) or type(error).__name__ == "SafetensorError"):
            raise
        result = "the earlier file is kept" if is_kept else "nothing was written"
        raise NacreError(f"could not write {path}: {error}; {result}") from error


def check_can_write(path: Path) -> None:
    """Raise an error now, before long work, if a file could not be written at the end."""
    if path.is_dir():
        raise NacreError(f"{path} is a folder; give a file's name, such as {path / 'model'}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise NacreError(f"could not write {path}: {error}; nothing was written") from error


def save_text(path: Path, text: str) -> None:
    """Write a text file atomically."""
    # The text may contain a file name that is not UTF-8, which is written by its code.
    content = text.encode("utf-8", errors="backslashreplace")
    save(path, lambda temporary: temporary.write_bytes(content))


def save_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically; NaN is an error because it is not JSON."""
    save_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


@contextlib.contextmanager
def open_regular(path: Path, limit: int) -> Iterator[BinaryIO]:
    """Open a regular file of limited size; raise OSError for anything else, such as a pipe."""
    with open(path, "rb", opener=_open_nonblocking) as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if state.st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes")
        yield file


def read_bytes(path: Path, what: str, limit: int = MAX_TEXT_BYTES) -> bytes:
    """Read a regular file of limited size; ``what`` describes the file in errors."""
    try:
        with open_regular(path, limit) as file:
            content = file.read(limit + 1)
            if len(content) > limit:  # the reported size of a file may be wrong
                raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes")
            return content
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NacreError(f"could not read {what} {path}: {reason}") from error


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file; do not wait for a writer if it is a pipe."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_text(path: Path, what: str, limit: int = MAX_TEXT_BYTES) -> str:
    """Read a text file of limited size; ``what`` describes the file in errors."""
    try:
        return read_bytes(path, what, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NacreError(f"could not read {what} {path}: it is not text in UTF-8") from error


def load_json(path: Path, limit: int = MAX_TEXT_BYTES) -> Any:
    """Read a JSON file of limited size."""
    text = read_text(path, "the file", limit)
    try:
        return parse_json(text)
    except ValueError as error:
        raise NacreError(f"could not read {path}: it is not valid JSON: {error}") from error


def parse_json(text: str) -> Any:
    """Parse JSON.

    Raises:
        ValueError: The text is not JSON, is nested too deeply or contains NaN.
    """
    try:
        return json.loads(text, parse_constant=_reject_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error


def _reject_constant(constant: str) -> None:
    raise ValueError(f"{constant} is not a number")


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


_MARKDOWN = re.compile(r"[<>|\[\]`*\\]|&(?=[#\w])")


def one_line(text: str) -> str:
    """Replace line breaks and control characters in a text by spaces."""
    return "".join(char if char.isprintable() else " " for char in text)


def markdown_text(text: str) -> str:
    """Escape a text so that Markdown finds no HTML, link, emphasis or table cell in it."""
    return _MARKDOWN.sub(lambda sign: f"&#{ord(sign[0])};", one_line(text))


def csv_text(text: str) -> str:
    """Quote a text that a spreadsheet would take for a formula."""
    text = one_line(text).strip()
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


LOCK_NAME = ".lock"
"""The file that locks its folder; it is removed when the work is done."""

_LOCK_SECONDS = 0.2
"""Time to wait for a lock: another process holds it for a moment while it calls `is_locked`."""


class InUse(NacreError):
    """Another process works in the folder."""


@contextlib.contextmanager
def locked(path: Path, work: str) -> Iterator[None]:
    """Lock a folder for this process; create the folder if it does not exist.

    Args:
        path: The folder.
        work: The command that works in it, for errors.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path / LOCK_NAME)
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock.acquire(timeout=_LOCK_SECONDS)
    except Timeout as error:
        raise InUse(f"{path} is in use: another `nacre {work}` works in it") from error
    except OSError as error:
        if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # the file system has no locks
            raise NacreError(
                f"`nacre {work}` cannot use the folder {path}: {error.strerror}"
            ) from error
    try:
        yield
    finally:
        with contextlib.suppress(OSError):  # Windows removes the file itself
            (path / LOCK_NAME).unlink()
        lock.release()


def is_locked(path: Path) -> bool:
    """Return True if a process works in a folder now."""
    from filelock import FileLock, Timeout

    if not (path / LOCK_NAME).exists():
        return False
    try:
        with FileLock(path / LOCK_NAME, blocking=False):
            return False
    except Timeout:
        return True
    except OSError:
        return False
