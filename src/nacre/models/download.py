"""Files from the network: fetched once, gone on with after a cut, kept only if they are the ones.

A file grows as `NAME.part` beside its place and is renamed when its checksum is the published one.
A part that was left by a cut or a Ctrl-C is gone on with. Processes that want the same file wait
for the one that fetches it.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.client
import os
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal

from nacre.errors import NacreError
from nacre.utils.progress import Progress, show_progress
from nacre.utils.system import user_cache

TIMEOUT = 30
"""Seconds without a byte after which a server counts as gone."""

_ATTEMPTS = 5
_CHUNK = 1 << 20
_MEGABYTE = 1_000_000


@dataclass(frozen=True)
class Checksum:
    """What a file is known by.

    Attributes:
        digest: hexadecimal; the beginning of it is enough.
        kind: `sha256`, or `git`, which hashes the content with its length before it.
    """

    digest: str
    kind: Literal["sha256", "git"] = "sha256"

    def of(self, path: Path) -> str:
        """Return as much of a file's checksum as is known of the right one."""
        if self.kind == "git":
            found = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
        else:
            found = hashlib.sha256()
        with path.open("rb") as file:
            while chunk := file.read(_CHUNK):
                found.update(chunk)
        return found.hexdigest()[: len(self.digest)]

    def fits(self, path: Path) -> bool:
        """Whether a file is the one."""
        return path.is_file() and self.of(path) == self.digest


class _CutOff(Exception):
    """The connection ended before the file did."""


def cache_folder() -> Path:
    """Return where weights are kept: below $XDG_CACHE_HOME, or ~/.cache."""
    cache = user_cache()
    if cache is None:
        raise NacreError("there is no home folder to keep weights in: set XDG_CACHE_HOME")
    return cache / "weights"


def download(url: str, path: Path, checksum: Checksum | None) -> Path:
    """Fetch a file unless it is there.

    Args:
        url: where it is.
        path: where to put it.
        checksum: of the published file; None takes what comes.

    Raises:
        NacreError: the file cannot be had, or is not the published one.
    """
    if path.is_file():
        return path
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NacreError(
            f"could not make the folder {path.parent} for downloads: {error.strerror}"
        ) from error
    try:
        with _held(path.with_name(path.name + ".part")) as part:
            if not path.is_file():  # another process may have fetched it meanwhile
                with show_progress(f"{path.name}, MB") as show:
                    _fetch_whole(url, path, part, checksum, show)
    except OSError as error:
        raise _by_hand(url, path, error.strerror or str(error)) from error
    return path


def _fetch_whole(
    url: str, path: Path, part: Path, checksum: Checksum | None, show: Progress
) -> None:
    for goes_on in (part.stat().st_size > 0, False):
        _fetch_in_attempts(url, path, part, show)
        if checksum is None or checksum.fits(part):
            part.replace(path)
            return
        found = checksum.of(part)
        os.truncate(part, 0)
        if not goes_on:  # a part of another file would spoil the rest: begin anew once
            break
    part.unlink()
    assert checksum is not None
    raise _by_hand(
        url,
        path,
        f"what came is not the published file: its {checksum.kind} checksum begins with "
        f"{found[:8]} instead of {checksum.digest[:8]}, and it was deleted",
    )


def _fetch_in_attempts(url: str, path: Path, part: Path, show: Progress) -> None:
    """Fetch what is missing, again after a cut as long as each attempt brings something."""
    reason = ""
    for _ in range(_ATTEMPTS):
        before = part.stat().st_size
        try:
            return _fetch(url, part, show)
        except _CutOff as error:
            reason = str(error)
        except urllib.error.HTTPError as error:
            raise _by_hand(url, path, f"the server says {error.code} {error.reason}") from error
        except urllib.error.URLError as error:
            raise _by_hand(url, path, str(error.reason)) from error
        if part.stat().st_size <= before:
            break
    raise _by_hand(url, path, f"{reason}; another try goes on from there")


def _fetch(url: str, part: Path, show: Progress) -> None:
    """Append to a part what it lacks of a file.

    Raises:
        _CutOff: the connection ended early; what came is in the part.
    """
    have = part.stat().st_size
    request = urllib.request.Request(url, headers={"User-Agent": "nacre"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    try:
        answer = urllib.request.urlopen(request, timeout=TIMEOUT)
    except urllib.error.HTTPError as error:
        if have and error.code == http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
            return  # nothing is missing: the checksum says whether it is the file
        raise
    with answer, part.open("r+b") as file:
        if answer.status != http.HTTPStatus.PARTIAL_CONTENT:
            have = 0  # the server sends all of it
            file.truncate(0)
        file.seek(have)
        length = answer.headers.get("Content-Length")
        _copy(answer, file, have, have + int(length) if length else None, show)


def _copy(
    answer: http.client.HTTPResponse,
    file: IO[bytes],
    done: int,
    total: int | None,
    show: Progress,
) -> None:
    problem: Exception | None = None
    try:
        while chunk := answer.read1(_CHUNK):
            file.write(chunk)
            done += len(chunk)
            show(done // _MEGABYTE, (total or done) // _MEGABYTE)
    except (http.client.HTTPException, ConnectionError, TimeoutError) as error:
        problem = error
    if problem or (total is not None and done < total):
        of = f" of {megabytes(total)}" if total else ""
        raise _CutOff(f"the connection was cut after {megabytes(done)}{of}") from problem


@contextlib.contextmanager
def _held(part: Path) -> Iterator[Path]:
    """Make the part if need be, and wait until no other process writes it."""
    with part.open("ab") as file:
        if sys.platform != "win32":
            import fcntl

            with contextlib.suppress(OSError):  # some network file systems have no locks
                fcntl.flock(file, fcntl.LOCK_EX)
        part.touch()  # the one that was waited for may have renamed it
        try:
            yield part
        finally:
            if part.exists() and part.stat().st_size == 0:
                part.unlink()


def _by_hand(url: str, path: Path, reason: str) -> NacreError:
    return NacreError(f"could not download {url} ({reason}): fetch it by hand and put it at {path}")


def megabytes(size: int) -> str:
    """Return a size for people."""
    return f"{size / 1e6:.1f} MB"
