"""The index: for each image, which labels its mask contains and in how many pixels.

It is built by one pass over the files (`scan`) and kept in ``nacre-index/SPLIT.json`` beside the
data with the size and time of change of every file, so that the next pass reads only what changed.
Where the data are read-only, it is kept under the user's cache folder (``$XDG_CACHE_HOME/nacre`` or
``~/.cache/nacre``), named by the data path. A list of labels, a CSV file ``image,labels``, can take
the place of the data (`read_index`).
"""

import csv
import hashlib
import io
import json
import logging
import math
import os
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

from pydantic import BaseModel, Field

from nacre.data.image_io import count_labels, examine_image, read_mask
from nacre.errors import NacreError, shown
from nacre.labels.space import LabelIndex, LabelSpace, ranges
from nacre.utils.io import read_text, save_text
from nacre.utils.progress import Progress, show_progress, worker_pool
from nacre.utils.system import usable_cores, user_cache

FOLDER = "nacre-index"
HEADER = ("image", "labels")

_VERSION = 2
_SHOWN = 5
_MAX_BYTES = 1 << 28
_LOG = logging.getLogger(__name__)

Label = Annotated[int, Field(ge=0, le=65535)]
Count = Annotated[int, Field(ge=0, le=2**62)]
Number = Annotated[int, Field(ge=-(2**62), le=2**62)]
Pixels = dict[Label, Count]
"""Pixels of a mask by label, in ascending order."""

FileSignature = tuple[Number, Number, Number, Number]
"""Size and time of change (ns) of the image and of the mask."""

Kept = dict[str, tuple[FileSignature, Pixels]]
"""What a pass found, by the mask's path below the data folder: the folder may be moved."""

ProblemKind = Literal[
    "missing image", "missing mask", "damaged file", "sizes differ", "unknown label"
]

_PROBE = 100
_POOL_PAYS_SECONDS = 0.4
_CHUNK_SECONDS = 0.2
_SMALLEST_CHUNK = 4


class Pair(NamedTuple):
    """An image's name, its file and its mask (None where there is no such file)."""

    name: str
    image: Path | None
    mask: Path | None


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


Examine = Callable[[Pair], Contents | Problem]


def scan(
    pairs: Sequence[Pair],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    decode: bool = False,
) -> Iterator[Contents | Problem]:
    """Yield what each pair contains, or what is wrong with it, in the given order.

    The files are read by all cores where there are enough of them for that to pay. Nothing is
    raised for a bad file, so that a user learns of all of them at once.

    Args:
        pairs: The files to read.
        workers: Number of processes; all cores by default, and none for little work.
        progress: Called with how far the pass has come.
        decode: Decode every image, instead of only those that may be damaged.
    """
    report = progress or (lambda done, total: None)
    examine = partial(_examine, decode=decode)
    start = time.perf_counter()
    done = 0
    for done, pair in enumerate(pairs[:_PROBE], start=1):
        yield examine(pair)
        report(done, len(pairs))
    rest = pairs[done:]
    # Measured, not guessed: masks of one data set take a hundred times as long as another's.
    seconds = (time.perf_counter() - start) / max(done, 1) * len(rest)
    workers = workers or usable_cores()
    if workers == 1 or seconds < _POOL_PAYS_SECONDS:
        yield from _with_progress(map(examine, rest), report, done, len(pairs))
        return
    # Large enough that processes seldom wait for more work, small enough that all end together.
    most = math.ceil(len(rest) / (4 * workers))
    size = min(most, max(_SMALLEST_CHUNK, int(_CHUNK_SECONDS * len(rest) / seconds)))
    chunks = [rest[i : i + size] for i in range(0, len(rest), size)]
    with worker_pool(workers, lambda forked: None, "reads masks", cancel=True) as pool:
        results = chain.from_iterable(pool.map(partial(_examine_all, examine), chunks))
        yield from _with_progress(results, report, done, len(pairs))


def _examine_all(examine: Examine, pairs: Sequence[Pair]) -> list[Contents | Problem]:
    return [examine(pair) for pair in pairs]


