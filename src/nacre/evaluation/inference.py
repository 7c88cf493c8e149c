"""From pictures to the channel of each pixel, a few rows or a window at a time.

The channel of a pixel is the one with the greatest upsampled logit. Upsampling by strips
(`nacre.ops.strip_upsample`) keeps the memory independent of classes times pixels. Within a strip,
laid out as lines, channels, columns, the greatest value is fast to find and its channel is slow,
so the channel is found by values alone: 1 where a logit equals the greatest and 0 elsewhere, times
C - c, is greatest at the first such channel.

Pictures that are larger than the training crops can be seen window by window. Windows of the
crop's size overlap by at least a third; where they do, the probabilities of all of them are added
up. A picture that a window covers is seen as a whole.
"""

import math
from collections.abc import Callable

import torch
from torch import Tensor

from nacre.errors import NacreError
from nacre.labels.channels import target_dtype
from nacre.losses import upsample
from nacre.losses.reference import at_least_float32
from nacre.models.network import Network
from nacre.ops.strip_upsample import StripUpsampler

NOT_FINITE = (
    "the network's scores are not finite numbers, so it says nothing about any pixel: its weights "
    "are damaged, or its training diverged (a smaller learning rate may help)"
)


def check_finite(logits: Tensor) -> Tensor:
    """Return logits that are numbers, or say what else they may be."""
    if not bool(logits.isfinite().all()):
        raise NacreError(NOT_FINITE)
    return logits


@torch.no_grad()
def predict_classes(
    logits: Tensor, size: tuple[int, int], check: Callable[[Tensor], Tensor] = check_finite
) -> Tensor:
    """Return the labels that `upsample(logits, size).argmax(1)` would give.

    Where two upsampled logits differ by no more than rounding, either channel may be the label.

    Args:
        logits: N,C,h,w.
        size: Height and width of the labels.
        check: Looks at the logits; that of a `ConfusionCounter` does not wait for a GPU.

    Returns:
        N,H,W on the device of the logits, of the type of targets.

    Raises:
        NacreError: a logit is not a finite number, so that no class is the greatest.
    """
    logits = check(at_least_float32(logits.detach()))
    images, channels = logits.shape[:2]
    dtype = getattr(torch, target_dtype(channels))
    labels = torch.empty(images, *size, dtype=dtype, device=logits.device)
    upsampler = StripUpsampler(logits, size)
    rank = torch.arange(channels, 0, -1, dtype=logits.dtype, device=logits.device).view(-1, 1)
    # Autocast would take the matrix products to half precision.
    with torch.autocast(logits.device.type, enabled=False):
        for strip in upsampler.strips():
            lines = upsampler.lines(strip)
            greatest = lines.amax(1, keepdim=True)
            strip.put(channels - lines.eq_(greatest).mul_(rank).amax(1), labels)
    return labels


def sliding_classes(
    network: Network,
    images: Tensor,
    window: int,
    check: Callable[[Tensor], Tensor] = check_finite,
) -> Tensor:
    """Return the channel of each pixel of N,3,H,W images, seen through square windows."""
    height, width = images.shape[-2:]
    if height <= window and width <= window:
        return predict_classes(network(images).scores, (height, width), check)
    channels = network.num_classes
    total = torch.zeros(len(images), channels, height, width, device=images.device)
    for top in starts(height, window):
        for left in starts(width, window):
            rows, columns = slice(top, top + window), slice(left, left + window)
            part = images[:, :, rows, columns]
            logits = check(network(part).scores)
            logits = upsample(logits, (part.shape[-2], part.shape[-1]))
            # The sum is enough: at a pixel all channels would be divided by the same number.
            total[:, :, rows, columns] += logits.softmax(1)
    return total.argmax(1).to(getattr(torch, target_dtype(channels)))


def starts(length: int, window: int) -> list[int]:
    """Return where windows begin along a side, evenly, the last one ending at its end."""
    if length <= window:
        return [0]
    count = math.ceil((length - window) / (window * 2 / 3)) + 1
    return [round(i * (length - window) / (count - 1)) for i in range(count)]
