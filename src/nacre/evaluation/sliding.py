"""Labels of pictures that are larger than the training crops: window by window.

Windows of the crop's size overlap by at least a third; where they do, the probabilities of all of
them are added up. A picture that a window covers is seen as a whole.
"""

import math

import torch
from torch import Tensor

from nacre.evaluation.argmax import predict_labels
from nacre.losses import upsample
from nacre.models.network import Network


def sliding_labels(network: Network, images: Tensor, window: int) -> Tensor:
    """Return the channel of each pixel of N,3,H,W images, seen through square windows."""
    height, width = images.shape[-2:]
    if height <= window and width <= window:
        return predict_labels(network(images).logits, (height, width))
    channels = network.classifier.known
    total = torch.zeros(len(images), channels, height, width, device=images.device)
    for top in starts(height, window):
        for left in starts(width, window):
            rows, columns = slice(top, top + window), slice(left, left + window)
            part = images[:, :, rows, columns]
            logits = upsample(network(part).logits, (part.shape[-2], part.shape[-1]))
            # The sum is enough: at a pixel all channels would be divided by the same number.
            total[:, :, rows, columns] += logits.softmax(1)
    return total.argmax(1)


def starts(length: int, window: int) -> list[int]:
    """Return where windows begin along a side, evenly, the last one ending at its end."""
    if length <= window:
        return [0]
    count = math.ceil((length - window) / (window * 2 / 3)) + 1
    return [round(at * (length - window) / (count - 1)) for at in range(count)]
