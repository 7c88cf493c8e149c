"""The folder that an import makes: whole or not at all, in the form that nacre's folders have.

It is written as ``.NAME.nacre-import/data`` beside the target. A lock beside ``data`` is held
meanwhile, so that two imports do not write into one folder; what a killed import left there is
removed by the next one. File names are safe on every system, unique, and short where possible.
"""

import hashlib
import json
import os
import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import takewhile
from pathlib import Path, PurePosixPath

from filelock import FileLock, Timeout

from nacre.errors import NacreError
from nacre.importers.files import SUFFIXES, clean_parts
from nacre.importers.labels import Labels
from nacre.importers.problems import counted
from nacre.importers.reading import Image
from nacre.labels.space import read_classes

_FORBIDDEN = '<>:"|?*\\/'
_LONGEST = 120
_RESERVED = {"con", "prn", "aux", "nul"} | {
    f"{port}{n}" for port in ("com", "lpt") for n in range(10)
}
_RENAMED = {".jpe": ".jpg", ".jfif": ".jpg", ".jpeg": ".jpg"}


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a folder beside the target that becomes it at the end, or vanishes."""
    # A link to an empty folder elsewhere is as good as that folder.
    target, shown = Path(os.path.realpath(target)), target
    if target.exists() and not target.is_dir():
        raise NacreError(f"{shown} is a file; --to names a folder to make")
    if target.is_dir() and any(target.iterdir()):
        raise NacreError(f"{shown} is not empty; import into a new folder")
    missing = [parent for parent in target.parents if not parent.exists()]
    place = target.with_name(f".{target.name[:50]}.nacre-import")
    folder, lock = place / "data", FileLock(place / "lock")
    with writing(place / "lock"):
        try:
            lock.acquire(blocking=False)
        except Timeout:
            raise NacreError(f"another import into {shown} is under way") from None
        except NotImplementedError:
            pass  # a file system without locks
    try:
        shutil.rmtree(folder, ignore_errors=True)
        for part in ("images", "masks"):
            with writing(folder / part):
                (folder / part).mkdir()
        yield folder
        with writing(target):
            if target.is_dir():
                target.rmdir()
            folder.rename(target)
    finally:
        lock.release()
        shutil.rmtree(place, ignore_errors=True)
        for parent in missing:
            # Only what was made here, and only if nobody else put anything there.
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Make the folder of a file, and turn a failing disk into one sentence."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise NacreError(f"could not write {path}: {error.strerror or error}") from error


def write_classes(path: Path, labels: Labels, has_background: bool) -> None:
    """Write ``classes.yaml`` and see that nacre reads it."""
    # In quotes, whatever they look like: a class may be called 1e5 or no.
    names = {i: json.dumps(name, ensure_ascii=False) for i, name in enumerate(labels.names, 1)}
    lines = ["classes:", *(f"  {label}: {name}" for label, name in names.items())]
    lines += [f"background: {0 if has_background else 'null'}", f"ignored: {labels.ignored}"]
    lines += ["colors:", *(f"  {name}: {list(labels.colors[i])}" for i, name in names.items())]
    with writing(path):
        path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    try:
        read_classes(path)
    except NacreError as error:
        count = counted(len(labels.names), "class", "classes")
        raise NacreError(f"{count} are more than nacre can read; --classes chooses some") from error


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
    folders = [path[:-1] for path in paths]
    shared = sum(1 for _ in takewhile(lambda one: len(set(one)) == 1, zip(*folders, strict=False)))
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


def _unique(names: list[str], images: Sequence[Image]) -> list[str]:
    """Separate names that would be one file where case does not count."""
    times = Counter(name.casefold() for name in names)
    seen: set[str] = set()
    unique = []
    for name, image in zip(names, images, strict=True):
        if times[name.casefold()] > 1 and image.file is not None:
            name = f"{name}_{image.file.suffix[1:]}"
        wanted, number = name, 2
        while name.casefold() in seen or (name != wanted and name.casefold() in times):
            name, number = f"{wanted}_{number}", number + 1
        seen.add(name.casefold())
        unique.append(name)
    return unique
