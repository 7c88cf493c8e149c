"""The index: for each image, which labels its mask contains and in how many pixels.

It is built by one pass over the files (`scan`) and kept in ``nacre-index/SPLIT.json`` beside the
data with the size and time of change of every file, so that the next pass reads only what changed.
Where the data are read-only, it is kept under the user's cache folder (``$XDG_CACHE_HOME/nacre`` or
``~/.cache/nacre``), named by the data path.
"""

import hashlib
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field

from nacre.data.image_io import count_labels, examine_image, read_mask
from nacre.errors import NacreError
from nacre.labels.space import LabelIndex, LabelSpace, ranges
from nacre.utils.io import save_text
from nacre.utils.progress import Progress, show_progress, worker_pool
from nacre.utils.system import usable_cores, user_cache

FOLDER = "nacre-index"

_VERSION = 2
_SHOWN = 5
_LOG = logging.getLogger(__name__)

Label = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Number = Annotated[int, Field(ge=-(2**62), le=2**62)]
LabelCounts = dict[Label, Count]
"""Pixels of a mask by label, in ascending order."""

FileSignature = tuple[Number, Number, Number, Number]
"""Size and time of change (ns) of the image and of the mask."""

Kept = dict[str, tuple[FileSignature, LabelCounts]]
"""What a pass found, by the mask's path below the data folder: the folder may be moved."""

ProblemKind = Literal[
    "missing image", "missing mask", "unusable file", "sizes differ", "unknown label"
]

_FEW = 100
"""Images that one process reads sooner than others have begun."""

_LARGEST_CHUNK = 32


