"""Any loss of full-resolution logits, straight from low-resolution ones, strip by strip.

The loss is a readable function such as those of `nacre.losses.reference`; autograd differentiates
it inside each strip of upsampled rows, and only low-resolution gradients are kept. So logits of
full resolution never exist, and what is rare (several origins, data sets that label different
classes) needs no gradient derived by hand. The common losses have one, in `nacre.losses.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from nacre.ops.strip_upsample import StripGradient, StripUpsampler

StripLoss = Callable[..., list[Tensor]]
"""Takes the lines of a strip as images of one row: the student's logits L,C,1,W, the teacher's (or
None), targets L,1,W, and L,... of what is said by image. Returns sums over the pixels."""


def sum_strips(
    loss: StripLoss,
    logits: Tensor,
    old_logits: Tensor | None,
    targets: Tensor,
    *by_image: Tensor,
) -> tuple[Tensor, ...]:
    """Return the sums over all pixels of the terms of a loss.

    Args:
        loss: what to compute of a strip.
        logits: the student's, N,C,h,w, in float32 at least.
        old_logits: the teacher's, N,K,h,w, where the loss has one; no gradient flows into them.
        targets: N,H,W.
        by_image: N,... each, what the loss is told of the images.
    """
    sums: tuple[Tensor, ...] = _StripSums.apply(loss, logits, old_logits, targets, *by_image)  # type: ignore[no-untyped-call]
    return sums


class _StripSums(torch.autograd.Function):
    """Sums and gradients in one go; the backward pass only scales what the forward pass found."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: StripLoss,
        logits: Tensor,
        old_logits: Tensor | None,
        targets: Tensor,
        *by_image: Tensor,
    ) -> tuple[Tensor, ...]:
        size = (targets.shape[1], targets.shape[2])
        student = StripUpsampler(logits, size)
        teacher = None if old_logits is None else StripUpsampler(old_logits, size)
        totals: list[Tensor] = []
        gradients: list[StripGradient] = []
        # Autocast would take the matrix products to half precision.
        with torch.autocast(logits.device.type, enabled=False):
            for strip in student.strips():
                x = student.lines(strip).unsqueeze(2).requires_grad_(ctx.needs_input_grad[1])
                z = None if teacher is None else teacher.lines(strip).unsqueeze(2)
                told = [strip.repeat(one) for one in by_image]
                with torch.enable_grad():
                    terms = loss(x, z, strip.lines(targets).unsqueeze(1), *told)
                totals = totals or [logits.new_zeros(()) for _ in terms]
                for total, term in zip(totals, terms, strict=True):
                    total.add_(term.detach())
                if ctx.needs_input_grad[1]:
                    gradients = gradients or [StripGradient(student) for _ in terms]
                    for i, gradient in enumerate(gradients):
                        keep = i + 1 < len(terms)
                        (slope,) = torch.autograd.grad(terms[i], x, retain_graph=keep)
                        gradient.add(slope.squeeze(2).contiguous(), strip)
            found = [gradient.total() for gradient in gradients]
        ctx.num_by_image = len(by_image)
        ctx.save_for_backward(*found)
        return tuple(totals)

    @staticmethod
    def backward(ctx: Any, *scales: Tensor) -> tuple[Tensor | None, ...]:
        gradient = scale_gradients(ctx.saved_tensors, scales)
        return None, gradient, None, None, *[None] * ctx.num_by_image


def scale_gradients(gradients: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return the sum of low-resolution gradients, each times a scale, in a backward pass.

    Raises:
        RuntimeError: the pass is itself to be differentiated, which the gradients do not allow.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the fused losses cannot be differentiated twice (create_graph=True); "
            "upsample and use the functions of nacre.losses.reference for that"
        )
    total = gradients[0] * scales[0]
    for gradient, scale in zip(gradients[1:], scales[1:], strict=True):
        total.addcmul_(gradient, scale)
    return total
