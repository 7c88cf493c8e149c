"""A file inside a tar archive, which is read where it lies: nothing is unpacked.

A network file system does not see a million pictures then, only some hundreds of archives.
"""

import os
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple


class FileState(NamedTuple):
    """By what a change of a file is noticed, under the names that `os.stat` has for it."""

    st_size: int
    st_mtime_ns: int


@dataclass(frozen=True, slots=True)
class Member:
    """A file inside a tar archive.

    Attributes:
        archive: The archive.
        name: The file's path in it.
        offset: Where in the archive its bytes begin.
        size: How many there are.
    """

    archive: Path
    name: str
    offset: int
    size: int

    def __str__(self) -> str:
        return f"{self.archive}/{self.name}"

    def exists(self) -> bool:
        """Whether the archive is there."""
        return self.archive.exists()

    def read(self, start: int = 0, count: int | None = None) -> bytes:
        """Read bytes of the file."""
        most = max(0, self.size - start)
        handle = os.open(self.archive, os.O_RDONLY | getattr(os, "O_BINARY", 0))
        try:
            os.lseek(handle, self.offset + start, os.SEEK_SET)
            return os.read(handle, most if count is None else min(count, most))
        finally:
            os.close(handle)

    def state(self) -> FileState:
        """Return the file's size and the time at which the archive was changed."""
        return FileState(self.size, os.stat(self.archive).st_mtime_ns)


File = Path | Member
"""Where a picture or a mask lies."""


def state_of(file: File) -> FileState:
    """Return by what a change of a file is noticed."""
    if isinstance(file, Member):
        return file.state()
    state = os.stat(file)
    return FileState(state.st_size, state.st_mtime_ns)
