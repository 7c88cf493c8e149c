"""The losses straight from low-resolution logits, with their gradients, in one pass over strips.

`fused_losses` and `fused_binary_losses` give what upsampling to the size of the labels and then the
functions of `nacre.losses.reference` give, in value and gradient, in a small part of the time and
memory. The logits are upsampled a few rows at a time (`nacre.losses.strips`), a kernel
(`nacre.losses.kernels`) turns a strip into the sums of its losses and their closed-form gradients,
and only low-resolution gradients are kept, one for each loss, which the backward pass scales and
adds.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nacre.labels.channels import IGNORE_INDEX, ignore_value
from nacre.losses.device_kernels import PlainKernel
from nacre.losses.kernels import OldTargets, SigmoidKernel, SoftmaxKernel, StripKernel, Variant
from nacre.losses.reference import (
    at_least_float32,
    cross_entropy,
    distillation,
    partial_cross_entropy,
    pixel_count,
    unbiased_cross_entropy,
    unbiased_distillation,
)
from nacre.losses.strips import StripGradient, StripUpsampler, scale_gradients, sum_strips

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
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> dict[str, Tensor]:
    """Cross-entropy and distillation, plain or unbiased, eq. 2 to 7.

    A kernel computes what the paper has: background may be any old class, new classes split from
    the background. Other origins and what pixels may be by image go through `nacre.losses.strips`.

    Args:
        logits: the student's, N,C,h,w.
        targets: N,H,W, channel numbers of any integer type.
        old_logits: the teacher's, N,K,h,w (h and w may differ from the student's); needed for a
            distillation. No gradient flows into them.
        ce: which cross-entropy, if any.
        kd: which distillation, if any.
        num_old: channels that were there before the step, background included; the teacher's K if
            not given.
        may_be: N,C,C, bool: what a pixel of each target may be, by image, for the unbiased
            cross-entropy; if not given, background may be any old class.
        new_origins: the old channel that each new one splits from, for the unbiased distillation;
            the background if not given.
        num_pixels: what the sum of the cross-entropy over the pixels is divided by, instead of the
            number of pixels that are not ignored.
        ignore_index: the label of pixels that do not count in the cross-entropy.

    Returns:
        `ce` and `kd` as far as asked for, not weighted; each may be weighted and added at will,
        but differentiated only once.
    """
    ignore_index = ignore_value(targets, ignore_index)
    says_what_hides = old_logits is not None or num_old is not None or may_be is not None
    assert ce != "unbiased" or says_what_hides, "the unbiased ce needs num_old or old_logits"
    assert may_be is None or ce == "unbiased", "what may be is a matter of the unbiased ce"
    num_old = _num_old(logits, old_logits, num_old)
    assert ce or kd, "no loss was asked for"
    assert kd is None or old_logits is not None, "a distillation needs old_logits"
    logits = at_least_float32(logits)
    teacher = _teacher(old_logits, logits) if kd else None
    splits = kd == "unbiased" and any(new_origins or ())
    if may_be is not None or splits:
        divisors = {"ce": pixel_count(logits, targets, num_pixels, ignore_index)} if ce else {}
        if kd:
            divisors["kd"] = logits.new_full((), targets.numel() * num_old)
        terms = _Terms(ce, kd, num_old, new_origins, ignore_index)
        by_image = () if may_be is None else (may_be,)
        return _divide(sum_strips(terms, logits, teacher, targets, *by_image), divisors)
    kernel: StripKernel = SoftmaxKernel(ce=ce, kd=kd, num_old=num_old, ignore_index=ignore_index)
    # The kernel works in bits; the divisors bring its results back to nats.
    bits = _BITS
    if logits.is_cuda and "unbiased" not in (ce, kd):
        kernel, bits = PlainKernel(ce is not None, kd is not None, num_old, ignore_index), 1.0
    else:
        logits = logits * bits
        teacher = None if teacher is None else teacher * bits
    divisors = {}
    if ce:
        divisors["ce"] = pixel_count(logits, targets, num_pixels, ignore_index) * bits
    if kd:
        divisors["kd"] = logits.new_full((), targets.numel() * num_old * bits)
    return _losses(kernel, logits, teacher, targets, divisors)


@dataclass(frozen=True)
class _Terms:
    """Cross-entropy and distillation of a strip by the reference functions, as sums over pixels."""

    ce: Variant | None
    kd: Variant | None
    num_old: int
    new_origins: Sequence[int] | None
    ignore_index: int

    def __call__(
        self, x: Tensor, z: Tensor | None, targets: Tensor, may_be: Tensor | None = None
    ) -> list[Tensor]:
        """Return the sums, as `StripLoss` says."""
        terms = [] if self.ce is None else [self._cross_entropy(x, targets, may_be)]
        if z is not None:
            unbiased = self.kd == "unbiased"
            mean = unbiased_distillation(x, z, self.new_origins) if unbiased else distillation(x, z)
            terms.append(mean * z.numel())
        return terms

    def _cross_entropy(self, x: Tensor, targets: Tensor, may_be: Tensor | None) -> Tensor:
        sums: Any = {"num_pixels": 1, "ignore_index": self.ignore_index}
        if may_be is not None:
            return partial_cross_entropy(x, targets, may_be, **sums)
        if self.ce == "unbiased":
            return unbiased_cross_entropy(x, targets, self.num_old, **sums)
        return cross_entropy(x, targets, **sums)


def fused_binary_losses(
    logits: Tensor,
    targets: Tensor,
    old_logits: Tensor | None = None,
    *,
    old_targets: OldTargets = "labels",
    distil: bool = False,
    hidden: Tensor | None = None,
    num_pixels: float | Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> dict[str, Tensor]:
    """Binary cross-entropy and distillation of one sigmoid per channel (LwF-MC).

    Args:
        logits: the student's, N,C,h,w.
        targets: N,H,W, channel numbers of any integer type.
        old_logits: the teacher's, N,K,h,w (h and w may differ from the student's); needed for a
            distillation and for targets of the teacher's. No gradient flows into them.
        old_targets: of the old channels in the cross-entropy: the labels', the teacher's (variant
            D), or the teacher's but the labels' for background (variant C).
        distil: the distillation on top of the cross-entropy to labels.
        hidden: N,C, bool: which channels may hide in the background of an image, so that their
            labels are not known there; none if not given.
        num_pixels: what the sum of the cross-entropy over the pixels is divided by, instead of the
            number of pixels that are not ignored.
        ignore_index: the label of pixels that do not count in the cross-entropy.

    Returns:
        `bce` and, if asked for, `kd`, not weighted; each may be weighted and added at will, but
        differentiated only once.
    """
    ignore_index = ignore_value(targets, ignore_index)
    num_old = _num_old(logits, old_logits, None)
    needs_teacher = distil or old_targets != "labels"
    assert not needs_teacher or old_logits is not None, "these losses need old_logits"
    assert not distil or old_targets == "labels", "the teacher is in the targets already"
    logits = at_least_float32(logits)
    divisors = {"bce": pixel_count(logits, targets, num_pixels, ignore_index)}
    if distil:
        divisors["kd"] = logits.new_full((), targets.numel())
    kernel = SigmoidKernel(
        old_targets=old_targets, distil=distil, num_old=num_old, ignore_index=ignore_index
    )
    teacher = _teacher(old_logits, logits) if needs_teacher else None
    left_out = None if hidden is None else hidden.to(logits.dtype)
    return _losses(kernel, logits, teacher, targets, divisors, left_out)


def _num_old(logits: Tensor, old_logits: Tensor | None, num_old: int | None) -> int:
    if old_logits is not None:
        assert num_old in (None, old_logits.shape[1]), (num_old, old_logits.shape)
        num_old = old_logits.shape[1]
    num_old = max(1, num_old or 0)  # the kernels count b among the old ones in step 0, too
    assert 1 <= num_old <= logits.shape[1], (num_old, logits.shape)
    return num_old


def _teacher(old_logits: Tensor | None, logits: Tensor) -> Tensor | None:
    return None if old_logits is None else old_logits.detach().to(logits.dtype)


def _losses(
    kernel: StripKernel,
    logits: Tensor,
    old_logits: Tensor | None,
    targets: Tensor,
    divisors: dict[str, Tensor],
    by_image: Tensor | None = None,
) -> dict[str, Tensor]:
    """The kernel's sums over all pixels, each divided by its divisor.

    What a kernel is told of an image's channels, N,C, is handed on to it line by line.
    """
    sums = _StripSums.apply(kernel, logits, old_logits, targets, by_image)  # type: ignore[no-untyped-call]
    return _divide(sums, divisors)


def _divide(sums: Sequence[Tensor], divisors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {
        name: total / divisor for total, (name, divisor) in zip(sums, divisors.items(), strict=True)
    }


class _StripSums(torch.autograd.Function):
    """Sums and gradients in one go; the backward pass only scales what the forward pass found."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: StripKernel,
        logits: Tensor,
        old_logits: Tensor | None,
        targets: Tensor,
        by_image: Tensor | None,
    ) -> tuple[Tensor, ...]:
        with_gradients = ctx.needs_input_grad[1]
        # Autocast would take the matrix products to half precision.
        with torch.autocast(logits.device.type, enabled=False):
            totals, gradients = _run(kernel, logits, old_logits, targets, with_gradients, by_image)
        ctx.save_for_backward(*gradients)
        return tuple(totals)

    @staticmethod
    def backward(ctx: Any, *scales: Tensor) -> tuple[Tensor | None, ...]:
        return None, scale_gradients(ctx.saved_tensors, scales), None, None, None


def _run(
    kernel: StripKernel,
    logits: Tensor,
    old_logits: Tensor | None,
    targets: Tensor,
    with_gradients: bool,
    by_image: Tensor | None,
) -> tuple[list[Tensor], list[Tensor]]:
    """The terms' sums over all pixels and, if wanted, their gradients, N,C,h,w each."""
    size = (targets.shape[1], targets.shape[2])
    student = StripUpsampler(logits, size)
    teacher = None if old_logits is None else StripUpsampler(old_logits, size)
    totals = [logits.new_zeros(()) for _ in range(kernel.terms)]
    gradients = [StripGradient(student) for _ in totals] if with_gradients else []
    scratch = logits.new_empty(0)
    for strip in student.strips():
        x = student.lines(strip)
        z = None if teacher is None else teacher.lines(strip)
        scratch.resize_(x.shape)
        extra = () if by_image is None else (strip.repeat(by_image),)
        values, found = kernel(x, z, strip.lines(targets).long(), scratch, with_gradients, *extra)
        for total, value in zip(totals, values, strict=True):
            total.add_(value)
        for gradient, part in zip(gradients, found, strict=True):
            gradient.add(part, strip)
    return totals, [gradient.total() for gradient in gradients]
