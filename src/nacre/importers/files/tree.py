"""The files of an export, in a folder or a zip archive, seen alike and safely.

An archive is never unpacked: a file is read by its entry, and what is written later gets a name of
our own, so that no name in an archive can lead anywhere. Names that try to (``..``, absolute ones)
refuse the whole archive. In a folder, links are followed only when they stay inside it, and pipes
and devices are not opened.
"""

import io
import os
import stat
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO, Protocol

from nacre.data.image_io import IMAGE_SUFFIXES
from nacre.errors import NacreError
from nacre.importers.problems import brief

PICTURE_SUFFIXES = (*IMAGE_SUFFIXES, ".jpe", ".jfif")
"""What pictures are called; the last two are written under a name that nacre reads."""

LARGEST_WHOLE = 1 << 28
"""Bytes of the largest file that is read in one piece; larger ones are only streamed."""

_ARCHIVES = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_BOMB_BYTES = 100 << 20
_BOMB_RATIO = 500
_JUNK = ("__MACOSX", "Thumbs.db", "desktop.ini")
_BAD_ARCHIVE = (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError)


@dataclass(frozen=True, slots=True)
class File:
    """A file of an export.

    Attributes:
        path: Where it lies below the root, with forward slashes.
        size: Its bytes.
        key: By what the tree finds it.
        tree: Which of the trees of an export it belongs to.
    """

    path: str
    size: int
    key: str
    tree: int = 0

    @property
    def pure(self) -> PurePosixPath:
        """The path in parts."""
        return PurePosixPath(self.path)

    @property
    def suffix(self) -> str:
        """The extension in small letters, with its dot."""
        return self.pure.suffix.lower()

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The path without its last part."""
        return self.path.rpartition("/")[0]

    @property
    def is_image(self) -> bool:
        """Whether it is a picture by its extension."""
        return self.suffix in PICTURE_SUFFIXES


class Tree(Protocol):
    """The files below a root."""

    root: Path
    links: int

    @property
    def files(self) -> list[File]:
        """All regular files, by path."""

    def open(self, file: File) -> BinaryIO:
        """Open a file of the tree for reading."""

    def reopened(self) -> "Tree":
        """Return the same tree for another process."""

    def close(self) -> None:
        """Let go of what is open."""


class FolderTree:
    """The files of a folder."""

    def __init__(self, root: Path, only: Path | None = None) -> None:
        """Look at nothing yet.

        Args:
            root: The folder.
            only: The one file of it that is the export; then only it and the pictures beside it
                and in ``images/`` belong to the export.
        """
        self.root = root
        self.only = only
        self.links = 0

    @cached_property
    def files(self) -> list[File]:
        """All regular files, by path."""
        return sorted(self._walk(), key=lambda file: file.path)

    def open(self, file: File) -> BinaryIO:
        """Open a file for reading."""
        try:
            return open(file.key, "rb")
        except OSError as error:
            raise NacreError(f"could not read {brief(file.path)}: {error.strerror}") from error

    def reopened(self) -> "FolderTree":
        """Return this tree: it holds no open file."""
        return self

    def close(self) -> None:
        """Do nothing: its files are open only while they are read."""

    def _walk(self) -> Iterator[File]:
        inside = os.path.realpath(self.root) + os.sep
        for folder, folders, names in os.walk(self.root):
            kept = [one for one in folders if not _is_junk(one)]
            links = [one for one in kept if os.path.islink(os.path.join(folder, one))]
            self.links += len(links)
            if self.only is not None:
                kept = [one for one in kept if folder != str(self.root) or one.lower() == "images"]
            folders[:] = [one for one in kept if one not in links]
            for name in names:
                file = self._file(Path(folder, name), inside)
                if file is not None:
                    yield file

    def _file(self, path: Path, inside: str) -> File | None:
        if _is_junk(path.name):
            return None
        is_only = self.only is not None and path == self.only
        if self.only is not None and not is_only and path.suffix.lower() not in PICTURE_SUFFIXES:
            return None
        try:
            if path.is_symlink() and not os.path.realpath(path).startswith(inside):
                self.links += 1
                return None
            state = path.stat()
        except OSError:
            return None
        if not stat.S_ISREG(state.st_mode):
            return None
        below = path.relative_to(self.root).as_posix()
        return File(unicodedata.normalize("NFC", below), state.st_size, str(path))


class ZipTree:
    """The files of a zip archive."""

    def __init__(self, root: Path) -> None:
        """Read which files there are."""
        self.root = root
        self.links = 0
        try:
            self.archive = zipfile.ZipFile(root)
        except (OSError, ValueError, *_BAD_ARCHIVE) as error:
            raise NacreError(
                f"{root} is not a zip archive that can be read: {brief(str(error))}"
            ) from error

    @cached_property
    def files(self) -> list[File]:
        """All files of the archive, by path."""
        found: dict[str, File] = {}
        for i, info in enumerate(self.archive.infolist()):
            file = self._file(i, info)
            if file is not None:
                if file.path in found:
                    raise NacreError(f"{self.root} holds {brief(file.path)!r} twice")
                found[file.path] = file
        return [found[path] for path in sorted(found)]

    def open(self, file: File) -> BinaryIO:
        """Open a file for reading; damage shows as ``NacreError`` while it is read."""
        try:
            entry = self.archive.open(self.archive.infolist()[int(file.key)])
        except (OSError, ValueError, *_BAD_ARCHIVE) as error:
            raise _damaged(self.root, file, error) from error
        return io.BufferedReader(_Entry(self.root, file, entry), 1 << 16)

    def reopened(self) -> "ZipTree":
        """Return the same archive with a file position of its own."""
        return ZipTree(self.root)

    def close(self) -> None:
        """Close the archive."""
        self.archive.close()

    def _file(self, i: int, info: zipfile.ZipInfo) -> File | None:
        name = _decoded_name(info).replace("\\", "/")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or (parts and _is_drive(parts[0])):
            raise NacreError(
                f"{self.root} holds the name {brief(name)!r}, which leads out of the archive; "
                "nothing of it was imported"
            )
        if info.is_dir() or not parts or any(map(_is_junk, parts)):
            return None
        if stat.S_ISLNK(info.external_attr >> 16):
            self.links += 1
            return None
        if info.file_size > _BOMB_BYTES and info.file_size > _BOMB_RATIO * max(
            info.compress_size, 1
        ):
            raise NacreError(
                f"{self.root}: {brief(name)!r} would grow from {info.compress_size:,} to "
                f"{info.file_size:,} bytes; nothing of it was imported"
            )
        return File(unicodedata.normalize("NFC", "/".join(parts)), info.file_size, str(i))


class _Entry(io.RawIOBase):
    """A file of an archive whose damage is told in one sentence."""

    def __init__(self, archive: Path, file: File, entry: IO[bytes]) -> None:
        self.archive = archive
        self.file = file
        self.entry = entry

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: "memoryview | bytearray") -> int:  # type: ignore[override]
        try:
            data = self.entry.read(len(buffer))
        except (OSError, ValueError, *_BAD_ARCHIVE) as error:
            raise _damaged(self.archive, self.file, error) from error
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self.entry.close()
        super().close()


def open_tree(path: Path) -> Tree:
    """Open an export: a folder, a zip archive, or one annotation file."""
    if path.is_dir():
        return FolderTree(path)
    if not path.exists():
        raise NacreError(f"there is no export {path}; it is a folder, a zip archive or one file")
    if not path.is_file():
        raise NacreError(f"{path} is neither a folder nor a file")
    if path.suffix.lower() in _ARCHIVES:
        raise NacreError(
            f"{path} is an archive that nacre does not unpack; unpack it, then import the folder"
        )
    if zipfile.is_zipfile(path):
        return ZipTree(path)
    if path.suffix.lower() == ".zip":
        raise NacreError(f"{path} is not a zip archive that can be read; was it downloaded whole?")
    return FolderTree(path.parent, only=path)


def read_whole(tree: Tree, file: File) -> bytes:
    """Read a file that must fit into memory.

    Raises:
        NacreError: It does not, or it cannot be read.
    """
    if file.size > LARGEST_WHOLE:
        raise NacreError(
            f"{brief(file.path)} has {file.size:,} bytes; more than {LARGEST_WHOLE:,} are not read"
        )
    with tree.open(file) as opened:
        try:
            return opened.read(LARGEST_WHOLE + 1)
        except OSError as error:
            raise NacreError(f"could not read {brief(file.path)}: {error.strerror}") from error


def _damaged(archive: Path, file: File, error: Exception) -> NacreError:
    if "encrypted" in str(error):
        return NacreError(
            f"{brief(file.path)} in {archive} is locked by a password; unpack it first"
        )
    return NacreError(f"{brief(file.path)} in {archive} cannot be read: {brief(str(error))}")


def _decoded_name(info: zipfile.ZipInfo) -> str:
    """Return an entry's name; without its flag Python reads UTF-8 as the code page of DOS."""
    if info.flag_bits & 0x800:
        return info.filename
    try:
        return info.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return info.filename


def _is_drive(part: str) -> bool:
    return len(part) == 2 and part[1] == ":" and part[0].isalpha()


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name in _JUNK
