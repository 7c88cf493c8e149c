"""The files of an export, and the search for the file that an annotation names.

Folders and zip archives are read in the same way. An archive is never unpacked: its entries are
read in place, and written files get names of our own, so a name in an archive cannot lead anywhere.
An archive with such names (``..``, absolute paths) is refused. In a folder, links are followed only
if they stay inside it, and pipes and devices are not opened.

Annotation tools write all kinds of names for an image: paths of another machine, Windows paths,
URLs, a name without its extension. `Finder` looks for the last part of the name. Among several
files with this name, the longest common path decides, then the split, then the distance to the
annotation. If two files are still equal, the image is left out.
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
"""Extensions of images; the last one is written as ``.jpg``."""

SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation", "dev"), "val"),
    **dict.fromkeys(("test", "testing"), "test"),
}
"""Split by the name of a folder or subset, in lower case."""

MAX_FILE_BYTES = 1 << 29

_OTHER_ARCHIVES = (".tar", ".tgz", ".gz", ".bz2", ".xz", ".7z", ".rar", ".zst")
_BOMB_BYTES = 100 << 20
_BOMB_RATIO = 500
_URL = re.compile(r"^[a-zA-Z][a-zA-Z0-9+.-]+://")
_MASK_FOLDER = re.compile("mask|label|annot|segment|semantic|instance|panoptic|gt")
_YEAR = re.compile(r"[-_]?(19|20)\d\d$")
_JUNK = ("__MACOSX", "Thumbs.db", "desktop.ini")
_BAD_ARCHIVE = (zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError)
_UNREADABLE = (OSError, ValueError, *_BAD_ARCHIVE)


@dataclass(frozen=True, slots=True)
class File:
    """A file of an export.

    Attributes:
        path: Path relative to the root, with forward slashes.
        size: Size in bytes.
        open: Opens the file for reading.
        is_extra: True for a file from the folder of ``--images``.
    """

    path: str
    size: int
    open: Callable[[], IO[bytes]]
    is_extra: bool = False

    @property
    def suffix(self) -> str:
        """The extension in lower case, with its dot."""
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
        """Return True if a folder above the file has one of these names."""
        return any(part.casefold() in folders for part in clean_parts(self.folder))

    def is_inside(self, folder: str) -> bool:
        """Return True if the file is in a folder or below it; every file is in the root, ""."""
        return not folder or self.path.startswith(f"{folder}/")

    def chunks(self) -> Iterator[bytes]:
        """Yield the content in chunks."""
        try:
            with self.open() as opened:
                while chunk := opened.read(1 << 16):
                    yield chunk
        except _UNREADABLE as error:
            reason = getattr(error, "strerror", None) or brief(str(error))
            if "encrypted" in str(error):
                reason = "it is locked with a password; unpack it first"
            raise NacreError(f"could not read {brief(self.path)}: {reason}") from error

    def read(self, max_bytes: int = MAX_FILE_BYTES) -> bytes:
        """Return the content, which must fit into memory."""
        if self.size > max_bytes:
            raise NacreError(
                f"{brief(self.path)} has {self.size:,} bytes; the limit is {max_bytes:,}"
            )
        return b"".join(self.chunks())


class Export:
    """The files of an export, and those of a separate folder of images.

    Attributes:
        root: The folder or archive.
        files: The files of the export itself, by path.
        images: All image files, masks and the separate folder included.
        num_links: Number of links that were not followed because they lead outside.
        kinds: JSON and XML files by their content (`nacre.importers.formats`).
        damage: Errors of the JSON, XML and YAML files that cannot be read.
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
        """A finder of any image file."""
        return Finder(self.images)

    def with_suffix(self, *suffixes: str) -> list[File]:
        """Return the files with one of these extensions."""
        return [file for file in self.files if file.suffix in suffixes]

    def named(self, *names: str) -> list[File]:
        """Return the files with one of these names in any case, the outermost first."""
        files = [file for file in self.files if file.name.casefold() in names]
        return sorted(files, key=lambda file: (file.path.count("/"), file.path))

    def _list(self, path: Path) -> tuple[Path, list[File]]:
        """Return the root and the files of a folder, a zip archive, or one annotation file."""
        if not path.exists():
            raise NacreError(
                f"there is no export {path}; give a folder, a zip archive or an annotation file"
            )
        if path.suffix.lower() in _OTHER_ARCHIVES and path.is_file():
            raise NacreError(f"{path} is not a zip archive; unpack it, then import the folder")
        root = path
        if path.is_file() and (path.suffix.lower() == ".zip" or zipfile.is_zipfile(path)):
            self._archives.append(_Archive(path))
            entries = list(self._archives[-1].files())
        elif path.is_dir():
            entries = list(_walk(path, None))
        elif path.is_file():
            root = path.parent
            entries = list(_walk(root, path))
        else:
            raise NacreError(f"{path} is neither a folder nor a file")
        self.num_links += entries.count(None)
        return root, sorted(filter(None, entries), key=lambda file: file.path)


