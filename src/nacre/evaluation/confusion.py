"""The confusion matrix, and the one formula of IoU.

    IoU = hit / (pixels of the truth + pixels predicted - hit)

A class that the tested truth never contains has no IoU.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import ignore_value
from nacre.utils.distributed import Distributed

_MOST_CELLS = 1 << 20  # of the matrices that a GPU counts in


def iou(hit: int, truth: int, predicted: int) -> float | None:
    """Return the intersection over union of a class by its pixels; None without any in the truth.

    >>> iou(hit=2, truth=3, predicted=3)
    0.5
    """
    return hit / (truth + predicted - hit) if truth else None


def iou_by_class(confusion: Tensor) -> list[float | None]:
    """Return the IoU of each class of a confusion matrix."""
    counts = zip(confusion.diagonal(), confusion.sum(1), confusion.sum(0), strict=True)
    return [iou(int(hit), int(truth), int(predicted)) for hit, truth, predicted in counts]


def mean_of(values: Sequence[float | None]) -> float | None:
    """Return the mean of the values that exist; None without any."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) / len(numbers) if numbers else None


def confusion_matrix(targets: Tensor, predicted: Tensor, channels: int) -> Tensor:
    """Count pixels by true and predicted channel.

    Args:
        targets: Channel numbers of any integer type and shape; what is ignored does not count.
        predicted: Channel numbers of the same shape.
        channels: How many channels there are.

    Returns:
        int64 of shape (channels, channels).

    Raises:
        NacreError: a target is no channel.
    """
    cell = _cell_of_pixels(targets, predicted, channels)
    return _matrix(torch.bincount(cell, minlength=channels * channels + 2), channels)


class ConfusionMatrix:
    """The confusion matrix of all batches, counted where they are.

    `bincount` asks a GPU twice for every batch how far it has to count. There the pixels of a batch
    are dealt to several matrices instead, so that they do not queue for the same few cells, and the
    sum of the matrices is fetched once.

    Args:
        channels: How many channels there are.
        device: Where the batches are.
    """

    def __init__(self, channels: int, device: torch.device) -> None:
        self.channels, cells = channels, channels * channels + 2
        copies = max(1, min(64, _MOST_CELLS // cells)) if device.type == "cuda" else 1
        self._counts = torch.zeros(copies, cells, dtype=torch.int64, device=device)

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Count the pixels of a batch, as `confusion_matrix` does."""
        if self._counts.is_cuda:
            self.count_on_device(targets, predicted)
        else:
            cell = _cell_of_pixels(targets, predicted, self.channels)
            self._counts[0] += torch.bincount(cell, minlength=self._counts.shape[1])

    def count_on_device(self, targets: Tensor, predicted: Tensor) -> None:
        """Count the pixels of a batch without waiting for the device."""
        cell = _cell_of_pixels(targets, predicted, self.channels)
        copies, cells = self._counts.shape
        place = torch.arange(len(cell), device=cell.device).remainder_(copies).mul_(cells)
        self._counts.view(-1).index_add_(0, place.add_(cell), torch.ones_like(cell))

    def merge(self, dist: Distributed) -> None:
        """Add what other processes counted."""
        self._counts = dist.sum(self._counts.sum(0, keepdim=True))

    def counts(self) -> Tensor:
        """Return the matrix, int64 in the CPU's memory.

        Raises:
            NacreError: a target was no channel.
        """
        return _matrix(self._counts.sum(0).cpu(), self.channels)

    def compute(self) -> list[float | None]:
        """Return the IoU of each class."""
        return iou_by_class(self.counts())


def _cell_of_pixels(targets: Tensor, predicted: Tensor, channels: int) -> Tensor:
    """Return the cell of each pixel: 0 if ignored, the matrix's row by row, the last if no channel.

    Ignored pixels have a cell, which is faster than to select the others first.
    """
    targets, predicted = targets.reshape(-1), predicted.reshape(-1)
    cell = (targets.to(torch.int64) * channels).add_(predicted).add_(1)
    cell = torch.where(targets == ignore_value(targets), 0, cell)
    return cell.clamp_(max=channels * channels + 1)


def _matrix(counts: Tensor, channels: int) -> Tensor:
    if counts[-1]:
        raise NacreError(
            f"{int(counts[-1]):,} pixels have a target that is none of the {channels} channels; "
            "map labels to channels first"
        )
    return counts[1:-1].view(channels, channels)
