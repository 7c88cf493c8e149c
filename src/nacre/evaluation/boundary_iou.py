"""Boundary IoU (Cheng et al., CVPR 2021): the IoU of the pixels near the edges of a class.

The boundary of a class is what an erosion takes away: its pixels that are no farther than d from
a pixel of something else or from the edge of the image, d being 2 % of the image's diagonal. Large
classes are judged by their outlines, which IoU hardly sees.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.evaluation.confusion import iou
from nacre.labels.channels import ignore_value
from nacre.utils.distributed import Distributed

SHARE = 0.02
"""Width of a boundary as a share of the image's diagonal."""


class BoundaryIoU:
    """The boundary IoU of each class over all images.

    Args:
        channels: How many channels there are.
        device: Where the batches are.
    """

    def __init__(self, channels: int, device: torch.device) -> None:
        # By class: the pixels hit, of the truth and of the prediction
        self._counts = torch.zeros(channels, 3, dtype=torch.int64, device=device)

    def update(self, targets: Tensor, predicted: Tensor) -> None:
        """Count the pixels of boundaries in a batch N,H,W."""
        width = max(1, round(SHARE * math.hypot(targets.shape[-2], targets.shape[-1])))
        tested = targets != ignore_value(targets)
        for channel in range(len(self._counts)):
            held = (targets == channel) & tested, (predicted == channel) & tested
            if not any(bool(one.any()) for one in held):
                continue
            truth, found = (boundary(one, width) & tested for one in held)
            sums = (truth & found).sum(), truth.sum(), found.sum()
            self._counts[channel] += torch.stack(sums)

    def merge(self, dist: Distributed) -> None:
        """Add what other processes counted."""
        self._counts = dist.sum(self._counts)

    def compute(self) -> list[float | None]:
        """Return the boundary IoU of each class, None where the truth never contains it."""
        return [iou(hit, truth, found) for hit, truth, found in self._counts.tolist()]


def boundary(held: Tensor, width: int) -> Tensor:
    """Return which pixels of a class, N,H,W, are no farther than `width` from what is not."""
    others = F.pad((~held)[:, None].float(), [width] * 4, value=1.0)
    near = F.max_pool2d(others, (2 * width + 1, 1), stride=1)
    near = F.max_pool2d(near, (1, 2 * width + 1), stride=1)
    return held & (near[:, 0] > 0)
