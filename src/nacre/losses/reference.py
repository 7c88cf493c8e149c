"""The losses as readable functions of full-resolution logits: the reference for everything else.

Notation: x are the student's logits, q = softmax(x), p the teacher's softmax, b the background
(channel 0), Y the old channels (b included), C the new classes and b. Per pixel with label y:

    cross_entropy             eq. 2      -log q[y]
    unbiased_cross_entropy    eq. 3, 4   -log sum_Y q   if y is b, else -log q[y]
    distillation              eq. 5, 6   -1/|Y| sum_Y p[c] log q^[c],  q^ = softmax of x over Y only
    unbiased_distillation     eq. 5, 7   the same with q^[b] = sum_C q and q^[c] = q[c]

and, for classifiers that are one sigmoid per class (LwF-MC), with s = sigmoid(x) and the binary
cross-entropy B(t, s) = -t log s - (1 - t) log(1 - s):

    binary_cross_entropy      sum over all channels of B([c is y], s[c])
    binary_distillation       sum over the old channels of B(teacher's sigmoid, s[c])
    binary_mixed              one sum over all channels, the old ones' targets being the teacher's

Losses of labels are averaged over the pixels that are not ignored, distillations over all pixels.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.scenarios.classes import IGNORED


def cross_entropy(
    logits: Tensor, labels: Tensor, *, pixels: float | Tensor | None = None, ignored: int = IGNORED
) -> Tensor:
    """Cross-entropy, eq. 2.

    Args:
        logits: N,C,H,W.
        labels: N,H,W, channel numbers of any integer type.
        pixels: what the sum over the pixels is divided by, instead of the number of pixels that
            are not ignored. With the count of a whole batch here, the losses of its parts add up
            to the loss of the whole.
        ignored: the label of pixels that do not count.

    Returns:
        The mean over the pixels that are not ignored; 0 if all are.
    """
    log_q = at_least_float32(logits).log_softmax(1)
    return _mean_negative(log_q, labels, pixels, ignored)


def unbiased_cross_entropy(
    logits: Tensor,
    labels: Tensor,
    known: int,
    *,
    pixels: float | Tensor | None = None,
    ignored: int = IGNORED,
) -> Tensor:
    """Cross-entropy where background may be any old class, eq. 3 and 4.

    Args:
        logits: N,C,H,W.
        labels: N,H,W, channel numbers of any integer type.
        known: number of old channels, background included; with 1 nothing is old and the result
            is that of `cross_entropy`.
        pixels: as in `cross_entropy`.
        ignored: the label of pixels that do not count.

    Returns:
        The mean over the pixels that are not ignored; 0 if all are.
    """
    assert 1 <= known <= logits.shape[1], (known, logits.shape)
    logits = at_least_float32(logits)
    everything = logits.logsumexp(1, keepdim=True)
    background_or_old = logits[:, :known].logsumexp(1, keepdim=True)
    log_q = torch.cat([background_or_old, logits[:, 1:]], dim=1) - everything
    return _mean_negative(log_q, labels, pixels, ignored)


def distillation(logits: Tensor, old_logits: Tensor) -> Tensor:
    """Cross-entropy of the old channels among themselves to the teacher, eq. 5 and 6.

    Args:
        logits: the student's, N,C,H,W.
        old_logits: the teacher's, N,K,H,W with K <= C; no gradient flows into them.

    Returns:
        The mean over all pixels and over the K old channels.
    """
    known = _known(logits, old_logits)
    p = at_least_float32(old_logits.detach()).softmax(1)
    log_q = at_least_float32(logits)[:, :known].log_softmax(1)
    return -(p * log_q).mean()


def unbiased_distillation(logits: Tensor, old_logits: Tensor) -> Tensor:
    """Distillation where the teacher's background may be any new class, eq. 5 and 7.

    Args:
        logits: the student's, N,C,H,W.
        old_logits: the teacher's, N,K,H,W with K <= C; no gradient flows into them. With K = C
            nothing is new and the result is that of `distillation`.

    Returns:
        The mean over all pixels and over the K old channels.
    """
    known = _known(logits, old_logits)
    logits = at_least_float32(logits)
    everything = logits.logsumexp(1, keepdim=True)
    background_or_new = torch.cat([logits[:, :1], logits[:, known:]], 1).logsumexp(1, keepdim=True)
    p = at_least_float32(old_logits.detach()).softmax(1)
    log_q = torch.cat([background_or_new, logits[:, 1:known]], dim=1) - everything
    return -(p * log_q).mean()


def binary_cross_entropy(
    logits: Tensor, labels: Tensor, *, pixels: float | Tensor | None = None, ignored: int = IGNORED
) -> Tensor:
    """Binary cross-entropy of one sigmoid per channel, summed over the channels.

    Args:
        logits: N,C,H,W.
        labels: N,H,W, channel numbers of any integer type.
        pixels: as in `cross_entropy`.
        ignored: the label of pixels that do not count.

    Returns:
        The mean over the pixels that are not ignored; 0 if all are.
    """
    logits = at_least_float32(logits)
    targets = _one_hot(labels, logits, ignored)
    return _binary_mean(logits, targets, labels, pixels, ignored)


def binary_distillation(logits: Tensor, old_logits: Tensor) -> Tensor:
    """Binary cross-entropy of the old channels to the teacher's sigmoids, summed over them.

    Args:
        logits: the student's, N,C,H,W.
        old_logits: the teacher's, N,K,H,W with K <= C; no gradient flows into them.

    Returns:
        The mean over all pixels.
    """
    known = _known(logits, old_logits)
    targets = at_least_float32(old_logits.detach()).sigmoid()
    old_channels = at_least_float32(logits)[:, :known]
    return known * F.binary_cross_entropy_with_logits(old_channels, targets)


def binary_mixed(
    logits: Tensor,
    labels: Tensor,
    old_logits: Tensor,
    *,
    labelled_background: bool,
    pixels: float | Tensor | None = None,
    ignored: int = IGNORED,
) -> Tensor:
    """Binary cross-entropy to the labels for new channels, to the teacher's sigmoids for old ones.

    Args:
        logits: the student's, N,C,H,W.
        labels: N,H,W, channel numbers of any integer type.
        old_logits: the teacher's, N,K,H,W with K <= C; no gradient flows into them.
        labelled_background: background's target is the label's (LwF-MC's variant C), not the
            teacher's (variant D).
        pixels: as in `cross_entropy`.
        ignored: the label of pixels that do not count.

    Returns:
        The mean over the pixels that are not ignored of the sum over channels; 0 if all are.
    """
    known = _known(logits, old_logits)
    logits = at_least_float32(logits)
    first = 1 if labelled_background else 0
    targets = _one_hot(labels, logits, ignored)
    targets[:, first:known] = at_least_float32(old_logits.detach()).sigmoid()[:, first:]
    return _binary_mean(logits, targets, labels, pixels, ignored)


def upsample(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Bilinear interpolation of N,C,h,w logits to the given height and width.

    Pixel centres are kept in place (`align_corners=False`).
    """
    logits = at_least_float32(logits)
    return F.interpolate(logits, size=size, mode="bilinear", align_corners=False)


def at_least_float32(logits: Tensor) -> Tensor:
    """Half precision is too coarse for a log-sum-exp; float32 and float64 stay what they are."""
    return logits.float() if logits.dtype in (torch.float16, torch.bfloat16) else logits


def _known(logits: Tensor, old_logits: Tensor) -> int:
    known = old_logits.shape[1]
    assert known <= logits.shape[1], (logits.shape, old_logits.shape)
    assert logits.shape[2:] == old_logits.shape[2:], (logits.shape, old_logits.shape)
    return known


def _mean_negative(
    log_q: Tensor, labels: Tensor, pixels: float | Tensor | None, ignored: int
) -> Tensor:
    """Mean of -log_q at the labels over the pixels that are not ignored."""
    total = F.nll_loss(log_q, labels.long(), ignore_index=ignored, reduction="sum")
    return total / pixel_count(log_q, labels, pixels, ignored)


def _binary_mean(
    logits: Tensor, targets: Tensor, labels: Tensor, pixels: float | Tensor | None, ignored: int
) -> Tensor:
    """Binary cross-entropy, summed over channels, mean over the pixels that are not ignored."""
    by_channel = F.binary_cross_entropy_with_logits(logits, targets, reduction="none")
    total = (by_channel.sum(1) * (labels != ignored)).sum()
    return total / pixel_count(logits, labels, pixels, ignored)


def _one_hot(labels: Tensor, logits: Tensor, ignored: int) -> Tensor:
    """Targets in the shape of the logits; all 0 where the label is ignored."""
    counted = (labels != ignored).unsqueeze(1)
    index = labels.long().unsqueeze(1) * counted
    return torch.zeros_like(logits).scatter_(1, index, counted.to(logits.dtype))


def pixel_count(
    logits: Tensor, labels: Tensor, pixels: float | Tensor | None, ignored: int
) -> Tensor:
    """What sums over pixels are divided by: 1 in place of 0, so that an empty sum gives 0."""
    count = (labels != ignored).sum() if pixels is None else pixels
    count = torch.as_tensor(count, dtype=logits.dtype, device=logits.device)
    return torch.where(count > 0, count, 1)
