"""Where an index is kept, and what lets the next pass read only what changed.

Beside the data, in ``nacre-index/``: ``SPLIT.csv`` is the index, ``SPLIT.json`` has the size and
time of change of every file and the pixels by label. Where the data are read-only, both lie under
the user's cache folder (``$XDG_CACHE_HOME/nacre`` or ``~/.cache/nacre``), named by the data path.
"""

import hashlib
import json
import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, ValidationError

from nacre.data.index.scan import Pair, Record, file_signature
from nacre.errors import NacreError
from nacre.utils.io import load_json, save_text
from nacre.utils.system import user_cache

FOLDER = "nacre-index"

_VERSION = 1
_MAX_BYTES = 1 << 30
Label = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=0)]
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


def load_index(root: Path, split: str, pairs: Mapping[str, Pair]) -> tuple[dict[str, Record], bool]:
    """Return what is still right of what earlier passes found, by the mask's path below the root.

    Args:
        root: The data folder.
        split: The name of the index.
        pairs: The files in question, by the mask's path below the root.

    Returns:
        The records of unchanged files, and whether a cached index is exactly of these files.
    """
    fresh: dict[str, Record] = {}
    complete = False
    for path in index_paths(root, split):
        cached = _load(path.with_suffix(".json"))
        unchanged = {
            key: record
            for key, record in cached.items()
            if key in pairs and record.signature == file_signature(pairs[key])
        }
        fresh.update(unchanged)
        complete |= path.exists() and len(unchanged) == len(cached) == len(pairs)
    return fresh, complete


def save_index(root: Path, split: str, records: Mapping[str, Record], index: str | None) -> None:
    """Save the records, and the index as CSV text if it is sound, where that is possible."""
    masks = {key: [*record.signature, record.pixels] for key, record in records.items()}
    text = json.dumps({"version": _VERSION, "masks": masks}, separators=(",", ":"))
    for path in index_paths(root, split):
        if path.is_relative_to(root.resolve()) and not _is_writable(root):
            continue
        try:
            if index is None:
                path.unlink(missing_ok=True)
            else:
                save_text(path, index)
            save_text(path.with_suffix(".json"), text)
            return
        except (NacreError, OSError) as error:
            _LOG.info("the index is not kept at %s: %s", path, error)
    _LOG.warning("the index of %s %s could not be kept; it is built anew each time", root, split)


class _Cache(BaseModel):
    """The file of records: four numbers and the pixels by label, for every mask."""

    version: Literal[1]
    masks: dict[str, tuple[int, int, int, int, dict[Label, Count]]]


def _load(path: Path) -> dict[str, Record]:
    """Read a file of records; one that cannot be used is as good as none."""
    try:
        masks = _Cache.model_validate(load_json(path, _MAX_BYTES)).masks
    except (NacreError, ValidationError, OSError):
        return {}
    return {key: Record(entry[:4], entry[4]) for key, entry in masks.items()}


def _is_writable(folder: Path) -> bool:
    """Respect a folder without write permission even for a user who may ignore it."""
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
