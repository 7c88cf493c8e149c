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
from typing import Any

from nacre.data.index.scan import Pair, Record, file_signature
from nacre.errors import NacreError
from nacre.utils.io import load_json, save_text

FOLDER = "nacre-index"

_VERSION = 1
_LOG = logging.getLogger(__name__)


def index_paths(root: Path, split: str) -> tuple[Path, Path]:
    """Return where the index may lie: beside the data, and in the user's cache folder."""
    root = root.resolve()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "nacre"
    digest = hashlib.sha256(str(root).encode()).hexdigest()[:16]
    return root / FOLDER / f"{split}.csv", cache / f"{root.name}-{digest}" / f"{split}.csv"


def load_records(
    root: Path, split: str, pairs: Mapping[str, Pair]
) -> tuple[dict[str, Record], bool]:
    """Return what is still true of what earlier passes found, by the mask's path below the root.

    Args:
        root: The data folder.
        split: The name of the index.
        pairs: The files in question, by the mask's path below the root.

    Returns:
        The records of unchanged files, and whether a kept index is exactly of these files.
    """
    fresh: dict[str, Record] = {}
    complete = False
    for path in index_paths(root, split):
        kept = _load(path.with_suffix(".json"))
        true = {
            key: record
            for key, record in kept.items()
            if key in pairs and record.stamp == file_signature(pairs[key])
        }
        fresh.update(true)
        complete |= path.exists() and len(true) == len(kept) == len(pairs)
    return fresh, complete


def keep(root: Path, split: str, records: Mapping[str, Record], index: str | None) -> None:
    """Keep the records, and the index as CSV text if it is sound, where that is possible."""
    masks = {key: [*record.stamp, record.pixels] for key, record in records.items()}
    text = json.dumps({"version": _VERSION, "masks": masks}, separators=(",", ":"))
    beside, cache = index_paths(root, split)
    for path in (beside, cache) if _is_writable(root) else (cache,):
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


def _load(path: Path) -> dict[str, Record]:
    """Read a file of records; one that cannot be used is as good as none."""
    try:
        stored = load_json(path)
        if stored["version"] != _VERSION:
            return {}
        return {key: _unpack(entry) for key, entry in stored["masks"].items()}
    except (NacreError, KeyError, TypeError, ValueError, AttributeError):
        return {}


def _unpack(entry: list[Any]) -> Record:
    image_size, image_time, mask_size, mask_time, pixels = entry
    counts = {int(label): int(count) for label, count in pixels.items()}
    return Record((image_size, image_time, mask_size, mask_time), counts)


def _is_writable(folder: Path) -> bool:
    """Respect a folder without write permission even for a user who may ignore it."""
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
