"""The losses as readable functions of full-resolution logits, the reference for the fused ones.

Notation: x are the student's logits, q = softmax(x), p the teacher's softmax, b the background
(channel 0), Y the old channels (b included), C the new classes and b. Per pixel with label y:

    cross_entropy             eq. 2      -log q[y]
    unbiased_cross_entropy    eq. 3, 4   -log sum_Y q   if y is b, else -log q[y]
    partial_cross_entropy     eq. 2 to 4 -log sum of q over all channels that a pixel of y may be
    distillation              eq. 5, 6   -1/|Y| sum_Y p[c] log q^[c],  q^ = softmax of x over Y only
    unbiased_distillation     eq. 5, 7   the same with q^[b] = sum_C q and q^[c] = q[c]; in general
                                         q^[k] = sum of q over k and all that splits from k

and, for classifiers that are one sigmoid per class (LwF-MC, DKD, SSUL, STAR), with
s = sigmoid(x) and the binary cross-entropy B(t, s) = -t log s - (1 - t) log(1 - s):

    binary_cross_entropy      sum over the channels of B([c is y], s[c])
    binary_distillation       sum over the old channels of B(teacher's sigmoid, s[c])
    binary_mixed              one sum over all channels, the old ones' targets being the teacher's

Losses of labels are averaged over the pixels that are not ignored, distillations over all pixels.
`nacre.losses.strips.by_strips` computes any of them from low-resolution logits.

In all functions `logits` are the student's, N,C,H,W; `old_logits` the teacher's, N,K,H,W with
K <= C, which get no gradient; `targets` N,H,W channel numbers of any integer type; `ignore_index`
the target of ignored pixels (if all are ignored the loss is 0); `weights` N the weights of the
images; `num_pixels` the divisor of the sum over the pixels, by default the number of pixels that
are not ignored. With the number of a whole batch the losses of its parts add up to that of the
whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.labels.channels import IGNORE_INDEX, ignore_value


def cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    weights: Tensor | None = None,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Return the cross-entropy, eq. 2."""
    ignore_index = ignore_value(targets, ignore_index)
    log_q = at_least_float32(logits).log_softmax(1)
    return _mean_negative(log_q, targets, weights, num_pixels, ignore_index)


def unbiased_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    num_old: int,
    *,
    weights: Tensor | None = None,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Return the cross-entropy where background may be any old class, eq. 3 and 4.

    `num_old` is the number of old channels, background included; in step 0 it is 0 and the result
    that of `cross_entropy`.
    """
    ignore_index = ignore_value(targets, ignore_index)
    assert 0 <= num_old <= logits.shape[1], (num_old, logits.shape)
    logits = at_least_float32(logits)
    everything = logits.logsumexp(1, keepdim=True)
    background = logits[:, : max(1, num_old)].logsumexp(1, keepdim=True)
    log_q = torch.cat([background, logits[:, 1:]], dim=1) - everything
    return _mean_negative(log_q, targets, weights, num_pixels, ignore_index)


def partial_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    may_be: Tensor,
    *,
    weights: Tensor | None = None,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Return the cross-entropy where a pixel may be one of several channels, by image.

    `may_be` N,C,C is True where a pixel of the image with target y may be channel c; its diagonal
    is True. If background may be any old class, this is `unbiased_cross_entropy`, and without any
    such class `cross_entropy`. A step may use data sets that label different classes, and a label
    may cover several classes.
    """
    ignore_index = ignore_value(targets, ignore_index)
    logits = at_least_float32(logits)
    counted = targets != ignore_index
    target = (targets.long() * counted).unsqueeze(1).expand_as(logits)
    allowed = may_be.transpose(1, 2).gather(2, target.flatten(2)).view_as(logits)
    candidates = logits.masked_fill(~allowed, -torch.inf).logsumexp(1)
    by_pixel = (logits.logsumexp(1) - candidates) * counted
    total = _weigh(by_pixel, weights).sum()
    return total / pixel_count(logits, targets, num_pixels, ignore_index)


def distillation(logits: Tensor, old_logits: Tensor) -> Tensor:
    """Return the cross-entropy of the old channels to the teacher, averaged over them, eq. 5, 6."""
    num_old = _num_old(logits, old_logits)
    p = at_least_float32(old_logits.detach()).softmax(1)
    log_q = at_least_float32(logits)[:, :num_old].log_softmax(1)
    return -(p * log_q).mean()


def unbiased_distillation(
    logits: Tensor, old_logits: Tensor, new_origins: Sequence[int] | None = None
) -> Tensor:
    """Return the distillation where an origin may be any class that splits from it, eq. 5 and 7.

    `new_origins` are the old channels that the new ones split from, by default the background as in
    the paper. Without new channels the result is that of `distillation`.
    """
    num_old = _num_old(logits, old_logits)
    logits = at_least_float32(logits)
    origins = [0] * (logits.shape[1] - num_old) if new_origins is None else new_origins
    p = at_least_float32(old_logits.detach()).softmax(1)
    log_q = fold_new(logits, origins) - logits.logsumexp(1, keepdim=True)
    return -(p * log_q).mean()


def fold_new(logits: Tensor, new_origins: Sequence[int]) -> Tensor:
    """Return the log-sum-exp of each old channel and its new ones, N,K,... from N,C,..."""
    num_old = logits.shape[1] - len(new_origins)
    folded, first = [], 0
    for origin in sorted(set(new_origins)):
        children = [num_old + i for i, parent in enumerate(new_origins) if parent == origin]
        group = logits[:, [origin, *children]].logsumexp(1, keepdim=True)
        folded += [logits[:, first:origin], group]
        first = origin + 1
    return torch.cat([*folded, logits[:, first:num_old]], dim=1)


