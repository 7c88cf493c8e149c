"""Cross-entropy and distillation from low-resolution logits, with gradients in closed form.

`fused_losses` equals upsampling to the size of the labels followed by the functions of
`nacre.losses.reference`, in value and gradient, but takes a small part of the time and memory. As
most methods use it, its gradients are derived by hand. The channels are three groups: the
background b, the other old channels, the new ones. Let L, L_Y and L_C be the log-sum-exps of all
channels, of the old ones and b, of the new ones and b; q, q_Y and q_C the softmaxes over the same
channels. Then, per pixel with label y,

    CE            L - x[y]                                   gradient q - onehot(y)
    unbiased CE   if y is b: L - L_Y, else as CE             gradient q - q_Y, else as CE
    KD            L_Y - sum_Y p x                            gradient q_Y - p
    unbiased KD   L - sum_(Y without b) p x - p[b] L_C       gradient q - p (without b) - p[b] q_C

The exponentials e of a group are relative to the group's greatest logit m, so that q, q_Y and q_C
are e times exp(m - L), exp(m - L_Y) or exp(m - L_C). So a gradient is e times one factor per pixel
and group, minus p or a one-hot vector, and nothing overflows or divides by 0. Everything is in
bits: logits times log2(e), and powers and logarithms of 2, which take a third of the time on CPUs.

If the channels that b may be differ between images, or new channels split from other channels than
b, autograd replaces the kernel inside each strip (`by_strips`); also on CUDA if no loss is
unbiased, as torch's own softmax needs a single pass there.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal

import torch
from torch import Tensor

from nacre.labels.channels import IGNORE_INDEX, ignore_value
from nacre.losses.reference import (
    at_least_float32,
    cross_entropy,
    distillation,
    partial_cross_entropy,
    pixel_count,
    unbiased_cross_entropy,
    unbiased_distillation,
)
from nacre.losses.strips import by_strips, sum_strips

Variant = Literal["plain", "unbiased"]

_BITS = math.log2(math.e)


def fused_losses(
    logits: Tensor,
    targets: Tensor,
    old_logits: Tensor | None = None,
    *,
    ce: Variant | None = "plain",
    kd: Variant | None = None,
    num_old: int | None = None,
    may_be: Tensor | None = None,
    new_origins: Sequence[int] | None = None,
    weights: Tensor | None = None,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> dict[str, Tensor]:
    """Return cross-entropy and distillation, plain or unbiased, eq. 2 to 7.

    The other arguments are as in `nacre.losses.reference`.

    Args:
        logits: The student's, N,C,h,w.
        targets: N,H,W.
        old_logits: The teacher's, N,K,h,w (h and w may differ from the student's), for `kd`.
        ce: The variant of the cross-entropy, or None.
        kd: The variant of the distillation, or None.
        num_old: The number of old channels; by default the teacher's K.
        may_be: N,C,C, for the unbiased cross-entropy; by default background may be any old class.

    Returns:
        The losses `ce` and `kd`, not weighted. Their weighted sum can be differentiated once.
    """
    ignore_index = ignore_value(targets, ignore_index)
    knows_old = old_logits is not None or num_old is not None or may_be is not None
    assert ce != "unbiased" or knows_old, "the unbiased ce needs num_old or old_logits"
    assert may_be is None or ce == "unbiased", "may_be is for the unbiased ce"
    assert ce or kd, "there is no loss to compute"
    assert kd is None or old_logits is not None, "a distillation needs old_logits"
    if old_logits is not None:
        assert num_old in (None, old_logits.shape[1]), (num_old, old_logits.shape)
        num_old = old_logits.shape[1]
    num_old = max(1, num_old or 0)  # for the kernel b is an old channel in step 0, too
    assert num_old <= logits.shape[1], (num_old, logits.shape)
    logits = at_least_float32(logits)
    teacher = old_logits.detach().to(logits.dtype) if kd and old_logits is not None else None
    divisors = {}
    if ce:
        divisors["ce"] = pixel_count(logits, targets, num_pixels, ignore_index)
    if kd:
        divisors["kd"] = logits.new_full((), targets.numel() * num_old)
    splits = kd == "unbiased" and any(new_origins or ())
    is_plain = "unbiased" not in (ce, kd)
    if may_be is not None or splits or (logits.is_cuda and is_plain):
        terms = _reference_terms(ce, kd, num_old, new_origins, ignore_index)
        sums = by_strips(terms, logits, teacher, targets, weights, may_be)
        return {name: total / divisors[name] for name, total in sums.items()}
    kernel = SoftmaxKernel(ce, kd, num_old, ignore_index)
    teacher = None if teacher is None else teacher * _BITS
    totals = sum_strips(kernel, logits * _BITS, teacher, targets, weights)
    pairs = zip(divisors.items(), totals, strict=True)
    return {name: total / (divisor * _BITS) for (name, divisor), total in pairs}


def _reference_terms(
    ce: Variant | None,
    kd: Variant | None,
    num_old: int,
    new_origins: Sequence[int] | None,
    ignore_index: int,
) -> Callable[..., dict[str, Tensor]]:
    """Return a function that computes the losses by the reference, as sums over pixels."""
    sums: Any = {"num_pixels": 1, "ignore_index": ignore_index}

    def terms(
        x: Tensor, z: Tensor | None, y: Tensor, weights: Tensor | None, may_be: Tensor | None
    ) -> dict[str, Tensor]:
        losses = {}
        if ce and may_be is not None:
            losses["ce"] = partial_cross_entropy(x, y, may_be, weights=weights, **sums)
        elif ce == "unbiased":
            losses["ce"] = unbiased_cross_entropy(x, y, num_old, weights=weights, **sums)
        elif ce:
            losses["ce"] = cross_entropy(x, y, weights=weights, **sums)
        if z is not None:
            unbiased = kd == "unbiased"
            mean = unbiased_distillation(x, z, new_origins) if unbiased else distillation(x, z)
            losses["kd"] = mean * z.numel()
        return losses

    return terms


class SoftmaxKernel:
    """A `StripKernel` for cross-entropy, distillation or both, in bits."""

    def __init__(
        self, ce: Variant | None, kd: Variant | None, num_old: int, ignore_index: int
    ) -> None:
        self.ce, self.kd, self.num_old, self.ignore_index = ce, kd, num_old, ignore_index
        self._scratch: Tensor | None = None

    def __call__(
        self,
        x: Tensor,
        z: Tensor | None,
        targets: Tensor,
        gradients: bool,
        *by_image: Tensor | None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return losses and gradients; the gradients are in x and in a buffer that is reused."""
        (weights,) = by_image
        if self._scratch is None:
            self._scratch = x.new_empty(0)
        scratch = self._scratch.resize_(x.shape)
        label = _Label(x, targets.long(), weights, self.ignore_index)
        minus_p = None if z is None else _minus_softmax2_(z)
        minus_p_times_x = None if minus_p is None else self._dot(x, minus_p, scratch)
        student = _Exponentials(x, self.num_old, gradients)
        values, gradients_of_terms = [], []
        if self.ce:
            values.append(self._cross_entropy(student, label))
            if gradients:
                room = scratch if self.kd else x
                gradients_of_terms.append(self._cross_entropy_gradient(student, label, room))
        if minus_p is not None and minus_p_times_x is not None:
            values.append(self._distillation(student, minus_p[:, 0], minus_p_times_x))
            if gradients:
                gradients_of_terms.append(self._distillation_gradient(student, minus_p))
        return values, gradients_of_terms

    def _dot(self, x: Tensor, minus_p: Tensor, scratch: Tensor) -> Tensor:
        """Return the sum of -p x over the old channels, without b in the unbiased loss."""
        channels = slice(1 if self.kd == "unbiased" else 0, self.num_old)
        room = scratch[:, channels]
        return torch.mul(x[:, channels], minus_p[:, channels], out=room).sum(1)

    def _cross_entropy(self, student: _Exponentials, label: _Label) -> Tensor:
        target = label.logit
        if self.ce == "unbiased":
            target = torch.lerp(target, student.log_old, label.is_background)
        return ((student.log_all - target) * label.counts).sum()

    def _cross_entropy_gradient(
        self, student: _Exponentials, label: _Label, room: Tensor
    ) -> Tensor:
        b, old, new = (factor * label.counts for factor in student.factors_of_all)
        hits = label.counts
        if self.ce == "unbiased":
            b -= label.background_counts * student.factor(0, student.log_old)
            old -= label.background_counts * student.factor(1, student.log_old)
            hits = hits - label.background_counts
        student.multiply(b, old, new, out=room)
        return room.scatter_add_(1, label.index, hits.neg().unsqueeze(1))

    def _distillation(self, student: _Exponentials, minus_p_b: Tensor, dot: Tensor) -> Tensor:
        if self.kd == "plain":
            return (student.log_old + dot).sum()
        return (student.log_all + dot + minus_p_b * student.log_new).sum()

    def _distillation_gradient(self, student: _Exponentials, minus_p: Tensor) -> Tensor:
        """Return the gradient, which overwrites the exponentials."""
        minus_p_b = minus_p[:, 0]
        if self.kd == "plain":
            b = student.factor(0, student.log_old) + minus_p_b
            old, new = student.factor(1, student.log_old), None
        else:
            b, old, new = student.factors_of_all
            b = b + minus_p_b * student.factor(0, student.log_new)
            new = new + minus_p_b * student.factor(2, student.log_new)
        gradient = student.exponentials
        student.multiply(b, old, new, out=gradient, add_to_old=minus_p[:, 1:])
        return gradient


