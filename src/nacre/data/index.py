"""The index: for each image, the labels in its mask and their number of pixels.

`scan` reads the files once. The result is stored in ``nacre-index/SPLIT.json`` in the data folder,
with the size and modification time of every file, so that the next call reads only changed files.
If the data are read-only, it is stored in the user's cache folder (``$XDG_CACHE_HOME/nacre`` or
``~/.cache/nacre``).
"""

import hashlib
import json
import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field

from nacre.data.image_io import IMAGE_SUFFIXES, count_labels, examine_image, read_mask
from nacre.errors import NacreError, counted
from nacre.labels.space import LabelIndex, LabelSpace, ranges
from nacre.utils.io import save_text
from nacre.utils.progress import Progress, show_progress, worker_pool
from nacre.utils.system import usable_cores, user_cache

FOLDER = "nacre-index"

_VERSION = 2
_MAX_SHOWN = 5
_MIN_FOR_POOL = 100
"""Number of images below which starting processes takes longer than reading the images."""

_MAX_CHUNK = 32
_LOG = logging.getLogger(__name__)

Label = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Number = Annotated[int, Field(ge=-(2**62), le=2**62)]
LabelCounts = dict[Label, Count]
"""Number of pixels by label, in ascending order of the labels."""

FileSignature = tuple[Number, Number, Number, Number]
"""Size and modification time (ns) of the image, and of the mask."""

Stored = dict[str, tuple[FileSignature, LabelCounts]]
"""The labels of each mask, by its path relative to the data folder: the folder may be moved."""

ProblemKind = Literal[
    "missing image", "missing mask", "unusable file", "sizes differ", "unknown label"
]


class Pair(NamedTuple):
    """The name of an image, and the paths of its file and its mask; the files may be missing."""

    name: str
    image: Path
    mask: Path


@dataclass(frozen=True)
class Problem:
    """A problem with one image; ``text`` is a sentence without a full stop."""

    kind: ProblemKind
    name: str
    text: str


class Contents(NamedTuple):
    """The number of pixels of a mask by label, and whether EXIF data rotate its image."""

    pixels: dict[int, int]
    is_turned: bool = False


