"""Label-guided distillation (LGKD): the teacher's background goes to the class the label names.

The student's softmax q is over all channels. The teacher's p is over the old ones, 0 on the new
ones; where the label names a new class y, what the teacher calls background is y, so that its
background's probability is moved there. Per pixel with target y:

    p'[b] = 0, p'[y] = p[b]   if y is new;   p' = p elsewhere
    loss  = - weight(y) sum over all channels of p'[c] log q[c]

where weight(y) is that of pixels with a new class or that of all other pixels. The sum over the
channels is not divided by their number; the mean is over the pixels that are not ignored.

Unlike the unbiased distillation (eq. 7), which lets a new class share the teacher's background
anywhere, this one pushes new classes down wherever the label does not name them, and unlike the
plain one (eq. 6) it sees all channels. With the weight 0 for new classes and on pixels labelled
background alone it is the first term of ALIFE.

Logits have the size of the targets. LGKD stays at the resolution of the logits: with targets from
`nearest_targets` nothing is upsampled.
"""

from __future__ import annotations

import torch
from torch import Tensor

from nacre.labels.channels import IGNORE_INDEX, ignore_value
from nacre.losses.reference import at_least_float32, pixel_count


def label_guided_distillation(
    logits: Tensor,
    old_logits: Tensor,
    targets: Tensor,
    *,
    old_weight: float = 1.0,
    new_weight: float = 1.0,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Cross-entropy of all channels to the teacher's, guided by the labels.

    Args:
        logits: the student's, N,C,H,W.
        old_logits: the teacher's, N,K,H,W with K <= C; no gradient flows into them.
        targets: N,H,W, channel numbers of any integer type.
        old_weight: weight of pixels labelled background (or with any old target).
        new_weight: weight of pixels labelled with a new class.
        num_pixels: what the sum over the pixels is divided by, instead of the number of pixels that
            are not ignored.
        ignore_index: the target of pixels that do not count.

    Returns:
        The mean over the pixels that are not ignored; 0 if all are.
    """
    ignore_index = ignore_value(targets, ignore_index)
    logits = at_least_float32(logits)
    guided = guided_probabilities(old_logits, targets, logits.shape[1], ignore_index=ignore_index)
    by_pixel = -(guided.to(logits.dtype) * logits.log_softmax(1)).sum(1)
    is_new = targets >= old_logits.shape[1]
    weights = torch.where(is_new, new_weight, old_weight).to(logits.dtype)
    total = (by_pixel * weights * (targets != ignore_index)).sum()
    return total / pixel_count(logits, targets, num_pixels, ignore_index)


def guided_probabilities(
    old_logits: Tensor, targets: Tensor, num_classes: int, *, ignore_index: int = IGNORE_INDEX
) -> Tensor:
    """The teacher's softmax over all channels, its background moved to the class of the label.

    Args:
        old_logits: the teacher's, N,K,H,W.
        targets: N,H,W, channel numbers of any integer type.
        num_classes: all channels, N,num_classes,H,W is returned.
        ignore_index: the target of pixels that do not count; they keep the teacher's softmax.
    """
    ignore_index = ignore_value(targets, ignore_index)
    p = at_least_float32(old_logits.detach()).softmax(1)
    num_old = p.shape[1]
    guided = torch.cat([p, p.new_zeros(len(p), num_classes - num_old, *p.shape[2:])], 1)
    is_new = ((targets >= num_old) & (targets != ignore_index)).unsqueeze(1)
    moved = guided[:, :1] * is_new
    guided[:, :1] -= moved
    return guided.scatter_add_(1, targets.long().unsqueeze(1) * is_new, moved)


def nearest_targets(targets: Tensor, size: tuple[int, int]) -> Tensor:
    """Targets N,H,W at a smaller size: of each cell the one at its top left corner."""
    rows, columns = (
        torch.arange(small, device=targets.device) * large // small
        for small, large in zip(size, targets.shape[1:], strict=True)
    )
    return targets[:, rows.unsqueeze(1), columns]
