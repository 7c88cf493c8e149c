"""The folder that an import makes: its classes and their labels, its names, its split lists.

Labels are numbers: 0 is background, 1 to n are the classes, 255 does not count. File names are safe
on every system, unique, and short where possible. The folder is whole or not at all, in the form
that nacre's folders have: it is written as ``.NAME.nacre-import/data`` beside the target. A lock
beside ``data`` is held meanwhile, so that two imports do not write into one folder; what a killed
import left there is removed by the next one.
"""

import hashlib
import json
import os
import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

import numpy as np
from filelock import FileLock, Timeout

from nacre.errors import NacreError, did_you_mean
from nacre.importers.files import SUFFIXES, clean_parts
from nacre.importers.problems import brief, counted, some
from nacre.importers.reading import BACKGROUND, IGNORED, Color, Image, Reading, clean_name
from nacre.labels.channels import distinct_colors
from nacre.labels.space import read_classes

_LARGEST_8_BIT = 254
_LARGEST_16_BIT = 65534
_FORBIDDEN = '<>:"|?*\\/'
_LONGEST = 120


@dataclass(frozen=True)
class Labels:
    """The meaning of the values in the masks to write.

    Attributes:
        names: Class name by label; label 1 is the first.
        colors: Color by label, background first.
        of: Label by class, as the export spells it.
        ignored: The label of what does not count.
        has_background: False where no pixel can be background.
    """

    names: tuple[str, ...]
    colors: tuple[Color, ...]
    of: Mapping[str, int]
    ignored: int
    has_background: bool

    @property
    def dtype(self) -> type[np.uint8] | type[np.uint16]:
        """The type in which a mask is stored."""
        return np.uint8 if self.ignored < 256 else np.uint16


def make_labels(
    reading: Reading, classes: Sequence[str], ignore: Sequence[str], rename: Mapping[str, str]
) -> Labels:
    """Give each class a number, or those that the user chose.

    Raises:
        NacreError: Two are spelled almost alike, or a name that the user gave is not there.
    """
    final = _final_names(reading, rename)
    names = list(dict.fromkeys(final[one] for one in reading.classes))
    if reading.is_sorted:
        names.sort(key=str.casefold)
    ignore = _chosen(ignore, [*names, BACKGROUND], "--ignore")
    chosen = _chosen(classes, names, "--classes") or names
    kept = [name for name in chosen if name not in (*ignore, BACKGROUND)]
    if not kept:
        raise NacreError(
            "the export has no class to import" + (f"; it has {some(names, 20)}" if names else "")
        )
    if len(kept) > _LARGEST_16_BIT:
        raise NacreError(f"the export has {len(kept):,} classes; at most {_LARGEST_16_BIT:,}")
    ignored = 255 if len(kept) <= _LARGEST_8_BIT else 65535
    label_of = {name: label for label, name in enumerate(kept, start=1)}
    label_of |= dict.fromkeys(ignore, ignored)
    # A class that is not wanted stays in the image: it is background.
    by_class = {spelled: label_of.get(name, 0) for spelled, name in final.items()}
    has_background = reading.has_background or not set(names) <= set(kept) | set(ignore)
    return Labels(
        tuple(kept),
        _colors(reading, final, kept),
        by_class | {IGNORED: ignored},
        ignored,
        has_background and BACKGROUND not in ignore,
    )


def _final_names(reading: Reading, rename: Mapping[str, str]) -> dict[str, str]:
    """Return the clean name after renaming by the export's spelling, the background first.

    Raises:
        NacreError: Two names differ in case or blanks only.
    """
    by_name = {clean_name(old): clean_name(new) for old, new in rename.items()} | dict(rename)
    known = {BACKGROUND} | {name for one in reading.classes for name in (one, clean_name(one))}
    for old in rename:
        if old not in known:
            raise _unknown(old, list(reading.classes), "--rename")
    final, spellings = {BACKGROUND: BACKGROUND}, defaultdict(list, {BACKGROUND: [BACKGROUND]})
    for spelled in reading.classes:
        new = by_name.get(spelled, by_name.get(clean_name(spelled), spelled))
        new = BACKGROUND if clean_name(new).casefold() == BACKGROUND else new
        final[spelled] = clean_name(new)
        alike = spellings["".join(clean_name(new).casefold().split())]
        if new not in alike:
            alike.append(new)
    for names in spellings.values():
        if len(names) > 1:
            two = " and ".join(repr(brief(name)) for name in names[:2])
            option = f"--rename {brief(names[1])!r}={brief(clean_name(names[0]))!r}"
            raise NacreError(
                f"the classes {two} are spelled almost alike; if they are one class say {option}, "
                "else rename one in the tool"
            )
    return final