def _walk(root: Path, only: Path | None) -> Iterator[File | None]:
    """Yield the regular files of a folder, and None for each link that leads outside.

    For a single annotation file, also yield the images beside it and in ``images/``.
    """
    inside = os.path.realpath(root) + os.sep
    for folder, folders, names in os.walk(root):
        kept = [name for name in folders if not _is_junk(name)]
        links = [name for name in kept if os.path.islink(os.path.join(folder, name))]
        yield from (None for _ in links)
        if only is not None and folder == str(root):
            kept = [name for name in kept if name.lower() == "images"]
        folders[:] = [name for name in kept if name not in links]
        for path in (Path(folder, name) for name in names if not _is_junk(name)):
            if only not in (None, path) and path.suffix.lower() not in SUFFIXES:
                continue
            if path.is_symlink() and not os.path.realpath(path).startswith(inside):
                yield None
                continue
            with suppress(OSError):
                state = path.stat()
                if stat.S_ISREG(state.st_mode):
                    relative = unicodedata.normalize("NFC", path.relative_to(root).as_posix())
                    yield File(relative, state.st_size, partial(io.FileIO, path))


class _Archive:
    """A zip archive, opened again in each forked process, which needs its own file position."""

    def __init__(self, root: Path) -> None:
        self.root = root
        try:
            self._open()
        except _UNREADABLE as error:
            raise NacreError(
                f"{root} is not a readable zip archive ({brief(str(error))}); check that it was "
                "downloaded completely"
            ) from error

    def _open(self) -> None:
        self.process = os.getpid()
        # Unlike the archive's own file, this one can be closed while an entry is still open.
        self.file = self.root.open("rb")
        try:
            self.zip = zipfile.ZipFile(self.file)
        except Exception:
            self.file.close()
            raise

    def open(self, entry: zipfile.ZipInfo) -> IO[bytes]:
        """Open an entry for reading."""
        if self.process != os.getpid():
            self._open()
        return self.zip.open(entry)

    def files(self) -> Iterator[File | None]:
        """Yield all files, and None for each link."""
        paths = set()
        for entry in self.zip.infolist():
            parts = self._parts(entry)
            if stat.S_ISLNK(entry.external_attr >> 16):
                yield None
            elif parts and not entry.is_dir() and not any(map(_is_junk, parts)):
                path = unicodedata.normalize("NFC", "/".join(parts))
                if path in paths:
                    raise NacreError(f"{self.root} contains {brief(path)!r} twice")
                paths.add(path)
                yield File(path, entry.file_size, partial(self.open, entry))

    def _parts(self, entry: zipfile.ZipInfo) -> list[str]:
        """Return the parts of an entry's name; refuse malicious names and zip bombs."""
        name = _decoded_name(entry).replace("\\", "/")
        parts = [part for part in name.split("/") if part not in ("", ".")]
        if name.startswith("/") or ".." in parts or re.match("[a-zA-Z]:(/|$)", name):
            raise NacreError(
                f"{self.root} contains the name {brief(name)!r}, which leads out of the archive; "
                "nothing was imported"
            )
        is_bomb = entry.file_size > _BOMB_RATIO * max(entry.compress_size, 1)
        if entry.file_size > _BOMB_BYTES and is_bomb:
            raise NacreError(
                f"{self.root}: {brief(name)!r} would grow from {entry.compress_size:,} to "
                f"{entry.file_size:,} bytes; nothing was imported"
            )
        return parts


