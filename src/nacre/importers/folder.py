"""The data folder that an import writes: its class labels, file names and split lists.

Label 0 is the background, 1 to n are the classes, and 255 does not count. File names are safe on
every system, unique, and short if possible. The folder is complete or does not exist: it is written
as ``.NAME.nacre-import/data`` beside the target and renamed at the end. A lock beside it keeps two
imports from writing the same folder. The next import removes the rest of a killed one.
"""

import hashlib
import json
import os
import shutil
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import takewhile
from pathlib import Path, PurePosixPath

import numpy as np

from nacre.errors import NacreError, counted, did_you_mean
from nacre.importers.files import SUFFIXES, clean_parts
from nacre.importers.problems import brief, some
from nacre.importers.reading import BACKGROUND, IGNORED, Color, Image, Reading, clean_name
from nacre.labels.channels import extend_colors
from nacre.labels.space import read_classes
from nacre.utils.io import InUse, locked

_MAX_8_BIT_CLASSES = 254
_MAX_16_BIT_CLASSES = 65534
_FORBIDDEN = '<>:"|?*\\/'
_MAX_NAME_BYTES = 120


@dataclass(frozen=True)
class Labels:
    """The labels in the masks.

    Attributes:
        names: Class names; the first has label 1.
        colors: Color by label, background first.
        of: Label by class in the export's spelling.
        ignored: The label of pixels that do not count.
        has_background: False if no pixel can be background.
    """

    names: tuple[str, ...]
    colors: tuple[Color, ...]
    of: Mapping[str, int]
    ignored: int
    has_background: bool

    @property
    def dtype(self) -> type[np.uint8] | type[np.uint16]:
        """The type of a mask."""
        return np.uint8 if self.ignored < 256 else np.uint16


def make_labels(
    reading: Reading, classes: Sequence[str], ignore: Sequence[str], rename: Mapping[str, str]
) -> Labels:
    """Assign a label to each class, or to each class that the user chose."""
    final = _final_names(reading, rename)
    names = list(dict.fromkeys(final[spelled] for spelled in reading.classes))
    if reading.is_sorted:
        names.sort(key=str.casefold)
    ignore = _known(ignore, [*names, BACKGROUND], "--ignore")
    chosen = _known(classes, names, "--classes") or names
    kept = [name for name in chosen if name not in (*ignore, BACKGROUND)]
    if not kept:
        raise NacreError(
            "the export has no class to import" + (f"; it has {some(names, 20)}" if names else "")
        )
    if len(kept) > _MAX_16_BIT_CLASSES:
        raise NacreError(
            f"the export has {len(kept):,} classes, and a mask can store "
            f"{_MAX_16_BIT_CLASSES:,}; choose some with --classes"
        )
    ignored = 255 if len(kept) <= _MAX_8_BIT_CLASSES else 65535
    label_of = {name: label for label, name in enumerate(kept, start=1)}
    label_of |= dict.fromkeys(ignore, ignored)
    # A class that is not imported becomes background.
    by_class = {spelled: label_of.get(name, 0) for spelled, name in final.items()}
    has_background = reading.has_background or not set(names) <= {*kept, *ignore}
    own: dict[str, Color] = {}
    for spelled, color in reading.classes.items():
        if color is not None:
            own.setdefault(final[spelled], color)
    return Labels(
        tuple(kept),
        tuple(extend_colors([(0, 0, 0)], [BACKGROUND, *kept], own)),
        by_class | {IGNORED: ignored},
        ignored,
        has_background and BACKGROUND not in ignore,
    )


def _final_names(reading: Reading, rename: Mapping[str, str]) -> dict[str, str]:
    """Return the clean name after renaming by the export's spelling, background first."""
    by_name = {clean_name(old): clean_name(new) for old, new in rename.items()} | dict(rename)
    known = {BACKGROUND, *reading.classes, *map(clean_name, reading.classes)}
    for old in rename:
        if old not in known:
            raise _unknown(old, list(reading.classes), "--rename")
    final, spellings = {BACKGROUND: BACKGROUND}, defaultdict(list, {BACKGROUND: [BACKGROUND]})
    for spelled in reading.classes:
        new = by_name.get(spelled, by_name.get(clean_name(spelled), spelled))
        new = BACKGROUND if clean_name(new).casefold() == BACKGROUND else new
        final[spelled] = clean_name(new)
        similar = spellings["".join(clean_name(new).casefold().split())]
        if new not in similar:
            similar.append(new)
    for names in spellings.values():
        if len(names) > 1:
            two = " and ".join(repr(brief(name)) for name in names[:2])
            option = f"--rename {brief(names[1])!r}={brief(clean_name(names[0]))!r}"
            raise NacreError(
                f"the classes {two} have almost the same name; join them with {option}, or rename "
                "one of them in the annotation tool"
            )
    return final


def _known(wanted: Sequence[str], names: Sequence[str], option: str) -> list[str]:
    """Return the clean names of an option, each once; raise an error for an unknown one."""
    for name in wanted:
        if clean_name(name) not in names:
            raise _unknown(name, names, option)
    return list(dict.fromkeys(map(clean_name, wanted)))


def _unknown(name: str, names: Sequence[str], option: str) -> NacreError:
    hint = did_you_mean(name, names)
    return NacreError(
        f"{option}: the export has no class {brief(name)!r}{hint}; it has {some(names, 20)}"
    )


