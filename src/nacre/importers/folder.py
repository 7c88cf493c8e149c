"""The folder that an import makes: whole or not at all, in the form that nacre's folders have.

It is written as ``.NAME.nacre-xxxxxxxx/data`` beside the target. A lock beside ``data`` is held
meanwhile: a folder whose lock is free was left by a killed import, and the next one removes it.
File names are safe on every system, unique, and short where possible.
"""

import glob
import hashlib
import shutil
import tempfile
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import Any

import yaml
from filelock import FileLock, Timeout

from nacre.errors import NacreError
from nacre.importers.files import SUFFIXES, clean_parts
from nacre.importers.labels import Labels
from nacre.importers.problems import counted
from nacre.importers.reading import Image
from nacre.labels.space import read_classes

CLASSES = "classes.yaml"
SHEET = "contact-sheet.jpg"
REPORT = "import.json"

_LOCK = "lock"
_FORBIDDEN = '<>:"|?*\\/'
_LONGEST = 120
_RESERVED = {"con", "prn", "aux", "nul"} | {
    f"{port}{n}" for port in ("com", "lpt") for n in range(10)
}
_RENAMED = {".jpe": ".jpg", ".jfif": ".jpg", ".jpeg": ".jpg"}


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside the target that becomes it at the end, or vanishes."""
    prefix = f".{target.name[:50]}.nacre-"
    _remove_abandoned(target.parent, prefix)
    if target.exists() and not target.is_dir():
        raise NacreError(f"{target} is a file; --to names a folder to make")
    if target.is_dir() and any(target.iterdir()):
        raise NacreError(f"{target} is not empty; import into a new folder")
    missing = [parent for parent in target.parents if not parent.exists()]
    with one_sentence(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        place, lock = _locked_place(target.parent, prefix)
    folder = place / "data"
    try:
        with one_sentence(target):
            for part in ("images", "masks"):
                (folder / part).mkdir(parents=True)
        yield folder
        with one_sentence(target):
            if target.is_dir():
                target.rmdir()
            folder.rename(target)
    except BaseException:
        _remove(place, lock)
        for parent in missing:
            # Only what was made here, and only if nobody else put anything there.
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()
        raise
    _remove(place, lock)


def _locked_place(parent: Path, prefix: str) -> tuple[Path, FileLock]:
    """Make a private folder and lock it."""
    while True:
        place = Path(tempfile.mkdtemp(prefix=prefix, dir=parent))
        lock = FileLock(place / _LOCK)
        try:
            lock.acquire(blocking=False)
        except (Timeout, FileNotFoundError):
            continue  # another import took it for abandoned before it was locked
        except OSError:
            pass  # a file system without locks: nobody can find this one free either
        return place, lock


def _remove_abandoned(parent: Path, prefix: str) -> None:
    """Remove the folders of imports into the same place that were killed."""
    for place in parent.glob(glob.escape(prefix) + "????????"):
        if place.is_symlink() or not place.is_dir():
            continue
        lock = FileLock(place / _LOCK)
        try:
            lock.acquire(blocking=False)
        except OSError:  # which a lock that is held is, too
            continue
        _remove(place, lock)


def _remove(place: Path, lock: FileLock) -> None:
    """Let go of a lock and remove its folder; whoever locks it meanwhile removes it as well."""
    lock.release()
    shutil.rmtree(place, ignore_errors=True)


@contextmanager
def one_sentence(path: Path) -> Iterator[None]:
    """Turn a failing disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise NacreError(f"could not write {path}: {error.strerror or error}") from error


