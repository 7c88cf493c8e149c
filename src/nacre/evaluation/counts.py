"""Counting pixels by true and predicted channel over a whole test, waiting for the device once."""

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.evaluation.inference import NOT_FINITE
from nacre.evaluation.metrics import cell_of_pixels, confusion_matrix

_MOST_CELLS = 1 << 20  # of the matrices that a GPU counts in


class ConfusionCounter:
    """A confusion matrix that batches are added to where they are.

    `bincount` asks a GPU twice for every batch how far it has to count. There the pixels of a batch
    are dealt to several matrices instead, so that they do not queue for the same few cells, and the
    sum of the matrices is fetched once.

    Args:
        channels: How many channels there are.
        device: Where the batches are.
    """

    def __init__(self, channels: int, device: torch.device) -> None:
        self.channels, cells = channels, channels * channels + 1
        copies = max(1, min(64, _MOST_CELLS // cells)) if device.type == "cuda" else 1
        self._counts = torch.zeros(copies, cells, dtype=torch.int64, device=device)
        self._all_finite = torch.ones(1, dtype=torch.int64, device=device)

    def check(self, scores: Tensor) -> Tensor:
        """Return a network's scores, having noted whether they are numbers."""
        self._all_finite *= scores.detach().isfinite().all()
        return scores

    def add(self, targets: Tensor, predicted: Tensor) -> None:
        """Count the pixels of a batch, as `confusion_matrix` does."""
        if self._counts.is_cuda:
            self.add_on_device(targets, predicted)
        else:
            counted = confusion_matrix(targets, predicted, self.channels)
            self._counts[0, :-1] += counted.flatten()

    def add_on_device(self, targets: Tensor, predicted: Tensor) -> None:
        """Count the pixels of a batch without asking for anything."""
        cell = cell_of_pixels(targets, predicted, self.channels)
        copies, cells = self._counts.shape
        place = torch.arange(len(cell), device=cell.device).remainder_(copies).mul_(cells)
        self._counts.view(-1).index_add_(0, place.add_(cell), torch.ones_like(cell))

    def total(self) -> Tensor:
        """Return the matrix of all batches, in the CPU's memory.

        Raises:
            NacreError: Scores that were checked are not finite numbers.
        """
        found = torch.cat([self._counts.sum(0)[:-1], self._all_finite]).cpu()
        if not found[-1]:
            raise NacreError(NOT_FINITE)
        return found[:-1].view(self.channels, self.channels)