def _examine(pair: Pair, decode: bool) -> Contents | Problem:
    """Read one pair."""
    name, image, mask = pair
    if image is None or mask is None:
        return _missing(pair)
    try:
        labels = read_mask(mask)
        size, is_turned = examine_image(image, decode)
    except NacreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return _missing(pair)
        return Problem("damaged file", name, str(error))
    height, width = labels.shape
    if size != (width, height):
        return Problem("sizes differ", name, _sizes(pair, size, (width, height), is_turned))
    return Contents(count_labels(labels), is_turned)


def _sizes(pair: Pair, size: tuple[int, int], mask: tuple[int, int], turned: bool) -> str:
    text = f"the image {pair.image} is {size[0]} x {size[1]}, its mask is {mask[0]} x {mask[1]}; "
    if turned and size == mask[::-1]:
        return text + "EXIF data turn the image, and a mask must be drawn on the turned one"
    return text + "they must be equal"


def _missing(pair: Pair) -> Problem:
    """Name the file that is missing."""
    name, image, mask = pair
    if image is None or not image.exists():
        where = image if image is not None else f"for the mask {mask}"
        return Problem("missing image", name, f"the image {where} is missing")
    where = mask if mask is not None else f"of the image {image}"
    return Problem("missing mask", name, f"the mask {where} is missing")


def _with_progress(
    results: Iterable[Contents | Problem], report: Progress, before: int, total: int
) -> Iterator[Contents | Problem]:
    for done, result in enumerate(results, start=before + 1):
        yield result
        report(done, total)