def scan(
    pairs: Sequence[Pair], progress: Progress, *, decode: bool = False
) -> Iterator[Contents | Problem]:
    """Yield the contents or the problem of each pair, in the given order.

    All cores share the work unless there are few pairs. A bad file raises no error, so that a user
    learns about all bad files at once.

    Args:
        pairs: Files to read.
        progress: Called with the number of pairs done and in total.
        decode: Decode all images, instead of only those that may be damaged.
    """
    examine = partial(_examine, decode=decode)
    workers = usable_cores() if len(pairs) > _MIN_FOR_POOL else 1
    pool = worker_pool(workers, "reads masks")
    with pool if workers > 1 else nullcontext() as processes:
        # Small chunks let all workers end together; large ones save messages.
        size = min(_MAX_CHUNK, 1 + len(pairs) // (4 * workers))
        results = (
            processes.map(examine, pairs, chunksize=size) if processes else map(examine, pairs)
        )
        for i, result in enumerate(results, start=1):
            yield result
            progress(i, len(pairs))


def _examine(pair: Pair, decode: bool) -> Contents | Problem:
    name, image, mask = pair
    try:
        labels = read_mask(mask)
        size, is_turned = examine_image(image, decode)
    except NacreError as error:
        if not isinstance(error.__cause__, FileNotFoundError):
            return Problem("unusable file", name, str(error))
        if image.exists():
            return _without_mask(name, mask)
        return Problem("missing image", name, f"the image {image} is missing")
    height, width = labels.shape
    if size == (width, height):
        return Contents(count_labels(labels), is_turned)
    text = f"the image {image} is {size[0]} x {size[1]}, its mask is {width} x {height}; "
    if is_turned and size == (height, width):
        text += "EXIF data rotate the image, and the mask must match the rotated image"
    else:
        text += "they must be equal"
    return Problem("sizes differ", name, text)


def _without_mask(name: str, mask: Path) -> Problem:
    """Return the problem of an image without a PNG mask; its mask may be a file of another type."""
    suffixes = (each for suffix in IMAGE_SUFFIXES for each in (suffix, suffix.upper()))
    other = next(filter(Path.exists, map(mask.with_suffix, suffixes)), None)
    if other is None:
        return Problem("missing mask", name, f"the mask {mask} is missing")
    try:
        read_mask(other)
    except NacreError as error:
        return Problem("unusable file", name, str(error))
    return Problem("unusable file", name, f"the mask {other} must be a PNG file named .png")


def build_index(pairs: Sequence[Pair], space: LabelSpace, *, root: Path, split: str) -> LabelIndex:
    """Return the index of a split, reading only the files that changed since the last call.

    Args:
        pairs: Image and mask of every image, in the order of the names.
        space: The meaning of the labels.
        root: The data folder, which stores the index.
        split: The name of the index in that folder.

    Raises:
        NacreError: Files are missing or damaged, sizes differ, or a label is unknown. The message
            names the first few of all problems.
    """
    stored = [_load(path) for path in index_paths(root, split)]
    known = {(key, files): pixels for place in stored for key, (files, pixels) in place.items()}
    # Taken before the files are read: the next call notices a change in the meantime.
    signatures = [_signature(pair) for pair in pairs]
    keys = [str(pair.mask).removeprefix(f"{root}{os.sep}") for pair in pairs]
    results: list[Contents | Problem | None] = [
        Contents(known[key, signature]) if signature and (key, signature) in known else None
        for key, signature in zip(keys, signatures, strict=True)
    ]
    changed = [i for i, result in enumerate(results) if result is None]
    if changed:
        with show_progress(f"index of {root.name} {split}") as bar:
            scanned = scan([pairs[i] for i in changed], bar)
            for i, result in zip(changed, scanned, strict=True):
                results[i] = result
    complete = [result for result in results if result is not None]
    current: Stored = {
        key: (signature, result.pixels)
        for key, signature, result in zip(keys, signatures, complete, strict=True)
        if signature is not None and isinstance(result, Contents)
    }
    if current not in stored:
        _save(root, split, current)
    index, problems = make_index(pairs, complete, space)
    if problems:
        raise NacreError(_describe(problems, len(pairs), space))
    return index


def make_index(
    pairs: Sequence[Pair], results: Sequence[Contents | Problem], space: LabelSpace
) -> tuple[LabelIndex, list[Problem]]:
    """Return the index of the readable pairs, and all problems, unknown labels included."""
    names, counts, problems = [], [], []
    for pair, result in zip(pairs, results, strict=True):
        if isinstance(result, Problem):
            problems.append(result)
            continue
        names.append(pair.name)
        counts.append(result.pixels)
        unknown = sorted(result.pixels.keys() - space.allowed)
        if unknown:
            each = (f"the unknown label {x} in {result.pixels[x]} pixels" for x in unknown)
            text = f"the mask {pair.mask} contains {', '.join(each)}"
            problems.append(Problem("unknown label", pair.name, text))
    return LabelIndex(tuple(names), tuple(counts)), problems


def describe_problems(problems: Sequence[Problem], max_shown: int) -> list[str]:
    """Return the first few problems; those that differ only in the file are one sentence."""
    groups: dict[str, list[Problem]] = defaultdict(list)
    for problem in problems:
        groups[problem.text.replace(f"/{problem.name}.", "/.")].append(problem)
    shown = list(groups.values())[:max_shown]
    sentences = [
        group[0].text + (f" (and {len(group) - 1:,} more)" if len(group) > 1 else "")
        for group in shown
    ]
    more = len(problems) - sum(map(len, shown))
    return [*sentences, f"and {more:,} more"] if more else sentences


def _describe(problems: Sequence[Problem], total: int, space: LabelSpace) -> str:
    """Return one sentence with the number of problems and the first few of them."""
    sentences = describe_problems(problems, _MAX_SHOWN)
    if any(problem.kind == "unknown label" for problem in problems):
        sentences.append(f"known labels: {ranges(space.allowed)}")
    of_all = f"{len(problems):,} of {counted(total, 'image')}"
    return f"{of_all} cannot be used: {'; '.join(sentences)}"


def images_by_label(index: LabelIndex) -> Counter[int]:
    """Count the images that contain each label."""
    return Counter(label for labels in index.labels for label in labels)


def pixels_by_label(index: LabelIndex) -> Counter[int]:
    """Count the pixels of each label over all images."""
    total: Counter[int] = Counter()
    for pixels in index.pixel_counts:
        total.update(pixels)
    return total


class _Cache(BaseModel):
    version: Literal[2]
    masks: Stored


def index_paths(root: Path, split: str) -> list[Path]:
    """Return the places of the index: in the data folder, and in the user's cache."""
    root = root.resolve()
    paths = [root / FOLDER / f"{split}.json"]
    if paths[0].parent.is_symlink():
        paths = []  # do not write to the target of a link
    cache = user_cache()
    if cache is not None:
        digest = hashlib.sha256(os.fsencode(root)).hexdigest()[:16]
        paths.append(cache / f"{root.name}-{digest}" / f"{split}.json")
    return paths


def _load(path: Path) -> Stored:
    """Read a stored index; return an empty one if the file is missing or damaged."""
    try:
        return _Cache.model_validate_json(path.read_bytes()).masks
    except (OSError, ValueError):  # pydantic's and the decoder's errors are ValueErrors
        return {}


def _save(root: Path, split: str, stored: Stored) -> None:
    """Save an index in the first place that is writable; log a warning if there is none."""
    text = json.dumps({"version": _VERSION, "masks": stored}, separators=(",", ":"))
    for path in index_paths(root, split):
        if path.is_relative_to(root.resolve()) and not _is_writable(root):
            continue
        try:
            save_text(path, text)
            return
        except (NacreError, OSError) as error:
            _LOG.info("the index could not be stored at %s: %s", path, error)
    _LOG.warning("the index of %s could not be stored, and is built again each time", root)


def _signature(pair: Pair) -> FileSignature | None:
    """Return the sizes and times of a pair's files; None if one is missing."""
    try:
        image, mask = os.stat(pair.image), os.stat(pair.mask)
    except OSError:
        return None
    return image.st_size, image.st_mtime_ns, mask.st_size, mask.st_mtime_ns


def _is_writable(folder: Path) -> bool:
    """Return whether a folder has write permission, even if the user is root."""
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