def binary_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    *,
    first: int = 0,
    positive_weight: float = 1.0,
    hidden: Tensor | None = None,
    num_background: int = 1,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Return the binary cross-entropy of one sigmoid per channel, summed over the channels.

    A pixel whose target is none of the channels is negative for all of them.

    Args:
        logits: Of some or all channels.
        targets: N,H,W.
        first: The target of the first of these channels.
        positive_weight: The weight of a pixel's own channel.
        hidden: N,C, True for channels that may be hidden in the background of an image: their terms
            are left out there, except the background's own.
        num_background: The targets below this are background.
        num_pixels: See the module.
        ignore_index: See the module.
    """
    ignore_index = ignore_value(targets, ignore_index)
    logits = at_least_float32(logits)
    one_hot = _one_hot(targets, logits, first)
    by_channel = F.binary_cross_entropy_with_logits(
        logits,
        one_hot,
        pos_weight=None if positive_weight == 1 else logits.new_full((), positive_weight),
        reduction="none",
    )
    if hidden is not None:
        is_background = ((targets >= 0) & (targets < num_background)).unsqueeze(1)
        left_out = hidden[:, :, None, None] & is_background & (one_hot == 0)
        by_channel = by_channel.masked_fill(left_out, 0)
    total = (by_channel.sum(1) * (targets != ignore_index)).sum()
    return total / pixel_count(logits, targets, num_pixels, ignore_index)


def binary_distillation(
    logits: Tensor, old_logits: Tensor, *, num_pixels: float | None = None
) -> Tensor:
    """Return the binary cross-entropy of the old channels to the teacher's sigmoids, summed."""
    num_old = _num_old(logits, old_logits)
    old_targets = at_least_float32(old_logits.detach()).sigmoid()
    old_channels = at_least_float32(logits)[:, :num_old]
    total = F.binary_cross_entropy_with_logits(old_channels, old_targets, reduction="sum")
    return total / (old_targets[:, 0].numel() if num_pixels is None else num_pixels)


def binary_mixed(
    logits: Tensor,
    targets: Tensor,
    old_logits: Tensor,
    *,
    labeled_background: bool,
    hidden: Tensor | None = None,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Return the binary cross-entropy to the labels for new channels, to the teacher for old ones.

    The background's target is the label's if `labeled_background` (LwF-MC's variant C), else the
    teacher's (variant D). `hidden` is as in `binary_cross_entropy`, for the new channels.
    """
    ignore_index = ignore_value(targets, ignore_index)
    num_old = _num_old(logits, old_logits)
    logits = at_least_float32(logits)
    from_teacher = slice(1 if labeled_background else 0, num_old)
    channel_targets = _one_hot(targets, logits, 0)
    old_targets = at_least_float32(old_logits.detach()).sigmoid()
    channel_targets[:, from_teacher] = old_targets[:, from_teacher]
    by_channel = F.binary_cross_entropy_with_logits(logits, channel_targets, reduction="none")
    if hidden is not None:
        left_out = hidden[:, num_old:, None, None] & (targets == 0).unsqueeze(1)
        new = by_channel[:, num_old:].masked_fill(left_out, 0)
        by_channel = torch.cat([by_channel[:, :num_old], new], 1)
    total = (by_channel.sum(1) * (targets != ignore_index)).sum()
    return total / pixel_count(logits, targets, num_pixels, ignore_index)


def upsample(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return logits N,C,h,w upsampled bilinearly to a height and width (`align_corners=False`)."""
    logits = at_least_float32(logits)
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=False)


def at_least_float32(logits: Tensor) -> Tensor:
    """Return logits in float32 if they are in half precision, too coarse for a log-sum-exp."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _num_old(logits: Tensor, old_logits: Tensor) -> int:
    num_old = old_logits.shape[1]
    assert num_old <= logits.shape[1], (logits.shape, old_logits.shape)
    assert logits.shape[2:] == old_logits.shape[2:], (logits.shape, old_logits.shape)
    return num_old


def _mean_negative(
    log_q: Tensor,
    targets: Tensor,
    weights: Tensor | None,
    num_pixels: float | Tensor | None,
    ignore_index: int,
) -> Tensor:
    """Return the mean of -log_q at the labels over the pixels that are not ignored."""
    reduction = "sum" if weights is None else "none"
    by_pixel = F.nll_loss(log_q, targets.long(), ignore_index=ignore_index, reduction=reduction)
    total = by_pixel if weights is None else _weigh(by_pixel, weights).sum()
    return total / pixel_count(log_q, targets, num_pixels, ignore_index)


def _weigh(by_pixel: Tensor, weights: Tensor | None) -> Tensor:
    """Return values N,H,W times the weights of the images, if given."""
    return by_pixel if weights is None else by_pixel * weights.to(by_pixel.dtype)[:, None, None]


def _one_hot(targets: Tensor, logits: Tensor, first: int) -> Tensor:
    """Return N,C,H,W: 1 in the channel of a pixel's target, else 0; channel 0 is `first`."""
    channel = targets.long() - first
    is_inside = (channel >= 0) & (channel < logits.shape[1])
    index, value = channel * is_inside, is_inside.to(logits.dtype)
    return torch.zeros_like(logits).scatter_(1, index.unsqueeze(1), value.unsqueeze(1))


def pixel_count(
    logits: Tensor,
    targets: Tensor,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Return the divisor of sums over pixels, at least 1, of the logits' type and device."""
    ignore_index = ignore_value(targets, ignore_index)
    count = (targets != ignore_index).sum() if num_pixels is None else num_pixels
    if not isinstance(count, Tensor):  # filled on the device, as a copy would wait for it
        return logits.new_full((), count if count > 0 else 1)
    count = count.to(logits)
    return torch.where(count > 0, count, 1)
