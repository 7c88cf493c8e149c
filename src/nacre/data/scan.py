"""One pass over images and masks: the label counts of every mask, and all that is wrong with them.

The files are read by all cores where there are enough of them for that to pay. Nothing is raised
for a bad file: every problem is collected, so that a user learns of all of them at once.
"""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Literal, NamedTuple

from nacre.data.image_io import count_labels, examine_image, read_mask
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
        yield from _reporting(map(examine, rest), report, done, len(pairs))
        return
    # Large enough that processes seldom wait for more work, small enough that all end together.
    most = math.ceil(len(rest) / (4 * workers))
    size = min(most, max(_SMALLEST_CHUNK, int(_CHUNK_SECONDS * len(rest) / seconds)))
    chunks = [rest[i : i + size] for i in range(0, len(rest), size)]
    with worker_pool(workers, lambda forked: None, "reads masks", cancel=True) as pool:
        results = chain.from_iterable(pool.map(partial(_examine_all, examine), chunks))
        yield from _reporting(results, report, done, len(pairs))


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


def _reporting(
    results: Iterable[Contents | Problem], report: Progress, before: int, total: int
) -> Iterator[Contents | Problem]:
    for done, result in enumerate(results, start=before + 1):
        yield result
        report(done, total)
