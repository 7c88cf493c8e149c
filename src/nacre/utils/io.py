"""Files: written so that nothing is ever half written, read with a limit, and locked.

Writing: a new file, flushed, then renamed. If that fails (a full disk, a quota), the earlier file
is untouched and the new one removed. Reading: only regular files (a pipe would wait for ever), only
up to a size; what cannot be read is one sentence that names the file. Locking: one process works
in a folder, which is free again when that process is gone.
"""

import contextlib
import errno
import json
import os
import re
import stat
import tempfile
from collections.abc import Callable, Collection, Iterator
from pathlib import Path
from typing import Any, BinaryIO

from nacre.errors import NacreError

_ADDED = r"\.[a-z0-9_]{8}"  # to a name, by mkstemp
_SAFETENSORS = r"\.tmp[A-Za-z0-9]{6}"  # which writes beside its file, and renames
MAX_TEXT = 1 << 26
"""The largest text file that is read, in bytes, unless its reader says otherwise."""


@contextlib.contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path in the same folder that takes the place of ``path`` at the end."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("r+b") as file:  # Windows flushes only what may be written
            os.fsync(file.fileno())
        # mkstemp makes private files; a result should be as readable as any other new file.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    finally:
        temporary.unlink(missing_ok=True)


def remove_temporaries(
    folder: Path, names: Collection[str] = (), suffixes: Collection[str] = ()
) -> None:
    """Remove what killed processes left of files that they were writing.

    Args:
        folder: Where nobody writes now.
        names: Of the files that might have been written.
        suffixes: Of the files that might have been written, where their names are not known.
    """
    known = [rf"\.{re.escape(name)}{_ADDED}" for name in names]
    known += [rf"\..+{re.escape(suffix)}{_ADDED}" for suffix in suffixes]
    if any(name.endswith(".safetensors") for name in names):
        known.append(_SAFETENSORS)
    for left in folder.glob(".*"):
        if re.fullmatch("|".join(known), left.name):
            with contextlib.suppress(OSError):
                left.unlink()


def save(path: Path, write: Callable[[Path], Any]) -> None:
    """Write ``path`` atomically by ``write``, turning a failing disk into one clear sentence."""
    kept = path.exists()
    try:
        with atomic_write(path) as temporary:
            write(temporary)
    except Exception as error:
        # safetensors reports a full disk by an exception of its own.
        if not (isinstance(error, OSError) or type(error).__name__ == "SafetensorError"):
            raise
        rest = "the earlier file is kept" if kept else "nothing was written"
        raise NacreError(f"could not write {path}: {error}; {rest}") from error


def check_can_write(path: Path) -> None:
    """Refuse, before long work for it, a file that could not be written at its end."""
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
    # A name that is not UTF-8 may stand in the text; it is shown by its code.
    content = text.encode("utf-8", errors="backslashreplace")
    save(path, lambda temporary: temporary.write_bytes(content))


def save_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically; NaN is not JSON and therefore an error here."""
    save_text(path, json.dumps(content, indent=1, allow_nan=False) + "\n")


@contextlib.contextmanager
def open_regular(path: Path, limit: int) -> Iterator[BinaryIO]:
    """Open a regular file of at most so many bytes; anything else, like a pipe, is an OSError."""
    with open(path, "rb", opener=_open_nonblocking) as file:
        state = os.fstat(file.fileno())
        if not stat.S_ISREG(state.st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        if state.st_size > limit:
            raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes")
        yield file


def read_bytes(path: Path, what: str, limit: int = MAX_TEXT) -> bytes:
    """Read a regular file of at most so many bytes, or say in one sentence why that cannot be."""
    try:
        with open_regular(path, limit) as file:
            content = file.read(limit + 1)
            if len(content) > limit:  # a file may say nothing true of its size
                raise OSError(errno.EFBIG, f"it is larger than {limit:,} bytes")
            return content
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise NacreError(f"could not read {what} {path}: {reason}") from error


def _open_nonblocking(path: str, flags: int) -> int:
    """Open a file; a pipe that nobody writes to does not hold up the program."""
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def read_text(path: Path, what: str, limit: int = MAX_TEXT) -> str:
    """Read a text file, or say in one sentence why that is not possible."""
    try:
        return read_bytes(path, what, limit).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise NacreError(f"could not read {what} {path}: it is not text in UTF-8") from error


def load_json(path: Path, limit: int = MAX_TEXT) -> Any:
    """Read a JSON file, or say in one sentence why that is not possible."""
    text = read_text(path, "the file", limit)
    try:
        return parse_json(text)
    except ValueError as error:
        raise NacreError(f"could not read {path}: it is not valid JSON: {error}") from error


def parse_json(text: str) -> Any:
    """Return the plain data that a text holds.

    Raises:
        ValueError: It is not JSON, nested too deeply, or holds NaN.
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
    """Return a text with a space for every line break and control character."""
    return "".join(char if char.isprintable() else " " for char in text)


def markdown_text(text: str) -> str:
    """Return a text that Markdown shows as it is: no HTML, link, emphasis or table cell."""
    return _MARKDOWN.sub(lambda sign: f"&#{ord(sign[0])};", one_line(text))


def csv_text(text: str) -> str:
    """Return a text that a spreadsheet takes for a text: a formula begins with one of these."""
    text = one_line(text).strip()
    return f"'{text}" if text.startswith(("=", "+", "-", "@")) else text


LOCK_NAME = ".lock"
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
    from filelock import FileLock, Timeout

    lock = FileLock(path / LOCK_NAME)
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
            (path / LOCK_NAME).unlink()
        lock.release()


def is_locked(path: Path) -> bool:
    """Return whether a process works in a folder now."""
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
