"""Testing a network: every test image once, whatever the number of processes."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from nacre.evaluation.inference import predict_classes, sliding_classes
from nacre.evaluation.metrics import confusion_matrix
from nacre.models.network import Network


@torch.inference_mode()
def evaluate(
    network: Network,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    on_images: Callable[[int], None] = lambda count: None,
    window: int | None = None,
) -> Tensor:
    """Return the confusion matrix of a network over batches of images and channels.

    Args:
        network: What is tested.
        batches: Images N,3,H,W and their true channels N,H,W.
        device: Where the network is.
        on_images: Called with the number of images of each batch.
        window: Side of the windows through which larger images are seen; None for whole images.
    """
    was_training = network.training
    network.eval()
    channels = network.num_classes
    total = torch.zeros(channels, channels, dtype=torch.int64)
    for images, truth in batches:
        images = images.to(device)
        if window is None:
            size = (truth.shape[-2], truth.shape[-1])
            predicted = predict_classes(network(images).scores, size)
        else:
            predicted = sliding_classes(network, images, window)
        total += confusion_matrix(truth.to(device), predicted, channels).cpu()
        on_images(len(images))
    network.train(was_training)
    return total
