"""The index: for each image, which label values its mask holds; as CSV ``image,labels``.

It is built by one pass over the masks, kept beside the data (see ``cache``) and brought up to
date by reading only the files that changed since.
"""

import csv
import io
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from nacre.data.index.cache import HEADER, as_csv, load_index, save_index
from nacre.data.index.packed import PackedPixels, pack, pixels_of
from nacre.data.index.pairs import Pairs, sort_pairs
from nacre.data.index.scan import Pair, Problem, Record, scan
from nacre.errors import NacreError, shown
from nacre.scenarios.classes import LabelSpace, ranges
from nacre.scenarios.label_index import Index
from nacre.utils.io import read_text
from nacre.utils.progress import Progress, show_progress

__all__ = ["as_csv", "build_index", "images_by_label", "inspect", "pixels_by_label", "read_index"]

_SHOWN = 5
_MAX_BYTES = 1 << 28


def read_index(path: Path) -> Index:
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
    return Index(names, tuple(found[name] for name in names))


def _rows(path: Path, text: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the rows of a CSV text with the numbers of their lines."""
    lines = csv.reader(io.StringIO(text))
    try:
        for fields in lines:
            yield lines.line_num, fields
    except csv.Error as error:
        raise NacreError(f"{path}, line {lines.line_num}: not valid CSV: {error}") from error


def build_index(
    pairs: Sequence[Pair],
    space: LabelSpace,
    *,
    root: Path,
    split: str,
    workers: int | None = None,
    progress: Progress | None = None,
) -> Index:
    """Return the index of these masks, reading only those that changed since the last time.

    Args:
        pairs: Name, picture and mask of every image.
        space: What the labels mean; any other label in a mask is an error.
        root: The data folder, beside which the index is kept.
        split: The name of the index in that folder.
        workers: How many processes; all cores by default.
        progress: Told how far the pass has come; a bar on the terminal by default.

    Raises:
        NacreError: Files are missing or damaged, sizes differ, or a label is unknown; all of
            that at once, with the first few named.
    """
    index, problems = inspect(
        pairs, space, root=root, split=split, workers=workers, progress=progress
    )
    if problems:
        raise NacreError(describe(problems, len(pairs), space))
    return index


def inspect(
    pairs: Sequence[Pair],
    space: LabelSpace,
    *,
    root: Path,
    split: str,
    workers: int | None = None,
    progress: Progress | None = None,
) -> tuple[Index, list[Problem]]:
    """Like ``build_index``, but return the problems beside the index of what can be read."""
    pairs = sort_pairs(pairs)
    records, complete = load_index(root, split, pairs)
    stale = [i for i, record in enumerate(records) if record is None]
    problems: dict[str, Problem] = {}
    title = f"index of {root.name} {split}"
    for i, result in zip(stale, _scan(pairs, stale, title, workers, progress), strict=True):
        if isinstance(result, Record):
            records[i] = pack(result)
        else:
            problems[pairs.names[i]] = result
    index = index_of(pairs.names, records)
    problems |= unknown_labels(pairs, index, space)
    if stale or complete != (not problems):
        save_index(root, split, pairs, records, None if problems else index)
    return index, [problems[name] for name in sorted(problems)]


def index_of(names: Sequence[str], records: Sequence[bytes | None]) -> Index:
    """Return the index of what was read, of images in the order of their names."""
    read = [(name, one) for name, one in zip(names, records, strict=True) if one is not None]
    known: dict[frozenset[int], frozenset[int]] = {}
    found = (frozenset(pixels_of(record)) for _, record in read)
    return Index(
        names=tuple(name for name, _ in read),
        # Few sets of labels are there many times.
        labels=tuple(known.setdefault(labels, labels) for labels in found),
        pixel_counts=PackedPixels([record for _, record in read]),
    )


def describe(problems: Sequence[Problem], total: int, space: LabelSpace) -> str:
    """Say in one sentence how much is wrong, with the first few problems."""
    shown = "; ".join(problem.text for problem in problems[:_SHOWN])
    more = len(problems) - _SHOWN
    rest = f"; and {more} more" if more > 0 else ""
    allowed = ""
    if any(problem.kind == "unknown label" for problem in problems):
        allowed = f"; known labels: {ranges(space.allowed)}"
    return f"{len(problems)} of {total} images cannot be used: {shown}{rest}{allowed}"


def unknown_labels(pairs: Pairs, index: Index, space: LabelSpace) -> dict[str, Problem]:
    """Find the masks with a label that means nothing in this data set, by the image's name."""
    problems = {}
    for i, (name, labels) in enumerate(zip(index.names, index.labels, strict=True)):
        unknown = sorted(labels - space.allowed)
        if unknown:
            assert index.pixel_counts is not None
            pixels = index.pixel_counts[i]
            counts = (f"the unknown label {one} in {pixels[one]} pixels" for one in unknown)
            text = f"the mask {pairs.find(name).mask} holds {', '.join(counts)}"
            problems[name] = Problem("unknown label", name, text)
    return problems


def images_by_label(index: Index) -> Counter[int]:
    """Count the images that hold each label; a class that is not in it is empty."""
    return Counter(label for labels in index.labels for label in labels)


def pixels_by_label(index: Index) -> Counter[int] | None:
    """Count the pixels of each label over all images, if the masks were read."""
    if index.pixel_counts is None:
        return None
    total: Counter[int] = Counter()
    for pixels in index.pixel_counts:
        total.update(pixels)
    return total


def _parse_labels(text: str, place: str) -> frozenset[int]:
    try:
        labels = frozenset(map(int, text.split()))
    except ValueError:
        labels = frozenset((-1,))
    if any(not 0 <= label <= 65535 for label in labels):
        raise NacreError(f"{place}: {shown(text)} are not labels: whole numbers from 0 to 65535")
    return labels


def _scan(
    pairs: Pairs,
    which: Sequence[int],
    title: str,
    workers: int | None,
    progress: Progress | None,
) -> Iterator[Record | Problem]:
    if not which:
        return
    chosen = Pairs([pairs.names[i] for i in which], pairs.find)
    with show_progress(title, progress) as bar:
        yield from scan(chosen, workers=workers, progress=bar)