def _chosen(wanted: Sequence[str], names: Sequence[str], option: str) -> list[str]:
    for name in wanted:
        if clean_name(name) not in names:
            raise _unknown(name, names, option)
    return list(dict.fromkeys(map(clean_name, wanted)))


def _unknown(name: str, names: Sequence[str], option: str) -> NacreError:
    hint = did_you_mean(name, names)
    return NacreError(
        f"{option}: the export has no class {brief(name)!r}{hint}; it has {some(names, 20)}"
    )


def _colors(reading: Reading, final: Mapping[str, str], kept: Sequence[str]) -> tuple[Color, ...]:
    """Return the export's colors where they tell the classes apart, else colors of our own."""
    own: dict[str, Color] = {}
    for spelled, color in reading.classes.items():
        if color is not None and color not in ((0, 0, 0), *own.values()):
            own.setdefault(final[spelled], color)
    spread = distinct_colors(len(kept) + 1)
    return ((0, 0, 0), *(own.get(name, spread[i]) for i, name in enumerate(kept, start=1)))


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
    try:
        place.mkdir(parents=True, exist_ok=True)
        with suppress(NotImplementedError):  # a file system without locks
            lock.acquire(blocking=False)
        try:
            shutil.rmtree(folder, ignore_errors=True)
            for part in ("images", "masks"):
                (folder / part).mkdir(parents=True)
            yield folder
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
    except Timeout:
        raise NacreError(f"another import into {shown} is under way") from None
    except OSError as error:
        # What is read has errors of its own.
        raise NacreError(f"could not write {shown}: {error.strerror or error}") from error


def write_classes(path: Path, labels: Labels, has_background: bool) -> None:
    """Write ``classes.yaml`` and see that nacre reads it."""
    # In quotes, whatever they look like: a class may be called 1e5 or no.
    names = {i: json.dumps(name, ensure_ascii=False) for i, name in enumerate(labels.names, 1)}
    lines = ["classes:", *(f"  {label}: {name}" for label, name in names.items())]
    lines += [f"background: {0 if has_background else 'null'}", f"ignored: {labels.ignored}"]
    lines += ["colors:", *(f"  {name}: {list(labels.colors[i])}" for i, name in names.items())]
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
    return _unique(names)


def safe_part(text: str) -> str:
    """Return a name without what file systems take otherwise, and that is hidden on none."""
    text = unicodedata.normalize("NFC", text)
    kept = "".join("_" if char in _FORBIDDEN or not char.isprintable() else char for char in text)
    kept = kept.strip(" .") or "_"
    if len(kept.encode()) > _LONGEST:
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        kept = kept.encode()[: _LONGEST - 9].decode("utf-8", "ignore").rstrip(" .") + f"-{digest}"
    return kept


def _path(image: Image) -> tuple[str, ...]:
    """Return folders and stem of an image, those of its file where there is one."""
    parts = clean_parts(image.file.path if image.file else image.name) or ("_",)
    last = PurePosixPath(parts[-1])
    return (*parts[:-1], last.stem if last.suffix.lower() in SUFFIXES else last.name)


def _unique(names: list[str]) -> list[str]:
    """Set apart, by a number, names that would be one file where case does not count."""
    unique: dict[str, str] = {}
    times: Counter[str] = Counter()
    for name in names:
        wanted, folded = name, name.casefold()
        while name.casefold() in unique:
            times[folded] += 1
            name = f"{wanted}_{times[folded] + 1}"
        unique[name.casefold()] = name
    return list(unique.values())
