"""Pictures of any size through windows, in bounded memory.

The answer is that of `sliding_classes`: windows that overlap, their probabilities added up. But it
comes block by block. A strip of columns is gone down from the top: once the windows of a row are
added, all above the next row of windows is settled and leaves the sums. Only windows at the edges
of strips are looked through twice, and nothing of the size of the picture is ever held.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.evaluation.inference import check_finite, starts
from nacre.labels.channels import target_dtype
from nacre.losses import upsample
from nacre.models.network import Network

STRIP_BYTES = 128 << 20
"""What the sums of a strip may take."""

Read = Callable[[slice, slice], Tensor]
"""Returns rows and columns of a picture as uint8 3,h,w."""


@dataclass(frozen=True)
class Block:
    """A part of a picture and the channel of each of its pixels."""

    rows: slice
    columns: slice
    classes: Tensor


def strip_width(window: int, channels: int) -> int:
    """Return the columns of a strip: a window's at least, else as many as the memory allows."""
    return max(window, STRIP_BYTES // (4 * channels * window))


@torch.inference_mode()
def tiled_classes(
    network: Network,
    read: Read,
    size: tuple[int, int],
    window: int,
    strip: int | None = None,
) -> Iterator[Block]:
    """Yield the blocks of a picture, strip by strip from the left, each from the top.

    Args:
        network: In eval mode.
        read: Reads a part of the picture.
        size: Its height and width.
        window: Side of the windows.
        strip: Columns of a strip; as the memory allows by default.
    """
    strip = strip or strip_width(window, network.num_classes)
    for left in range(0, size[1], strip):
        columns = slice(left, min(left + strip, size[1]))
        yield from _go_down(network, read, size, window, columns)


def _go_down(
    network: Network, read: Read, size: tuple[int, int], window: int, columns: slice
) -> Iterator[Block]:
    device = next(network.parameters()).device
    high, wide = min(window, size[0]), columns.stop - columns.start
    total = torch.zeros(network.num_classes, high, wide, device=device)
    tops = starts(size[0], window)
    for top, following in zip(tops, [*tops[1:], size[0]], strict=True):
        rows = slice(top, top + high)
        for seen in _touching(size[1], window, columns):
            part = read(rows, seen).to(device)
            scores = check_finite(network(part[None]).scores)
            scores = upsample(scores, (part.shape[1], part.shape[2]))
            across, within = _overlap(columns, seen)
            total[:, :, across] += scores.softmax(1)[0, :, :, within]
        settled = following - top
        classes = total[:, :settled].argmax(0)
        dtype = getattr(torch, target_dtype(len(total)))
        yield Block(slice(top, following), columns, classes.to(dtype).cpu())
        total = total.roll(-settled, 1)
        total[:, high - settled :] = 0


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