def _decoded_name(entry: zipfile.ZipInfo) -> str:
    """Return an entry's name; Python decodes UTF-8 without its flag as the code page of DOS."""
    try:
        is_flagged = entry.flag_bits & 0x800
        return entry.filename if is_flagged else entry.filename.encode("cp437").decode("utf-8")
    except UnicodeError:
        return entry.filename


def _is_junk(name: str) -> bool:
    return name.startswith(".") or name in _JUNK


class Finder:
    """Finds files by the names in annotations."""

    def __init__(self, files: Iterable[File]) -> None:
        self.by_name: dict[str, list[File]] = defaultdict(list)
        self.by_stem: dict[str, list[File]] = defaultdict(list)
        for file in files:
            name = file.name.casefold()
            self.by_name[name].append(file)
            self.by_stem[name.rpartition(".")[0] or name].append(file)

    def find(self, reference: str, near: str = "", split: str | None = None) -> File | None:
        """Return the file that an annotation in the folder ``near`` names.

        Raises:
            Unusable: Several files fit.
        """
        for parts in _spellings(reference):
            candidates = self._candidates(parts[-1].casefold())
            if candidates:
                return _best(candidates, parts, near, split)
        return None

    def _candidates(self, name: str) -> list[File]:
        exact = self.by_name.get(name) or self.by_stem.get(name)
        if exact:
            return exact
        # The image may have another extension, but a mask with this name is not the image.
        files = self.by_stem.get(PurePosixPath(name).stem, [])
        return [file for file in files if not _MASK_FOLDER.search(file.folder.casefold())]


def _best(candidates: list[File], parts: Parts, near: str, split: str | None) -> File:
    """Return the file that fits best: by its path, then its split, then its distance."""
    wanted, home = (tuple(part.casefold() for part in path) for path in (parts, clean_parts(near)))

    def fit(file: File) -> tuple[int, bool, bool, int, bool]:
        own = clean_parts(file.path.casefold())
        return (
            _num_common(own[-2::-1], wanted[-2::-1]),
            own in (wanted, home + wanted),
            split is not None and split_of(file.folder) == split,
            _num_common(own, home),
            not file.is_extra,
        )

    best, *others = sorted(candidates, key=lambda file: (fit(file), file.path), reverse=True)
    if others and fit(others[0]) == fit(best):
        raise Unusable(
            "several files may be the image",
            f"{brief('/'.join(parts))} may be {brief(others[0].path)} or {brief(best.path)}",
        )
    return best


def _num_common(path: Parts, other: Parts) -> int:
    """Return the number of parts that two paths share at their beginning."""
    pairs = zip(path, other, strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _spellings(reference: str) -> Sequence[Parts]:
    """Return the paths that a reference may mean, the likeliest first."""
    texts = [reference, unquote(reference)]
    if _URL.match(reference) or reference.startswith("/data/local-files/"):
        try:
            url = urlsplit(reference)
            # Label Studio names files of its own disk with `?d=path`.
            local = parse_qs(url.query).get("d", [])
        except ValueError:
            return ()
        texts = [*local, url.path, unquote(url.path)]
    paths = [clean_parts(text) for text in texts if not text.startswith("data:")]
    return [parts for parts in dict.fromkeys(paths) if parts]


def agrees(reference: str, file: File) -> bool:
    """Return True if the folders in a reference are those of a file."""
    own = clean_parts(file.folder.casefold())
    folders = (parts[:-1] for parts in _spellings(reference.casefold()))
    return any(own[len(own) - len(named) :] == named for named in folders)


def split_of(text: str) -> str | None:
    """Return the split in a path or in the name of a subset, or None."""
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
    """Return one file per folder, and none from a folder inside another one's."""
    kept: dict[str, File] = {}
    for file in sorted(files, key=lambda file: (file.path.count("/"), file.path)):
        if not any(file.is_inside(folder) for folder in kept):
            kept[file.folder] = file
    return list(kept.values())