class Pair(NamedTuple):
    """An image's name, and where it and its mask lie or should lie."""

    name: str
    image: Path
    mask: Path


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one image; ``text`` is a sentence without its full stop."""

    kind: ProblemKind
    name: str
    text: str


class Contents(NamedTuple):
    """The pixels of a mask by label, and whether EXIF data turn its image."""

    pixels: dict[int, int]
    is_turned: bool = False


def scan(
    pairs: Sequence[Pair], progress: Progress, *, decode: bool = False
) -> Iterator[Contents | Problem]:
    """Yield what each pair contains, or what is wrong with it, in the given order.

    The files are read by all cores, unless they are few. Nothing is raised for a bad file, so that
    a user learns of all of them at once.

    Args:
        pairs: The files to read.
        progress: Called with how far the pass has come.
        decode: Decode every image, instead of only those that may be damaged.
    """
    examine = partial(_examine, decode=decode)
    workers = usable_cores() if len(pairs) > _FEW else 1
    pool = worker_pool(workers, "reads masks")
    with pool if workers > 1 else nullcontext() as processes:
        # So small that all end together, so large that none waits for more.
        size = min(_LARGEST_CHUNK, 1 + len(pairs) // (4 * workers))
        mapped = processes.map(examine, pairs, chunksize=size) if processes else map(examine, pairs)
        for i, result in enumerate(mapped, start=1):
            yield result
            progress(i, len(pairs))


def _examine(pair: Pair, decode: bool) -> Contents | Problem:
    """Read one pair."""
    name, image, mask = pair
    try:
        labels = read_mask(mask)
        size, is_turned = examine_image(image, decode)
    except NacreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            return Problem("unusable file", name, str(error))
        if image.exists():
            return Problem("missing mask", name, f"the mask {mask} is missing")
        return Problem("missing image", name, f"the image {image} is missing")
    height, width = labels.shape
    if size == (width, height):
        return Contents(count_labels(labels), is_turned)
    text = f"the image {image} is {size[0]} x {size[1]}, its mask is {width} x {height}; "
    if is_turned and size == (height, width):
        text += "EXIF data turn the image, and a mask must be drawn on the turned one"
    else:
        text += "they must be equal"
    return Problem("sizes differ", name, text)


def build_index(pairs: Sequence[Pair], space: LabelSpace, *, root: Path, split: str) -> LabelIndex:
    """Return the index of these masks, reading only those that changed since the last time.

    Args:
        pairs: Name, image and mask of every image, in the order of the names.
        space: The meaning of the labels; any other label in a mask is an error.
        root: The data folder, beside which the index is kept.
        split: The name of the index in that folder.

    Raises:
        NacreError: Files are missing or damaged, sizes differ, or a label is unknown; all of
            that at once, with the first few named.
    """
    caches = [_load(path) for path in index_paths(root, split)]
    # Taken before the files are read: a change meanwhile is noticed the next time.
    signatures = [_signature(pair) for pair in pairs]
    keys = [str(pair.mask).removeprefix(f"{root}{os.sep}") for pair in pairs]
    found: list[LabelCounts | Problem | None] = [
        _find(caches, *one) for one in zip(keys, signatures, strict=True)
    ]
    stale = [i for i, pixels in enumerate(found) if pixels is None]
    if stale:
        with show_progress(f"index of {root.name} {split}") as bar:
            results = scan([pairs[i] for i in stale], bar)
            for i, result in zip(stale, results, strict=True):
                found[i] = result.pixels if isinstance(result, Contents) else result
    kept: Kept = {
        key: (signature, pixels)
        for key, signature, pixels in zip(keys, signatures, found, strict=True)
        if signature is not None and isinstance(pixels, dict)
    }
    if kept not in caches:
        _save(root, split, kept)
    index, problems = index_of(pairs, found, space)
    if problems:
        raise NacreError(_describe(problems, len(pairs), space))
    return index


def index_of(
    pairs: Sequence[Pair], found: Sequence[LabelCounts | Problem | None], space: LabelSpace
) -> tuple[LabelIndex, list[Problem]]:
    """Return the index of what was read of sorted pairs, and all that is wrong with the others."""
    names, counts, problems = [], [], []
    for pair, one in zip(pairs, found, strict=True):
        if isinstance(one, Problem):
            problems.append(one)
        elif one is not None:
            names.append(pair.name)
            counts.append(one)
            unknown = sorted(one.keys() - space.allowed)
            if unknown:
                each = (f"the unknown label {label} in {one[label]} pixels" for label in unknown)
                text = f"the mask {pair.mask} holds {', '.join(each)}"
                problems.append(Problem("unknown label", pair.name, text))
    return LabelIndex(tuple(names), tuple(counts)), problems


def _describe(problems: Sequence[Problem], total: int, space: LabelSpace) -> str:
    """Return one sentence with the number of problems and the first few of them."""
    first = "; ".join(problem.text for problem in problems[:_SHOWN])
    more = len(problems) - _SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    allowed = ""
    if any(problem.kind == "unknown label" for problem in problems):
        allowed = f"; known labels: {ranges(space.allowed)}"
    return f"{len(problems)} of {total} images cannot be used: {first}{rest}{allowed}"


def images_by_label(index: LabelIndex) -> Counter[int]:
    """Count the images that contain each label; a label that is missing is in none."""
    return Counter(label for labels in index.labels for label in labels)


def pixels_by_label(index: LabelIndex) -> Counter[int]:
    """Count the pixels of each label over all images."""
    total: Counter[int] = Counter()
    for pixels in index.pixel_counts:
        total.update(pixels)
    return total


class _Cache(BaseModel):
    version: Literal[2]
    masks: Kept


def index_paths(root: Path, split: str) -> list[Path]:
    """Return where the index may be: beside the data, and in the user's cache folder."""
    root = root.resolve()
    paths = [root / FOLDER / f"{split}.json"]
    if paths[0].parent.is_symlink():
        paths = []  # what it points to is not ours to write
    cache = user_cache()
    if cache is not None:
        digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        paths.append(cache / f"{root.name}-{digest}" / f"{split}.json")
    return paths


def _load(path: Path) -> Kept:
    """Read what an earlier pass found; nothing from a file that cannot be used."""
    try:
        return _Cache.model_validate_json(path.read_bytes()).masks
    except (OSError, ValueError):  # of which pydantic's and the decoder's errors are kinds
        return {}


def _save(root: Path, split: str, kept: Kept) -> None:
    """Save what was found in the first place that can be written."""
    text = json.dumps({"version": _VERSION, "masks": kept}, separators=(",", ":"))
    for path in index_paths(root, split):
        if path.is_relative_to(root.resolve()) and not _is_writable(root):
            continue
        try:
            save_text(path, text)
            return
        except (NacreError, OSError) as error:
            _LOG.info("the index is not kept at %s: %s", path, error)
    _LOG.warning("the index of %s %s could not be kept; it is built again each time", root, split)


def _find(caches: Sequence[Kept], key: str, signature: FileSignature | None) -> LabelCounts | None:
    """Return what is known of a mask, if neither it nor its image has changed since."""
    found = (cache.get(key) for cache in caches)
    return next((one[1] for one in found if one is not None and one[0] == signature), None)


def _signature(pair: Pair) -> FileSignature | None:
    """Return the sizes and times of a pair's files; None if one is missing."""
    try:
        image, mask = os.stat(pair.image), os.stat(pair.mask)
    except OSError:
        return None
    return image.st_size, image.st_mtime_ns, mask.st_size, mask.st_mtime_ns


def _is_writable(folder: Path) -> bool:
    """Return whether a folder has write permission, even for a user who may ignore it."""
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
