"""Testing a network: every test image once, whatever the number of processes."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from nacre.evaluation.counts import ConfusionCounter
from nacre.evaluation.inference import predict_classes, sliding_classes
from nacre.models.foreign.scoring_layers import undisturbed
from nacre.models.network import Network
from nacre.utils.device import FLOAT32, Precision


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
