"""The files of an export, and which of them a name in an annotation means.

Folders and zip archives are seen alike and safely. An archive is never unpacked: a file is read by
its entry, and what is written later gets a name of our own, so that no name in an archive can lead
anywhere. Names that try to (``..``, absolute ones) refuse the whole archive. In a folder, links are
followed only when they stay inside it, and pipes and devices are not opened.

Tools write all kinds of names for an image: paths of another machine, Windows paths, addresses, a
name without its extension. The file is found by its last part; among several of that name the one
counts whose path agrees furthest, then the one of the split, then the one nearest to the
annotation. Where that leaves two, nothing is guessed.
"""

import io
import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO, BinaryIO
from urllib.parse import parse_qs, unquote, urlsplit

from nacre.data.image_io import IMAGE_SUFFIXES
from nacre.errors import NacreError
from nacre.importers.problems import Unusable, brief

Parts = tuple[str, ...]

SUFFIXES = (*IMAGE_SUFFIXES, ".jpe", ".jfif")
"""What images are called; the last two are written under a name that nacre reads."""

SPLITS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "val",
    "test": "test",
    "testing": "test",
}
"""What folders and subsets are called, in small letters, and the split that is meant."""

LARGEST_WHOLE = 1 << 28
"""Bytes of the largest file that is read in one piece; larger ones are only streamed."""

_ARCHIVES = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_BOMB_BYTES = 100 << 20
_BOMB_RATIO = 500
_ADDRESS = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+://")
_MASKS = re.compile("mask|label|annot|segment|semantic|instance|panoptic|gt")
_YEAR = re.compile(r"[-_]?(19|20)\d\d$")
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
        """Whether it is a image by its extension."""
        return self.suffix in SUFFIXES


class FolderTree:
    """The files of a folder."""

    def __init__(self, root: Path, only: Path | None = None) -> None:
        """Look at nothing yet.

        Args:
            root: The folder.
            only: The one file of it that is the export; then only it and the images beside it
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

    def reopen(self) -> None:
        """Do nothing: it has no open file."""

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
        if self.only is not None and not is_only and path.suffix.lower() not in SUFFIXES:
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

    def reopen(self) -> None:
        """Take a file position of its own."""
        self.archive = zipfile.ZipFile(self.root)

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


Tree = FolderTree | ZipTree


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


class Finder:
    """Finds files by the names that annotations give them."""

    def __init__(self, files: Iterable[File]) -> None:
        self.by_name: dict[str, list[File]] = defaultdict(list)
        self.by_stem: dict[str, list[File]] = defaultdict(list)
        for file in files:
            name = file.name.casefold()
            self.by_name[name].append(file)
            self.by_stem[name.rpartition(".")[0] or name].append(file)

    def find(self, reference: str, near: str = "", split: str | None = None) -> File | None:
        """Return the file that is meant, or None if there is none.

        Args:
            reference: What the annotation says.
            near: The folder of the annotation.
            split: The split that the annotation belongs to.

        Raises:
            Unusable: Several files may be meant.
        """
        for parts in _spellings(reference):
            found = self._candidates(parts)
            if found:
                return self._best(found, parts, near, split)
        return None

    def _candidates(self, parts: Parts) -> list[File]:
        name = parts[-1].casefold()
        exact = self.by_name.get(name) or self.by_stem.get(name)
        if exact:
            return exact
        # The image may have another extension, but a mask of that name is not the image.
        found = self.by_stem.get(PurePosixPath(name).stem, [])
        return [file for file in found if not _MASKS.search(file.folder.casefold())]

    def _best(self, found: list[File], parts: Parts, near: str, split: str | None) -> File:
        ranked = sorted(
            ((_rank(file, parts, near, split), file.path, file) for file in found), reverse=True
        )
        best = ranked[0]
        if len(ranked) > 1 and ranked[1][0] == best[0]:
            raise Unusable(
                "several files may be the image",
                f"{brief('/'.join(parts))} may be {brief(ranked[1][1])} or {brief(best[1])}",
            )
        return best[2]


class Export:
    """An export: its files, those of a folder with its images if one is given, and damage found."""

    def __init__(self, path: Path, images: Path | None = None) -> None:
        self.main = open_tree(path)
        self.extra = open_tree(images) if images is not None else None
        self.damage: dict[File, NacreError] = {}
        self.kinds: dict[File, str] = {}

    @property
    def root(self) -> Path:
        """The folder or archive."""
        return self.main.root

    @cached_property
    def files(self) -> list[File]:
        """The files of the export itself."""
        return self.main.files

    @cached_property
    def images(self) -> list[File]:
        """All image files, masks among them, those of the extra folder included."""
        own = [file for file in self.files if file.is_image]
        extra = self.extra.files if self.extra is not None else []
        return own + [replace(file, tree=1) for file in extra if file.is_image]

    @cached_property
    def finder(self) -> Finder:
        """Finds any image file."""
        return Finder(self.images)

    @property
    def trees(self) -> list[Tree]:
        """The export itself, and the folder with its images."""
        return [self.main] if self.extra is None else [self.main, self.extra]

    def open(self, file: File) -> BinaryIO:
        """Open a file for reading."""
        return self.trees[file.tree].open(file)

    def read(self, file: File) -> bytes:
        """Read a file that must fit into memory.

        Raises:
            NacreError: It does not, or it cannot be read.
        """
        if file.size > LARGEST_WHOLE:
            raise NacreError(
                f"{brief(file.path)} has {file.size:,} bytes; more than {LARGEST_WHOLE:,} are not "
                "read"
            )
        with self.open(file) as opened:
            try:
                return opened.read(LARGEST_WHOLE + 1)
            except OSError as error:
                raise NacreError(f"could not read {brief(file.path)}: {error.strerror}") from error

    def reopen(self) -> None:
        """Give the archives file positions of their own, as another process needs them."""
        for tree in self.trees:
            tree.reopen()

    def close(self) -> None:
        """Close its archives."""
        for tree in self.trees:
            tree.close()

    def with_suffix(self, *suffixes: str) -> list[File]:
        """Return the files with one of these extensions."""
        return [file for file in self.files if file.suffix in suffixes]

    def named(self, *names: str) -> list[File]:
        """Return the files with one of these names, whatever the case, the outermost first."""
        wanted = {name.casefold() for name in names}
        found = [file for file in self.files if file.name.casefold() in wanted]
        return sorted(found, key=lambda file: (file.path.count("/"), file.path))


def split_of(text: str) -> str | None:
    """Return the split that a path or the name of a subset tells, or None."""
    for part in reversed(clean_parts(text)):
        plain = part.casefold()
        for word in (plain, _YEAR.sub("", plain)):
            if word in SPLITS:
                return SPLITS[word]
    return None


def split_in_name(stem: str) -> str | None:
    """Return the split in a file name such as ``instances_val2017``, or None."""
    for word in reversed(re.split(r"[^a-zA-Z0-9]+", stem)):
        found = split_of(word)
        if found:
            return found
    return None


def clean_parts(text: str) -> Parts:
    """Return the parts of a path of any system, without those that lead elsewhere."""
    parts = unicodedata.normalize("NFC", text).replace("\\", "/").split("/")
    return tuple(part for part in parts if part not in ("", ".", "..") and not part.endswith(":"))


def outermost(files: Iterable[File]) -> list[File]:
    """Return the files that describe whole folders: one per folder, none inside another's."""
    kept: dict[str, File] = {}
    for file in sorted(files, key=lambda one: (one.path.count("/"), one.path)):
        if not any(is_inside(file, folder) for folder in kept):
            kept[file.folder] = file
    return list(kept.values())


