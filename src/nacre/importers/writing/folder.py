"""The folder that an import makes: whole or not at all, in the form that nacre's folders have.

It is written as ``.NAME.nacre-xxxxxxxx/data`` beside the target. A lock beside ``data`` is held
meanwhile: a folder whose lock is free was left by a killed import, and the next one removes it.
"""

import glob
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml
from filelock import FileLock, Timeout

from nacre.data.sources.classes_yaml import read_classes
from nacre.errors import NacreError
from nacre.importers.painting.paint import Job, Outcome
from nacre.importers.problems import counted
from nacre.importers.report import ImportReport
from nacre.importers.writing.classes import Labels
from nacre.importers.writing.sheet import choose, draw_sheet

CLASSES = "classes.yaml"
SHEET = "contact-sheet.jpg"
REPORT = "import.json"
_LOCK = "lock"


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
    with _naming(target):
        target.parent.mkdir(parents=True, exist_ok=True)
        place, lock = _locked_place(target.parent, prefix)
    folder = place / "data"
    try:
        with _naming(target):
            for part in ("images", "masks"):
                (folder / part).mkdir(parents=True)
        yield folder
        with _naming(target):
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


def write_texts(
    folder: Path, labels: Labels, lists: Mapping[str, Sequence[str]], report: ImportReport
) -> None:
    """Write ``classes.yaml``, the split lists and the report."""
    texts = {f"{name}.txt": "".join(f"{file}\n" for file in files) for name, files in lists.items()}
    texts[CLASSES] = _classes_yaml(labels, labels.has_background or report.pixels[0] > 0)
    texts[REPORT] = json.dumps(report.as_dict(), indent=1, ensure_ascii=False) + "\n"
    with _naming(folder):
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
    try:
        read_classes(folder / CLASSES)
    except NacreError as error:
        count = counted(len(labels.names), "class", "classes")
        raise NacreError(f"{count} are more than nacre can read; --classes chooses some") from error


def _classes_yaml(labels: Labels, has_background: bool) -> str:
    names = {label: _Quoted(name) for label, name in enumerate(labels.names, start=1)}
    content: dict[str, Any] = {
        "classes": names,
        "background": 0 if has_background else None,
        "ignored": labels.ignored,
        "colors": {name: list(labels.colors[label]) for label, name in names.items()},
    }
    text: str = yaml.dump(
        content,
        Dumper=_Dumper,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=None,
        width=100,
    )
    return text


def write_sheet(folder: Path, job: Job, outcomes: Sequence[Outcome], report: ImportReport) -> None:
    """Write the contact sheet."""
    written = [one for one in outcomes if one.problem is None]
    pairs = [
        (one.file, folder / "images" / one.file, folder / "masks" / f"{job.names[one.index]}.png")
        for one in (written[i] for i in choose([one.pixels for one in written]))
    ]
    labels = job.labels
    legend = [
        (f"{name} {report.share(label):.1%}", labels.colors[label])
        for label, name in enumerate(labels.names, start=1)
        if report.images[label]
    ]
    if report.images[labels.ignored]:
        legend.append((f"(ignored) {report.share(labels.ignored):.1%}", (255, 255, 255)))
    title = f"{report.format}: {len(pairs)} of {counted(report.pictures, 'picture')}"
    with _naming(folder):
        draw_sheet(pairs, labels.colors, legend, title).save(folder / SHEET, quality=88)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Turn a failing disk into one sentence."""
    try:
        yield
    except OSError as error:
        raise NacreError(f"could not write {path}: {error.strerror or error}") from error


class _Quoted(str):
    """A text that must stay one, whatever it looks like: a class may be called 1e5 or no."""


class _Dumper(yaml.SafeDumper):
    """Writes quoted texts in quotes."""


def _quote(dumper: yaml.SafeDumper, text: _Quoted) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"')


_Dumper.add_representer(_Quoted, _quote)
