"""Testing a network: every test image once, whatever the number of processes."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.evaluation.inference import NOT_FINITE, predict_classes, sliding_classes
from nacre.evaluation.metrics import cell_of_pixels, confusion_matrix
from nacre.models.foreign.scoring_layers import undisturbed
from nacre.models.network import Network
from nacre.utils.device import FLOAT32, Precision

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


@torch.inference_mode()
def evaluate(
    network: Network,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    on_images: Callable[[int], None] = lambda count: None,
    window: int | None = None,
    precision: Precision = FLOAT32,
) -> Tensor:
    """Return the confusion matrix of a network over batches of images and channels.

    The device is waited for once, at the end.

    Args:
        network: What is tested.
        batches: Images N,3,H,W and their true channels N,H,W.
        device: Where the network is.
        on_images: Called with the number of images of each batch.
        window: Side of the windows through which larger images are seen; None for whole images.
        precision: In which numbers the network computes; scores are upsampled in float32.

    Raises:
        NacreError: The network's scores are not finite numbers.
    """
    counter = ConfusionCounter(network.num_classes, device)
    with undisturbed(network):
        for images, targets in batches:
            images = images.to(device, non_blocking=True)
            with precision.mixed(device):
                if window is None:
                    size = (targets.shape[-2], targets.shape[-1])
                    predicted = predict_classes(network(images).scores, size, counter.check)
                else:
                    predicted = sliding_classes(network, images, window, counter.check)
            counter.add(targets.to(device, non_blocking=True), predicted)
            on_images(len(images))
    return counter.total()