def read_index(path: Path) -> LabelIndex:
    """Read an index from a CSV file.

    Args:
        path: A file with the header ``image,labels``; labels are separated by spaces.
    """
    text = read_text(path, "the index", _MAX_BYTES)
    lines = _rows(path, text)
    if tuple(next(lines, (0, []))[1]) != HEADER:
        first = text.partition("\n")[0][:60]
        raise NacreError(f"{path}, line 1: the header is {first!r}; it must be 'image,labels'")
    found: dict[str, frozenset[int]] = {}
    known: dict[str, frozenset[int]] = {}
    for number, fields in lines:
        if not fields:
            continue
        place = f"{path}, line {number}"
        if len(fields) != len(HEADER) or not fields[0]:
            raise NacreError(
                f"{place}: {shown(','.join(fields))} is not of the form 'image,labels'"
            )
        name, labels = fields
        if name in found:
            raise NacreError(f"{place}: the image {shown(name)} stands there for the second time")
        if labels not in known:
            known[labels] = _parse_labels(labels, place)
        found[name] = known[labels]
    names = tuple(sorted(found))
    return LabelIndex(names, tuple(found[name] for name in names))


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text with the numbers of their lines."""
    lines = csv.reader(io.StringIO(text))
    try:
        for fields in lines:
            yield lines.line_num, fields
    except csv.Error as error:
        raise NacreError(f"{path}, line {lines.line_num}: not valid CSV: {error}") from error


def _parse_labels(text: str, place: str) -> frozenset[int]:
    try:
        labels = frozenset(map(int, text.split()))
    except ValueError:
        labels = frozenset((-1,))
    if any(not 0 <= label <= 65535 for label in labels):
        raise NacreError(f"{place}: {shown(text)} are not labels: whole numbers from 0 to 65535")
    return labels


def build_index(
    pairs: Iterable[Pair],
    space: LabelSpace,
    *,
    root: Path,
    split: str,
    workers: int | None = None,
    progress: Progress | None = None,
) -> LabelIndex:
    """Return the index of these masks, reading only those that changed since the last time.

    Args:
        pairs: Name, image and mask of every image.
        space: The meaning of the labels; any other label in a mask is an error.
        root: The data folder, beside which the index is kept.
        split: The name of the index in that folder.
        workers: Number of processes; all cores by default.
        progress: Called with how far the pass has come; a bar on the terminal by default.

    Raises:
        NacreError: Files are missing or damaged, sizes differ, or a label is unknown; all of
            that at once, with the first few named.
    """
    pairs = sort_pairs(pairs)
    index, problems = inspect(
        pairs, space, root=root, split=split, workers=workers, progress=progress
    )
    if problems:
        raise NacreError(describe(problems, len(pairs), space))
    return index


def inspect(
    pairs: Iterable[Pair],
    space: LabelSpace,
    *,
    root: Path,
    split: str,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[LabelIndex, list[Problem]]:
    """Return the index of what can be read, and the problems; otherwise like ``build_index``."""
    pairs = sort_pairs(pairs)
    caches = [_load(path) for path in index_paths(root, split)]
    # Taken before the files are read: a change meanwhile is noticed the next time.
    signatures = [_signature(pair) for pair in pairs]
    keys = [str(pair.mask).removeprefix(f"{root}{os.sep}") for pair in pairs]
    found = [_find(caches, *one) for one in zip(keys, signatures, strict=True)]
    stale = [i for i, pixels in enumerate(found) if pixels is None]
    problems: dict[str, Problem] = {}
    if stale:
        with show_progress(f"index of {root.name} {split}", progress) as bar:
            results = scan([pairs[i] for i in stale], workers=workers, progress=bar)
            for i, result in zip(stale, results, strict=True):
                if isinstance(result, Problem):
                    problems[result.name] = result
                else:
                    found[i] = result.pixels
    kept: Kept = {
        key: (signature, pixels)
        for key, signature, pixels in zip(keys, signatures, found, strict=True)
        if signature is not None and pixels is not None
    }
    if kept not in caches:
        _save(root, split, kept)
    index = index_of(pairs, found)
    problems |= unknown_labels(pairs, index, space)
    return index, [problems[name] for name in sorted(problems)]


def sort_pairs(pairs: Iterable[Pair]) -> list[Pair]:
    """Return pairs in the order of their names, each name once."""
    by_name = {pair.name: pair for pair in pairs}
    return [by_name[name] for name in sorted(by_name)]


def index_of(pairs: Sequence[Pair], found: Sequence[Pixels | None]) -> LabelIndex:
    """Return the index of what was read of pairs in the order of their names."""
    read = [(pair.name, one) for pair, one in zip(pairs, found, strict=True) if one is not None]
    known: dict[frozenset[int], frozenset[int]] = {}
    sets = (frozenset(pixels) for _, pixels in read)
    return LabelIndex(
        names=tuple(name for name, _ in read),
        # The same few sets of labels occur many times: each is stored once.
        labels=tuple(known.setdefault(labels, labels) for labels in sets),
        pixel_counts=tuple(pixels for _, pixels in read),
    )


def unknown_labels(
    pairs: Sequence[Pair], index: LabelIndex, space: LabelSpace
) -> dict[str, Problem]:
    """Find the masks with a label that means nothing in this data set, by the image's name."""
    assert index.pixel_counts is not None
    masks = {pair.name: pair.mask for pair in pairs}
    problems = {}
    for name, pixels in zip(index.names, index.pixel_counts, strict=True):
        unknown = sorted(pixels.keys() - space.allowed)
        if unknown:
            counts = (f"the unknown label {one} in {pixels[one]} pixels" for one in unknown)
            text = f"the mask {masks[name]} holds {', '.join(counts)}"
            problems[name] = Problem("unknown label", name, text)
    return problems


def describe(problems: Sequence[Problem], total: int, space: LabelSpace) -> str:
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


def pixels_by_label(index: LabelIndex) -> Counter[int] | None:
    """Count the pixels of each label over all images, if the masks were read."""
    if index.pixel_counts is None:
        return None
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


def _find(caches: Sequence[Kept], key: str, signature: FileSignature | None) -> Pixels | None:
    """Return what is known of a mask, if neither it nor its image has changed since."""
    found = (cache.get(key) for cache in caches)
    return next((one[1] for one in found if one is not None and one[0] == signature), None)


def _signature(pair: Pair) -> FileSignature | None:
    """Return the sizes and times of a pair's files; None if one is missing."""
    if pair.image is None or pair.mask is None:
        return None
    try:
        image, mask = os.stat(pair.image), os.stat(pair.mask)
    except OSError:
        return None
    return image.st_size, image.st_mtime_ns, mask.st_size, mask.st_mtime_ns


def _is_writable(folder: Path) -> bool:
    """Return whether a folder has write permission, even for a user who may ignore it."""
    return bool(folder.stat().st_mode & 0o222) and os.access(folder, os.W_OK)
