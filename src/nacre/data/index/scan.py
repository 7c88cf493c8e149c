"""One pass over pictures and masks: label counts of every mask, and all that is wrong with them.

The masks are read by all cores when there are enough of them for that to pay. A mask is held in
memory only while it is counted. Nothing is raised here: every problem is collected, so that a
user hears of all of them at once.
"""

import math
import time
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial
from typing import Literal, NamedTuple

from nacre.data.image_head import HEAD, is_png, seems_whole
from nacre.data.image_io import image_size, is_turned, load, open_image, read_bytes
from nacre.data.index.label_counts import count_labels
from nacre.data.member import File, FileState, state_of
from nacre.errors import NacreError
from nacre.utils.progress import Progress
from nacre.utils.system import usable_cores
from nacre.utils.workers import worker_pool

ProblemKind = Literal[
    "missing image", "missing mask", "damaged file", "sizes differ", "unknown label"
]

_PROBE = 100
_POOL_PAYS_SECONDS = 0.4
_CHUNK_SECONDS = 0.2
_SMALLEST_CHUNK = 4


class Pair(NamedTuple):
    """An image's name, its picture and its mask (None where there is no such file)."""

    name: str
    image: File | None
    mask: File | None


FileSignature = tuple[int, int, int, int]
"""Size and time of change (ns) of the picture and of the mask."""


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong with one image; ``text`` is a sentence without its full stop."""

    kind: ProblemKind
    name: str
    text: str


class Record(NamedTuple):
    """What is known of one image.

    Attributes:
        signature: By what a change of its files is noticed.
        pixels: Pixels of its mask by label.
        is_turned: Whether EXIF data turn the picture, where it was decoded.
    """

    signature: FileSignature
    pixels: dict[int, int]
    is_turned: bool = False


class Work(NamedTuple):
    """What worker processes read, whether they decode pictures, how many they take at a time."""

    pairs: Sequence[Pair]
    decode: bool
    chunk: int


_work = Work((), False, 1)


def file_signature(pair: Pair) -> FileSignature | None:
    """Return by what a change of the pair's files is noticed; None if one is missing."""
    if pair.image is None or pair.mask is None:
        return None
    try:
        return _signature(state_of(pair.image), state_of(pair.mask))
    except OSError:
        return None


def scan(
    pairs: Sequence[Pair],
    *,
    workers: int | None = None,
    progress: Progress | None = None,
    decode: bool = False,
) -> Iterator[Record | Problem]:
    """Yield what each pair holds, or what is wrong with it, in the given order.

    Args:
        pairs: What to read.
        workers: How many processes; all cores by default, and none for little work.
        progress: Told how far the pass has come.
        decode: Decode the pictures too, instead of reading their heads only.
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
        yield from _reporting(map(examine, rest), report, done, len(pairs))
        return
    with closing(_share(rest, decode, workers, seconds)) as results:
        yield from _reporting(results, report, done, len(pairs))


def _share(
    pairs: Sequence[Pair], decode: bool, workers: int, seconds: float
) -> Generator[Record | Problem, None, None]:
    """Examine pairs by several processes; all of it would take one of them so many seconds."""
    # Large enough that processes seldom wait for more work, small enough that all end together.
    most = math.ceil(len(pairs) / (4 * workers))
    size = min(most, max(_SMALLEST_CHUNK, int(_CHUNK_SECONDS * len(pairs) / seconds)))
    work = Work(pairs, decode, size)
    with worker_pool(workers, partial(_take, work), "read masks") as executor:
        for chunk in executor.map(_examine_chunk, range(0, len(pairs), size)):
            yield from chunk


def _examine(pair: Pair, decode: bool) -> Record | Problem:
    """Read one pair."""
    name, image, mask = pair
    if image is None or mask is None:
        return _missing(pair)
    try:
        head, image_state = read_bytes(image, HEAD)
        data, mask_state = read_bytes(mask)
        width, height, pixels = count_labels(mask, data)
        size = image_size(image, head)
        whole = seems_whole(image, head, image_state.st_size)
        if decode or not whole:
            size = load(open_image(image)).size
        if not whole and is_png(head):
            # Pillow takes the pixels from a file whose chunks are wrong, other programs do not.
            return Problem(
                "damaged file", name, f"the image {image} is damaged: a chunk is cut off"
            )
        turned = (decode or size != (width, height)) and is_turned(image)
    except FileNotFoundError:
        return _missing(pair)
    except OSError as error:
        file = error.filename or f"a file of the image {name}"
        return Problem("damaged file", name, f"{file} cannot be read: {error.strerror}")
    except NacreError as error:
        return Problem("damaged file", name, str(error))
    if size != (width, height):
        return Problem("sizes differ", name, _sizes(pair, size, (width, height), turned))
    return Record(_signature(image_state, mask_state), pixels, turned)


def _sizes(pair: Pair, size: tuple[int, int], mask: tuple[int, int], turned: bool) -> str:
    text = f"the image {pair.image} is {size[0]} x {size[1]}, its mask is {mask[0]} x {mask[1]}; "
    if turned and size == mask[::-1]:
        return text + "EXIF data turn the image, and a mask must be drawn on the turned one"
    return text + "they must be equal"


def _signature(image: FileState, mask: FileState) -> FileSignature:
    return image.st_size, image.st_mtime_ns, mask.st_size, mask.st_mtime_ns


def _missing(pair: Pair) -> Problem:
    """Say which of the two files is missing."""
    name, image, mask = pair
    if image is None or not image.exists():
        where = image if image is not None else f"for the mask {mask}"
        return Problem("missing image", name, f"the image {where} is missing")
    where = mask if mask is not None else f"of the image {image}"
    return Problem("missing mask", name, f"the mask {where} is missing")


def _examine_chunk(start: int) -> list[Record | Problem]:
    pairs = _work.pairs[start : start + _work.chunk]
    return [_examine(pair, _work.decode) for pair in pairs]


def _reporting(
    results: Iterable[Record | Problem], report: Progress, before: int, total: int
) -> Iterator[Record | Problem]:
    for done, result in enumerate(results, start=before + 1):
        yield result
        report(done, total)


def _take(work: Work, _forked: bool) -> None:
    global _work
    _work = work
