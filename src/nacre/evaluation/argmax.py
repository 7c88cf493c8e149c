"""From low-resolution logits to full-resolution labels, a few rows at a time.

The label of a pixel is the channel with the greatest upsampled logit. Upsampling by strips
(`nacre.ops.strip_upsample`) keeps the memory independent of classes times pixels. Within a strip, laid
out as lines, channels, columns, the greatest value is fast to find and its channel is slow, so the
channel is found by values alone: 1 where a logit equals the greatest and 0 elsewhere, times C - c,
is greatest at the first such channel.
"""

import torch
from torch import Tensor

from nacre.losses.reference import at_least_float32
from nacre.ops.strip_upsample import StripUpsampler


@torch.no_grad()
def predict_labels(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the labels that `upsample(logits, size).argmax(1)` would give.

    Where two upsampled logits differ by no more than rounding, either channel may be the label.

    Args:
        logits: N,C,h,w.
        size: Height and width of the labels.

    Returns:
        N,H,W on the device of the logits, uint8 for up to 256 channels, else int16.
    """
    logits = at_least_float32(logits.detach())
    images, channels = logits.shape[:2]
    dtype = torch.uint8 if channels <= 256 else torch.int16
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
