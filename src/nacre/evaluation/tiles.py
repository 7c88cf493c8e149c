"""Pictures of any size through windows, in bounded memory.

The answer is that of `sliding_classes`: windows that overlap, their probabilities added up. But it
comes block by block. A block's sums need only the windows that touch it; those at its edges are
looked through again for the next block, and nothing of the size of the picture is ever held.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.evaluation.inference import check_finite, starts
from nacre.losses import upsample
from nacre.models.network import Network

BLOCK_BYTES = 128 << 20
"""What the sums of a block may take."""

Read = Callable[[slice, slice], Tensor]
"""Returns rows and columns of a picture as uint8 3,h,w."""


@dataclass(frozen=True)
class Block:
    """A part of a picture and the channel of each of its pixels."""

    rows: slice
    columns: slice
    classes: Tensor


def block_side(window: int, channels: int) -> int:
    """Return the side of a block: a window at least, else as much as the memory allows."""
    return max(window, int((BLOCK_BYTES / (4 * channels)) ** 0.5))


@torch.inference_mode()
def tiled_classes(
    network: Network,
    read: Read,
    size: tuple[int, int],
    window: int,
    side: int | None = None,
) -> Iterator[Block]:
    """Yield the blocks of a picture from the upper left to the lower right.

    Args:
        network: In eval mode.
        read: Reads a part of the picture.
        size: Its height and width.
        window: Side of the windows.
        side: Of the blocks; as the memory allows by default.
    """
    height, width = size
    side = side or block_side(window, network.num_classes)
    for top in range(0, height, side):
        for left in range(0, width, side):
            rows = slice(top, min(top + side, height))
            columns = slice(left, min(left + side, width))
            yield Block(rows, columns, _classes(network, read, size, window, rows, columns))


def _classes(
    network: Network,
    read: Read,
    size: tuple[int, int],
    window: int,
    rows: slice,
    columns: slice,
) -> Tensor:
    device = next(network.parameters()).device
    shape = (rows.stop - rows.start, columns.stop - columns.start)
    total = torch.zeros(network.num_classes, *shape, device=device)
    for seen_rows in _touching(size[0], window, rows):
        for seen_columns in _touching(size[1], window, columns):
            part = read(seen_rows, seen_columns).to(device)
            scores = check_finite(network(part[None]).scores)
            scores = upsample(scores, (part.shape[1], part.shape[2]))
            down, from_rows = _overlap(rows, seen_rows)
            across, from_columns = _overlap(columns, seen_columns)
            total[:, down, across] += scores.softmax(1)[0, :, from_rows, from_columns]
    return total.argmax(0).to(torch.uint8 if len(total) <= 256 else torch.int16).cpu()


def _touching(length: int, window: int, part: slice) -> Iterator[slice]:
    """Yield the windows along a side that have something in common with a part of it."""
    for start in starts(length, window):
        stop = min(start + window, length)
        if start < part.stop and stop > part.start:
            yield slice(start, stop)


def _overlap(part: slice, window: slice) -> tuple[slice, slice]:
    """Return where a window lies in a part, and where that is in the window."""
    start, stop = max(part.start, window.start), min(part.stop, window.stop)
    return (
        slice(start - part.start, stop - part.start),
        slice(start - window.start, stop - window.start),
    )