def is_inside(file: File, folder: str) -> bool:
    """Whether a file lies in a folder or below it; all lie in the root, which has no name."""
    return not folder or file.path.startswith(f"{folder}/")


def _spellings(reference: str) -> Sequence[Parts]:
    """Return the paths that a reference may stand for, the likeliest first."""
    texts = [reference, unquote(reference)]
    if _ADDRESS.match(reference) or reference.startswith("/data/local-files/"):
        try:
            address = urlsplit(reference)
            # Label Studio names files of its own disk by `?d=path`.
            local = parse_qs(address.query).get("d", [])
        except ValueError:
            return ()
        texts = [*local, address.path, unquote(address.path)]
    found = [clean_parts(text) for text in texts if not text.startswith("data:")]
    return [parts for parts in dict.fromkeys(found) if parts]


def agrees(reference: str, file: File) -> bool:
    """Return whether the folders that an annotation names are those of a file."""
    own = clean_parts(file.folder.casefold())
    folders = (parts[:-1] for parts in _spellings(reference.casefold()))
    return any(own[len(own) - len(named) :] == named for named in folders)


def _rank(
    file: File, parts: Parts, near: str, split: str | None
) -> tuple[int, bool, bool, int, int]:
    """Say how well a file fits: agreeing parts, the very path, the split, nearness, the tree."""
    own, home = clean_parts(file.path.casefold()), clean_parts(near.casefold())
    wanted = tuple(part.casefold() for part in parts)
    return (
        1 + _common(own[-2::-1], wanted[-2::-1]),
        own in (wanted, home + wanted),
        split is not None and split_of(file.folder) == split,
        _common(own, home),
        -file.tree,
    )


def _common(one: Parts, other: Parts) -> int:
    """Return how many parts two paths have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))
