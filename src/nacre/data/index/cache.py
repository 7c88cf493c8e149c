"""Where an index is kept, and what lets the next pass read only what changed.

Beside the data, in ``nacre-index/``: ``SPLIT.csv`` is the index, ``SPLIT.json`` has the size and
time of change of every file and the pixels by label. Where the data are read-only, both lie under
the user's cache folder (``$XDG_CACHE_HOME/nacre`` or ``~/.cache/nacre``), named by the data path.
"""

import csv
import hashlib
import io
import json
import logging
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Annotated

from pydantic import Field, TypeAdapter

from nacre.data.index.packed import pack, pixels_of, signature_of
from nacre.data.index.pairs import Pairs
from nacre.data.index.scan import Pair, Record, file_signature
from nacre.errors import NacreError
from nacre.scenarios.label_index import Index
from nacre.utils.io import read_text, save, save_text
from nacre.utils.system import user_cache

FOLDER = "nacre-index"
HEADER = ("image", "labels")

_VERSION = 1
_MAX_BYTES = 1 << 30
Label = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Number = Annotated[int, Field(ge=-(2**62), le=2**62)]
_LINE = TypeAdapter(dict[str, tuple[Number, Number, Number, Number, dict[Label, Count]]])
_BEGIN = f'{{"version":{_VERSION},"masks":{{'
_END = "\n}}\n"
_REST = ",\n"
_LOG = logging.getLogger(__name__)


def index_paths(root: Path, split: str) -> list[Path]:
    """Return where the index may lie: beside the data, and in the user's cache folder."""
    root = root.resolve()
    paths = [root / FOLDER / f"{split}.csv"]
    if paths[0].parent.is_symlink():
        paths = []  # what it points to is not ours to write
    cache = user_cache()
    if cache is not None:
        digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        paths.append(cache / f"{root.name}-{digest}" / f"{split}.csv")
    return paths


def load_index(root: Path, split: str, pairs: Pairs) -> tuple[list[bytes | None], bool]:
    """Return what is still right of what earlier passes found, packed, in the order of the pairs.

    Args:
        root: The data folder.
        split: The name of the index.
        pairs: The files in question.

    Returns:
        The records of unchanged files, None for the others; and whether a cached index is exactly
        of these files.
    """
    fresh: list[bytes | None] = [None] * len(pairs)
    complete = False
    for path in index_paths(root, split):
        cached = unchanged = 0
        for i, record in _match(_read_lines(path.with_suffix(".json")), root, pairs):
            cached += 1
            if i is not None and record.signature == file_signature(pairs[i]):
                fresh[i] = pack(record)
                unchanged += 1
        complete |= path.exists() and unchanged == cached == len(pairs)
    return fresh, complete


def _match(
    lines: Iterable[tuple[str, Record]], root: Path, pairs: Pairs
) -> Iterator[tuple[int | None, Record]]:
    """Find the pair of each record by the mask's path; most often they are in the same order."""
    places: dict[str, int] = {}
    i = 0
    for key, record in lines:
        if i < len(pairs) and _key(pairs[i], root) == key:
            yield i, record
            i += 1
            continue
        if not places:
            places = {_key(pair, root): at for at, pair in enumerate(pairs)}
        found = places.get(key)
        yield found, record
        i = i if found is None else found + 1


def _key(pair: Pair, root: Path) -> str:
    """Return the mask's path below the data folder, so that the folder may be moved."""
    if pair.mask is None:
        return f"no mask: {pair.name}"
    return str(pair.mask).removeprefix(f"{root}{os.sep}")


def save_index(
    root: Path, split: str, pairs: Pairs, records: Sequence[bytes | None], index: Index | None
) -> None:
    """Save the records, and the index as CSV if it is sound, where that is possible."""
    for path in index_paths(root, split):
        if path.is_relative_to(root.resolve()) and not _is_writable(root):
            continue
        try:
            if index is None:
                path.unlink(missing_ok=True)
            else:
                save_text(path, as_csv(index))
            save(path.with_suffix(".json"), lambda file: _write_lines(file, root, pairs, records))
            return
        except (NacreError, OSError) as error:
            _LOG.info("the index is not kept at %s: %s", path, error)
    _LOG.warning("the index of %s %s could not be kept; it is built anew each time", root, split)


def as_csv(index: Index) -> str:
    """Return an index as the text of the file that `read_index` reads."""
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(HEADER)
    for name, labels in zip(index.names, index.labels, strict=True):
        rows.writerow((name, " ".join(map(str, sorted(labels)))))
    return text.getvalue()


def _write_lines(file: Path, root: Path, pairs: Pairs, records: Sequence[bytes | None]) -> None:
    """Write the records as JSON that has one of them in a line."""
    with file.open("w", encoding="utf-8", errors="backslashreplace") as text:
        text.write(_BEGIN)
        comma = ""
        for i, record in enumerate(records):
            if record is not None:
                content = [*signature_of(record), pixels_of(record)]
                line = json.dumps(content, separators=(",", ":"))
                text.write(f"{comma}\n{json.dumps(_key(pairs[i], root))}:{line}")
                comma = ","
        text.write(_END)


def _read_lines(path: Path) -> Iterator[tuple[str, Record]]:
    """Read a file of records line by line; from where it cannot be used on, there are no more."""
    try:
        with path.open(encoding="utf-8") as file:
            if file.readline() != _BEGIN + "\n":
                return
            for line in file:
                if line == _END.lstrip():
                    return
                ((key, entry),) = _LINE.validate_json(f"{{{line.rstrip(_REST)}}}").items()
                yield key, Record(entry[:4], entry[4])
    except (OSError, ValueError):  # of which pydantic's and the decoder's errors are kinds
        return


def read_beside(root: Path, name: str) -> str | None:
    """Return a text that was kept with the index of a data folder."""
    for index in index_paths(root, "any"):
        path = index.with_name(name)
        try:
            if path.exists():
                return read_text(path, "the file", _MAX_BYTES)
        except (NacreError, OSError):
            continue
    return None


def keep_beside(root: Path, name: str, text: str) -> None:
    """Keep a text with the index of a data folder, where that is possible."""
    for index in index_paths(root, "any"):
        if index.is_relative_to(root.resolve()) and not _is_writable(root):
            continue
        try:
            save_text(index.with_name(name), text)
            return
        except (NacreError, OSError) as error:
            _LOG.info("%s is not kept at %s: %s", name, index.parent, error)


def _is_writable(folder: Path) -> bool:
    """Respect a folder without write permission even for a user who may ignore it."""
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
