"""Names for the files that are written: safe on every system, unique, and short where possible."""

import hashlib
import unicodedata
from collections import Counter
from collections.abc import Sequence
from pathlib import PurePosixPath

from nacre.importers.catalog import Picture
from nacre.importers.files.export import clean_parts
from nacre.importers.files.tree import PICTURE_SUFFIXES

_FORBIDDEN = '<>:"|?*\\/'
_LONGEST = 120
_RESERVED = {"con", "prn", "aux", "nul"} | {
    f"{port}{n}" for port in ("com", "lpt") for n in range(10)
}
_RENAMED = {".jpe": ".jpg", ".jfif": ".jpg", ".jpeg": ".jpg"}


def plan_names(pictures: Sequence[Picture]) -> list[str]:
    """Return a name for each picture, without extension; with folders only where needed."""
    paths = [_path(picture) for picture in pictures]
    plain = [safe_part(path[-1]) for path in paths]
    if len({name.casefold() for name in plain}) == len(plain):
        return plain
    shared = _shared_folders([path[:-1] for path in paths])
    names = [
        "/".join([*(safe_part(part).replace(".", "_") for part in path[shared:-1]), name])
        for path, name in zip(paths, plain, strict=True)
    ]
    return _unique(names, pictures)


def safe_part(text: str) -> str:
    """Return a name that any file system takes and that is hidden on none."""
    text = unicodedata.normalize("NFC", text)
    kept = "".join("_" if char in _FORBIDDEN or not char.isprintable() else char for char in text)
    kept = kept.strip(" .") or "_"
    if kept.split(".")[0].casefold() in _RESERVED:
        kept = f"_{kept}"
    if len(kept.encode()) > _LONGEST:
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        kept = kept.encode()[: _LONGEST - 9].decode("utf-8", "ignore").rstrip(" .") + f"-{digest}"
    return kept


def written_suffix(path: str) -> str:
    """Return the extension that a picture is written with."""
    suffix = PurePosixPath(path).suffix.lower()
    return _RENAMED.get(suffix, suffix)


def _path(picture: Picture) -> tuple[str, ...]:
    """Return folders and stem of a picture, those of its file where there is one."""
    parts = clean_parts(picture.match.file.path if picture.match else picture.name) or ("_",)
    last = PurePosixPath(parts[-1])
    return (*parts[:-1], last.stem if last.suffix.lower() in PICTURE_SUFFIXES else last.name)


def _shared_folders(folders: Sequence[tuple[str, ...]]) -> int:
    """Return how many outer folders all paths have in common."""
    count = 0
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count


def _unique(names: list[str], pictures: Sequence[Picture]) -> list[str]:
    """Tell apart what would still be one file where case does not count."""
    times = Counter(name.casefold() for name in names)
    seen: set[str] = set()
    unique = []
    for name, picture in zip(names, pictures, strict=True):
        if times[name.casefold()] > 1 and picture.match is not None:
            name = f"{name}_{PurePosixPath(picture.match.file.path).suffix.lower()[1:]}"
        wanted, number = name, 2
        while name.casefold() in seen or (name != wanted and name.casefold() in times):
            name, number = f"{wanted}_{number}", number + 1
        seen.add(name.casefold())
        unique.append(name)
    return unique
