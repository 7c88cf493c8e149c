"""Testing a network: every test image once, whatever the number of processes."""

from collections.abc import Callable, Iterable

import torch
from torch import Tensor

from nacre.evaluation.argmax import predict_labels
from nacre.evaluation.confusion import confusion_matrix
from nacre.models.network import Network


@torch.inference_mode()
def confusion_of(
    network: Network,
    batches: Iterable[tuple[Tensor, Tensor]],
    device: torch.device,
    on_images: Callable[[int], None] = lambda count: None,
) -> Tensor:
    """Return the confusion matrix of a network over batches of images and channels."""
    was_training = network.training
    network.eval()
    channels = network.classifier.known
    total = torch.zeros(channels, channels, dtype=torch.int64)
    for images, truth in batches:
        logits = network(images.to(device)).logits
        predicted = predict_labels(logits, (truth.shape[-2], truth.shape[-1]))
        total += confusion_matrix(truth.to(device), predicted, channels).cpu()
        on_images(len(images))
    network.train(was_training)
    return total