@contextmanager
def new_folder(target: Path) -> Iterator[Path]:
    """Yield a temporary folder that becomes the target at the end, or is removed."""
    # A link to an empty folder elsewhere is as good as this folder.
    target, shown = Path(os.path.realpath(target)), target
    if target.exists() and not target.is_dir():
        raise NacreError(f"{shown} is a file; --to needs a new folder")
    if target.is_dir() and any(target.iterdir()):
        raise NacreError(f"{shown} is not empty; import into a new folder")
    place = target.with_name(f".{target.name[:50]}.nacre-import")
    new = [place, *(parent for parent in target.parents if not parent.exists())]
    folder = place / "data"
    try:
        place.mkdir(parents=True, exist_ok=True)
        with locked(place, "import"):
            try:
                shutil.rmtree(folder, ignore_errors=True)
                for name in ("images", "masks"):
                    (folder / name).mkdir(parents=True)
                yield folder
                if target.is_dir():
                    target.rmdir()
                folder.rename(target)
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    except InUse:
        raise NacreError(f"another `nacre import` is writing {shown}") from None
    except OSError as error:
        # Errors of reading are NacreErrors already.
        raise NacreError(f"could not write {shown}: {error.strerror or error}") from error
    finally:
        for parent in new:
            if parent.is_dir() and not any(parent.iterdir()):
                parent.rmdir()


def write_classes(path: Path, labels: Labels, has_background: bool) -> None:
    """Write ``classes.yaml`` and check that nacre reads it."""
    # Quotes, because a class may be called 1e5 or no.
    names = {i: json.dumps(name, ensure_ascii=False) for i, name in enumerate(labels.names, 1)}
    lines = ["classes:", *(f"  {label}: {name}" for label, name in names.items())]
    lines += [f"background: {0 if has_background else 'null'}", f"ignored: {labels.ignored}"]
    lines += ["colors:", *(f"  {name}: {list(labels.colors[i])}" for i, name in names.items())]
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    try:
        read_classes(path)
    except NacreError as error:
        count = counted(len(labels.names), "class", "classes")
        raise NacreError(
            f"the export has {count}, more than nacre can read; choose some with --classes"
        ) from error


def plan_lists(files: Iterable[tuple[str, str | None]]) -> tuple[dict[str, list[str]], list[str]]:
    """Return the split lists to write, which are none or at least two, and notes for the report.

    Args:
        files: Image file and split (train, val, test, or None).
    """
    by_split: dict[str | None, list[str]] = defaultdict(list)
    for file, split in files:
        by_split[split].append(file)
    train, val, test = (by_split[split] for split in ("train", "val", "test"))
    if not (train or val or test):
        return {}, []
    if not (train and (val or test)):
        splits = " and ".join(split for split in ("train", "val", "test") if by_split[split])
        return {}, [
            f"the export has only the split {splits}: no lists are written, and nacre tests on one "
            "image in five"
        ]
    lists, notes = {"train": train, "val": val or test}, []
    if val and test:
        lists["test"] = test
        notes.append("nacre trains on train.txt and tests on val.txt; test.txt is the test split")
    elif test:
        notes.append("the export has no validation split: val.txt is its test split")
    if by_split[None]:
        notes.append(f"{counted(len(by_split[None]), 'image')} without a split: in no list")
    return lists, notes


def plan_names(images: Sequence[Image]) -> list[str]:
    """Return a name without extension for each image, with folders only if necessary."""
    paths = [_path(image) for image in images]
    plain = [safe_name(path[-1]) for path in paths]
    if len({name.casefold() for name in plain}) == len(plain):
        return plain
    folders = [path[:-1] for path in paths]
    levels = zip(*folders, strict=False)
    num_shared = sum(1 for _ in takewhile(lambda names: len(set(names)) == 1, levels))
    names = [
        "/".join([*(safe_name(part).replace(".", "_") for part in path[num_shared:-1]), name])
        for path, name in zip(paths, plain, strict=True)
    ]
    return _unique(names)


def safe_name(text: str) -> str:
    """Return a name that is valid on every file system and hidden on none."""
    text = unicodedata.normalize("NFC", text)
    kept = "".join("_" if char in _FORBIDDEN or not char.isprintable() else char for char in text)
    kept = kept.strip(" .") or "_"
    if len(kept.encode()) > _MAX_NAME_BYTES:
        digest = hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:8]
        start = kept.encode()[: _MAX_NAME_BYTES - 9].decode("utf-8", "ignore")
        kept = f"{start.rstrip(' .')}-{digest}"
    return kept


def _path(image: Image) -> tuple[str, ...]:
    """Return folders and stem of an image, from its file if there is one."""
    parts = clean_parts(image.file.path if image.file else image.name) or ("_",)
    last = PurePosixPath(parts[-1])
    return (*parts[:-1], last.stem if last.suffix.lower() in SUFFIXES else last.name)


def _unique(names: list[str]) -> list[str]:
    """Add a number to names that would be the same file if case does not count."""
    unique: dict[str, str] = {}
    times: Counter[str] = Counter()
    for name in names:
        wanted, folded = name, name.casefold()
        while name.casefold() in unique:
            times[folded] += 1
            name = f"{wanted}_{times[folded] + 1}"
        unique[name.casefold()] = name
    return list(unique.values())
