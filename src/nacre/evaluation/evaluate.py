"""Testing a network: every test image once, whatever the number of processes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.evaluation.predictor import NOT_FINITE, Predictor
from nacre.models.probe import undisturbed
from nacre.utils.device import FLOAT32, Precision
from nacre.utils.distributed import Distributed


class Metric(Protocol):
    """A figure of class maps, added up batch by batch."""

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Add a batch: channels N,H,W, of which some targets may be ignored."""

    def merge(self, dist: Distributed) -> None:
        """Add what other processes have."""

    def compute(self) -> Any:
        """Return the figure."""


@torch.inference_mode()
def evaluate(
    predictor: Predictor,
    batches: Iterable[tuple[Tensor, Tensor]],
    metrics: Sequence[Metric],
    device: torch.device,
    on_images: Callable[[int], None] = lambda count: None,
    precision: Precision = FLOAT32,
) -> None:
    """Show batches of images to a network and add its class maps to metrics.

    The device is waited for at the end.

    Args:
        predictor: What is tested.
        batches: Images N,3,H,W and their true channels N,H,W.
        metrics: What is measured.
        device: Where the network is.
        on_images: Called with the number of images of each batch.
        precision: In which numbers the network computes; scores are upsampled in float32.

    Raises:
        NacreError: The network's scores are not finite numbers.
    """
    all_finite = torch.ones((), dtype=torch.bool, device=device)

    def note_finite(scores: Tensor) -> Tensor:
        all_finite.logical_and_(scores.isfinite().all())
        return scores

    predictor = replace(predictor, check=note_finite)
    with undisturbed(predictor.network):
        for images, targets in batches:
            with precision.mixed(device):
                predicted = predictor.classes(images.to(device, non_blocking=True))
            targets = targets.to(device, non_blocking=True)
            for metric in metrics:
                metric.update(targets, predicted)
            on_images(len(images))
    if not all_finite:
        raise NacreError(NOT_FINITE)
