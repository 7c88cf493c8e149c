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
import lzma
import os
import re
import stat
import unicodedata
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import takewhile
from pathlib import Path, PurePosixPath
from typing import IO
from urllib.parse import parse_qs, unquote, urlsplit

from nacre.data.image_io import IMAGE_SUFFIXES
from nacre.errors import NacreError
from nacre.importers.problems import Unusable, brief

Parts = tuple[str, ...]

SUFFIXES = (*IMAGE_SUFFIXES, ".jfif")
"""What images are called; the last one is written as ``.jpg``."""

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

LARGEST_IMAGE = 1 << 29
"""Bytes of the largest image file."""

_ARCHIVES = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_BOMB_BYTES = 100 << 20
_BOMB_RATIO = 500
_ADDRESS = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+://")
_MASKS = re.compile("mask|label|annot|segment|semantic|instance|panoptic|gt")
_YEAR = re.compile(r"[-_]?(19|20)\d\d$")
_JUNK = ("__MACOSX", "Thumbs.db", "desktop.ini")
_BAD_ARCHIVE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
_UNREADABLE = (OSError, ValueError, *_BAD_ARCHIVE)


@dataclass(frozen=True, slots=True)
class File:
    """A file of an export.

    Attributes:
        path: Where it lies below the root, with forward slashes.
        size: Its bytes.
        open: Opens it for reading.
        is_extra: It lies in the folder of the images, not in the export itself.
    """

    path: str
    size: int
    open: Callable[[], IO[bytes]]
    is_extra: bool = False

    @property
    def suffix(self) -> str:
        """The extension in small letters, with its dot."""
        return PurePosixPath(self.path).suffix.lower()

    @property
    def stem(self) -> str:
        """The name without its extension."""
        return PurePosixPath(self.path).stem

    @property
    def name(self) -> str:
        """The last part of the path."""
        return self.path.rpartition("/")[2]

    @property
    def folder(self) -> str:
        """The path without its last part."""
        return self.path.rpartition("/")[0]

    def is_below(self, *folders: str) -> bool:
        """Return whether one of the folders around the file has one of these names."""
        return any(part.casefold() in folders for part in clean_parts(self.folder))

    def chunks(self) -> Iterator[bytes]:
        """Yield the content piece by piece."""
        try:
            with self.open() as opened:
                while chunk := opened.read(1 << 16):
                    yield chunk
        except _UNREADABLE as error:
            reason = getattr(error, "strerror", None) or brief(str(error))
            if "encrypted" in str(error):
                reason = "locked by a password; unpack it first"
            raise NacreError(f"could not read {brief(self.path)}: {reason}") from error

    def read(self, most: int = LARGEST_IMAGE) -> bytes:
        """Return the content, which must fit into memory."""
        if self.size > most:
            raise NacreError(
                f"{brief(self.path)} has {self.size:,} bytes; more than {most:,} are not read"
            )
        return b"".join(self.chunks())


class Export:
    """The files of an export, with those of a folder of its images if one is given.

    Attributes:
        root: The folder or archive.
        files: The files of the export itself, by path.
        images: All image files, masks among them, those of the folder of images included.
        num_links: How many links were not followed because they lead outside.
        kinds: JSON and XML files by what they are (see ``formats``).
        damage: Why some of them cannot be read.
    """

    def __init__(self, path: Path, images: Path | None = None) -> None:
        self.num_links = 0
        self.kinds: dict[str, list[File]] = {}
        self.damage: dict[File, NacreError] = {}
        self._archives: list[_Archive] = []
        try:
            self.root, self.files = self._list(path)
            extra = self._list(images)[1] if images is not None else []
        except NacreError:
            self.close()
            raise
        self.images = [file for file in self.files if file.suffix in SUFFIXES]
        self.images += [replace(file, is_extra=True) for file in extra if file.suffix in SUFFIXES]

    def close(self) -> None:
        """Close the archives."""
        for archive in self._archives:
            archive.file.close()

    @cached_property
    def finder(self) -> "Finder":
        """Finds any image file."""
        return Finder(self.images)

    def with_suffix(self, *suffixes: str) -> list[File]:
        """Return the files with one of these extensions."""
        return [file for file in self.files if file.suffix in suffixes]

    def named(self, *names: str) -> list[File]:
        """Return the files with one of these names, whatever the case, the outermost first."""
        found = [file for file in self.files if file.name.casefold() in names]
        return sorted(found, key=lambda file: (file.path.count("/"), file.path))

    def _list(self, path: Path) -> tuple[Path, list[File]]:
        """Return the root and the files of a folder, a zip archive, or one annotation file."""
        root, only = path, None
        if path.suffix.lower() in _ARCHIVES and path.is_file():
            raise NacreError(
                f"{path} is an archive that nacre does not unpack; unpack it, then import the "
                "folder"
            )
        if path.is_file() and (path.suffix.lower() == ".zip" or zipfile.is_zipfile(path)):
            self._archives.append(_Archive(path))
            found = self._archives[-1].files()
        elif path.is_dir() or path.is_file():
            root, only = (path, None) if path.is_dir() else (path.parent, path)
            found = _walk(root, only)
        elif path.exists():
            raise NacreError(f"{path} is neither a folder nor a file")
        else:
            raise NacreError(
                f"there is no export {path}; it is a folder, a zip archive or one file"
            )
        entries = list(found)
        self.num_links += entries.count(None)
        return root, sorted((one for one in entries if one), key=lambda file: file.path)


