"""The confusion matrix: how many pixels of class a (row) were called class b (column)."""

import torch
from torch import Tensor

from nacre.scenarios.classes import IGNORED


def confusion_matrix(truth: Tensor, predicted: Tensor, channels: int) -> Tensor:
    """Count pixels by true and predicted channel.

    Ignored pixels fall into one overflow bin at the end, which is faster than to select the
    others first.

    Args:
        truth: Channel numbers of any integer type and shape; 255 does not count.
        predicted: Channel numbers of the same shape.
        channels: How many channels there are.

    Returns:
        int64 of shape (channels, channels).
    """
    truth, predicted = truth.reshape(-1), predicted.reshape(-1)
    overflow = channels * channels
    cell = truth.to(torch.int64) * channels + predicted
    cell = torch.where(truth == IGNORED, overflow, cell)
    return torch.bincount(cell, minlength=overflow + 1)[:overflow].view(channels, channels)


def iou_by_class(confusion: Tensor) -> list[float | None]:
    """Return the intersection over union of each class, None where the truth never holds it."""
    matrix = confusion.double()
    hit = matrix.diagonal()
    truth, predicted = matrix.sum(1), matrix.sum(0)
    iou = hit / (truth + predicted - hit).clamp(min=1)
    return [float(one) if held else None for one, held in zip(iou, truth > 0, strict=True)]