class _Exponentials:
    """The exponentials of a strip, which overwrite its logits, and their log-sum-exps."""

    def __init__(self, x: Tensor, num_old: int, gradients: bool) -> None:
        background = x[:, 0].clone()
        old_peak, log_old = _exponentiate_(x[:, 1:num_old])
        new_peak, log_new = _exponentiate_(x[:, num_old:])
        self.exponentials = x
        self.num_old = num_old
        self.peaks = (background, old_peak, new_peak)
        self.log_old = torch.logaddexp2(background, log_old)
        self.log_new = torch.logaddexp2(background, log_new)
        self.log_all = torch.logaddexp2(self.log_old, log_new)
        if gradients:
            self.factors_of_all = [self.factor(group, self.log_all) for group in range(3)]

    def factor(self, group: int, log_sum: Tensor) -> Tensor:
        """Return the factor that turns a group's exponentials (1 for b) into probabilities."""
        return (self.peaks[group] - log_sum).exp2_()

    def multiply(
        self,
        b: Tensor,
        old: Tensor,
        new: Tensor | None,
        *,
        out: Tensor,
        add_to_old: Tensor | None = None,
    ) -> None:
        """Multiply each group's exponentials by a factor per pixel (None: 0), and add a tensor."""
        out[:, 0] = b
        exponentials, into = self.exponentials[:, 1 : self.num_old], out[:, 1 : self.num_old]
        if add_to_old is None:
            torch.mul(exponentials, old.unsqueeze(1), out=into)
        else:
            torch.addcmul(add_to_old, exponentials, old.unsqueeze(1), out=into)
        exponentials, into = self.exponentials[:, self.num_old :], out[:, self.num_old :]
        if new is None:
            into.zero_()
        else:
            torch.mul(exponentials, new.unsqueeze(1), out=into)