def write_classes(folder: Path, labels: Labels, has_background: bool) -> None:
    """Write ``classes.yaml`` and see that nacre reads it."""
    names = {label: _Quoted(name) for label, name in enumerate(labels.names, start=1)}
    content: dict[str, Any] = {
        "classes": names,
        "background": 0 if has_background else None,
        "ignored": labels.ignored,
        "colors": {name: list(labels.colors[label]) for label, name in names.items()},
    }
    style: dict[str, Any] = {"sort_keys": False, "allow_unicode": True, "width": 100}
    text: str = yaml.dump(content, Dumper=_Dumper, default_flow_style=None, **style)
    with one_sentence(folder):
        (folder / CLASSES).write_text(text, encoding="utf-8")
    try:
        read_classes(folder / CLASSES)
    except NacreError as error:
        count = counted(len(labels.names), "class", "classes")
        raise NacreError(f"{count} are more than nacre can read; --classes chooses some") from error


class _Quoted(str):
    """A text that must stay one, whatever it looks like: a class may be called 1e5 or no."""


class _Dumper(yaml.SafeDumper):
    """A dumper that writes quoted texts in quotes."""


def _quote(dumper: yaml.SafeDumper, text: _Quoted) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


_Dumper.add_representer(_Quoted, _quote)


def plan_lists(files: Iterable[tuple[str, str | None]]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the split lists to write, both of two or none, and what people should know of them.

    Args:
        files: Image file and split (train, val, test, or None).
    """
    by_split: Mapping[str | None, list[str]] = defaultdict(list)
    for file, split in files:
        by_split[split].append(file)
    train, val, test = (by_split[split] for split in ("train", "val", "test"))
    if not (train or val or test):
        return {}, []
    if not (train and (val or test)):
        there = " and ".join(split for split in ("train", "val", "test") if by_split[split])
        return {}, [
            f"the export has only the split {there}: no lists are written, and one image in five "
            "is for testing"
        ]
    lists, notes = {"train": train, "val": val or test}, []
    if val and test:
        lists["test"] = test
        notes.append("test.txt keeps the test split; nacre trains on train.txt, tests on val.txt")
    elif test:
        notes.append("the export has no validation split: its test split is val.txt")
    if by_split[None]:
        count = counted(len(by_split[None]), "image")
        notes.append(f"{count} of no split: in no list")
    return lists, notes


def plan_names(images: Sequence[Image]) -> list[str]:
    """Return a name for each image, without extension; with folders only where needed."""
    paths = [_path(image) for image in images]
    plain = [safe_part(path[-1]) for path in paths]
    if len({name.casefold() for name in plain}) == len(plain):
        return plain
    shared = _shared_folders([path[:-1] for path in paths])
    names = [
        "/".join([*(safe_part(part).replace(".", "_") for part in path[shared:-1]), name])
        for path, name in zip(paths, plain, strict=True)
    ]
    return _unique(names, images)


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
    """Return the extension that an image is written with."""
    suffix = PurePosixPath(path).suffix.lower()
    return _RENAMED.get(suffix, suffix)


def _path(image: Image) -> tuple[str, ...]:
    """Return folders and stem of an image, those of its file where there is one."""
    parts = clean_parts(image.file.path if image.file else image.name) or ("_",)
    last = PurePosixPath(parts[-1])
    return (*parts[:-1], last.stem if last.suffix.lower() in SUFFIXES else last.name)


def _shared_folders(folders: Sequence[tuple[str, ...]]) -> int:
    """Return how many outer folders all paths have in common."""
    count = 0
    for parts in zip(*folders, strict=False):
        if len(set(parts)) > 1:
            break
        count += 1
    return count


def _unique(names: list[str], images: Sequence[Image]) -> list[str]:
    """Tell apart what would still be one file where case does not count."""
    times = Counter(name.casefold() for name in names)
    seen: set[str] = set()
    unique = []
    for name, image in zip(names, images, strict=True):
        if times[name.casefold()] > 1 and image.file is not None:
            name = f"{name}_{PurePosixPath(image.file.path).suffix.lower()[1:]}"
        wanted, number = name, 2
        while name.casefold() in seen or (name != wanted and name.casefold() in times):
            name, number = f"{wanted}_{number}", number + 1
        seen.add(name.casefold())
        unique.append(name)
    return unique