def _walk(root: Path, only: Path | None) -> Iterator[File | None]:
    """Yield the regular files of a folder, and None for a link that leads outside.

    Of one file alone, its folder gives the images beside it and in ``images/``.
    """
    inside = os.path.realpath(root) + os.sep
    for folder, folders, names in os.walk(root):
        kept = [one for one in folders if not _is_junk(one)]
        links = [one for one in kept if os.path.islink(os.path.join(folder, one))]
        yield from (None for _ in links)
        if only is not None and folder == str(root):
            kept = [one for one in kept if one.lower() == "images"]
        folders[:] = [one for one in kept if one not in links]
        for path in (Path(folder, name) for name in names if not _is_junk(name)):
            if only not in (None, path) and path.suffix.lower() not in SUFFIXES:
                continue
            if path.is_symlink() and not os.path.realpath(path).startswith(inside):
                yield None
                continue
            with suppress(OSError):
                state = path.stat()
                if stat.S_ISREG(state.st_mode):
                    below = unicodedata.normalize("NFC", path.relative_to(root).as_posix())
                    yield File(below, state.st_size, partial(io.FileIO, path))


class _Archive:
    """A zip archive, opened anew in a forked process, which needs file positions of its own."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self._open()
        except _UNREADABLE as error:
            raise NacreError(
                f"{root} is not a zip archive that can be read ({brief(str(error))}); was it "
                "downloaded whole?"
            ) from error

    def _open(self) -> None:
        self.process = os.getpid()
        # A file of our own can be closed though an entry is still being read.
        self.file = self.root.open("rb")
        try:
            self.zip = zipfile.ZipFile(self.file)
        except Exception:
            self.file.close()
            raise

    def open(self, entry: zipfile.ZipInfo) -> IO[bytes]:
        """Open a file for reading."""
        if self.process != os.getpid():
            self._open()
        return self.zip.open(entry)

    def files(self) -> Iterator[File | None]:
        """Yield all files, and None for each link."""
        found = set()
        for entry in self.zip.infolist():
            parts = self._parts(entry)
            if stat.S_ISLNK(entry.external_attr >> 16):
                yield None
            elif parts and not entry.is_dir() and not any(map(_is_junk, parts)):
                path = unicodedata.normalize("NFC", "/".join(parts))
                if path in found:
                    raise NacreError(f"{self.root} holds {brief(path)!r} twice")
                found.add(path)
                yield File(path, entry.file_size, partial(self.open, entry))

    def _parts(self, entry: zipfile.ZipInfo) -> list[str]:
        """Return the parts of an entry's name; refuse names that mean harm and bombs."""
        name = _decoded_name(entry).replace("\\", "/")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or re.match("[a-zA-Z]:(/|$)", name):
            raise NacreError(
                f"{self.root} holds the name {brief(name)!r}, which leads out of the archive; "
                "nothing of it was imported"
            )
        grown = entry.file_size > _BOMB_RATIO * max(entry.compress_size, 1)
        if entry.file_size > _BOMB_BYTES and grown:
            raise NacreError(
                f"{self.root}: {brief(name)!r} would grow from {entry.compress_size:,} to "
                f"{entry.file_size:,} bytes; nothing of it was imported"
            )
        return parts


def _decoded_name(entry: zipfile.ZipInfo) -> str:
    """Return an entry's name; without its flag Python reads UTF-8 as the code page of DOS."""
    try:
        is_flagged = entry.flag_bits & 0x800
        return entry.filename if is_flagged else entry.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return entry.filename


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
        """Return the file that an annotation in a folder ``near`` means by a name.

        Raises:
            Unusable: Several files may be meant.
        """
        for parts in _spellings(reference):
            found = self._candidates(parts[-1].casefold())
            if found:
                return _best(found, parts, near, split)
        return None

    def _candidates(self, name: str) -> list[File]:
        exact = self.by_name.get(name) or self.by_stem.get(name)
        if exact:
            return exact
        # The image may have another extension, but a mask of that name is not the image.
        found = self.by_stem.get(PurePosixPath(name).stem, [])
        return [file for file in found if not _MASKS.search(file.folder.casefold())]


def _best(found: list[File], parts: Parts, near: str, split: str | None) -> File:
    """Return the file that fits best: by its path, then its split, then its nearness."""
    wanted, home = (tuple(part.casefold() for part in one) for one in (parts, clean_parts(near)))

    def fit(file: File) -> tuple[int, bool, bool, int, bool]:
        own = clean_parts(file.path.casefold())
        return (
            _common(own[-2::-1], wanted[-2::-1]),
            own in (wanted, home + wanted),
            split is not None and split_of(file.folder) == split,
            _common(own, home),
            not file.is_extra,
        )

    best, *others = sorted(found, key=lambda file: (fit(file), file.path), reverse=True)
    if others and fit(others[0]) == fit(best):
        raise Unusable(
            "several files may be the image",
            f"{brief('/'.join(parts))} may be {brief(others[0].path)} or {brief(best.path)}",
        )
    return best


def _common(one: Parts, other: Parts) -> int:
    """Return how many parts two paths have in common at their beginning."""
    pairs = zip(one, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


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
    words = reversed(re.split(r"[^a-zA-Z0-9]+", stem))
    return next((split for word in words if (split := split_of(word))), None)


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
    """Return whether a file lies in a folder or below it; all lie in the root, "", itself."""
    return not folder or file.path.startswith(f"{folder}/")