class _Label:
    """The labels of a strip, with booleans as 1 and 0."""

    def __init__(
        self, x: Tensor, targets: Tensor, weights: Tensor | None, ignore_index: int
    ) -> None:
        counted = targets != ignore_index
        self.index = (targets * counted).unsqueeze(1)
        self.logit = x.gather(1, self.index).squeeze(1)
        self.counts = counted.to(x.dtype)
        self.is_background = (targets == 0).to(x.dtype).mul_(self.counts)
        self.background_counts = self.is_background
        if weights is not None:
            weights = weights.to(x.dtype).unsqueeze(1)
            self.counts = self.counts * weights
            self.background_counts = self.is_background * weights


def _exponentiate_(group: Tensor) -> tuple[Tensor, Tensor]:
    """Replace logits by 2^(logit - greatest); return the greatest and the log-sum."""
    if group.shape[1] == 0:
        nothing = group.new_zeros(group.shape[0], group.shape[2])
        return nothing, nothing - torch.inf
    peak = group.amax(1)
    group.sub_(peak.unsqueeze(1)).exp2_()
    return peak, group.sum(1).log2_().add_(peak)


def _minus_softmax2_(logits: Tensor) -> Tensor:
    """Replace logits in bits by minus their softmax over the channels."""
    logits.sub_(logits.amax(1, keepdim=True)).exp2_()
    return logits.div_(logits.sum(1, keepdim=True).neg_())
