"""Losses of a strip on a GPU, by the kernels that torch has for a softmax.

A GPU is bound by the memory that is read and written, and torch's log-softmax does in one kernel
what takes the kernels for CPUs several. So cross-entropy (eq. 2) and distillation (eq. 5, 6), where
nothing is unbiased, and the label-guided distillation are computed here in nats as

    CE       log q = log_softmax(x);   -w log q[y]              gradient w (q - onehot(y))
    KD       log q^ = log_softmax(x over Y);   -p . log q^      gradient q^ - p
    guided   log q = log_softmax(x);   -w p' . log q            gradient w (q - p')

w is the weight of a pixel: 0 where it is ignored, else 1, or the image's or its class's. The
cross-entropy takes 6 passes over the logits where upsampling first takes 8.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.losses.kernels import Sums


@dataclass(frozen=True)
class PlainKernel:
    """Cross-entropy, distillation or both; a `StripKernel`.

    Attributes:
        ce: whether there is a cross-entropy.
        kd: whether there is a distillation.
        num_old: old channels, background included.
        ignore_index: the label of pixels that do not count in the cross-entropy.
    """

    ce: bool
    kd: bool
    num_old: int
    ignore_index: int

    @property
    def terms(self) -> int:
        """How many losses: one or both."""
        return self.ce + self.kd

    def __call__(
        self,
        x: Tensor,
        z: Tensor | None,
        targets: Tensor,
        scratch: Tensor,
        gradients: bool,
        weights: Tensor | None = None,
    ) -> Sums:
        """Sum up the losses over a strip, as `StripKernel` says.

        With `weights` (L,1) every line of the cross-entropy has a weight.
        """
        # The distillation first: the cross-entropy's gradient takes the place of the logits.
        taught = None if z is None else self._distillation(x, z, scratch, gradients)
        terms = [self._cross_entropy(x, targets, weights, gradients)] if self.ce else []
        terms += [] if taught is None else [taught]
        return [value for value, _ in terms], [found for _, found in terms if found is not None]

    def _cross_entropy(
        self, x: Tensor, targets: Tensor, weights: Tensor | None, gradients: bool
    ) -> tuple[Tensor, Tensor | None]:
        counted = targets != self.ignore_index
        index = (targets * counted).unsqueeze(1)
        weight = counted.to(x.dtype) if weights is None else counted * weights
        log_q = x.log_softmax(1)
        value = -(log_q.gather(1, index).squeeze(1) * weight).sum()
        if not gradients:
            return value, None
        weight = weight.unsqueeze(1)
        weighted_exp(log_q, weight, out=x)
        return value, x.scatter_add_(1, index, -weight)

    def _distillation(
        self, x: Tensor, z: Tensor, scratch: Tensor, gradients: bool
    ) -> tuple[Tensor, Tensor | None]:
        p = z.softmax(1)
        log_q = x[:, : self.num_old].log_softmax(1)
        value = -torch.dot(p.flatten(), log_q.flatten())
        if not gradients:
            return value, None
        torch.sub(log_q.exp_(), p, out=scratch[:, : self.num_old])
        scratch[:, self.num_old :] = 0
        return value, scratch


@dataclass(frozen=True)
class GuidedDeviceKernel:
    """The label-guided distillation; a `StripKernel`, see `nacre.losses.label_guided`."""

    num_old: int
    old_weight: float
    new_weight: float
    ignore_index: int
    terms = 1

    def __call__(
        self, x: Tensor, z: Tensor | None, targets: Tensor, scratch: Tensor, gradients: bool
    ) -> Sums:
        """Sum up the loss over a strip, as `StripKernel` says."""
        assert z is not None
        counted = targets != self.ignore_index
        is_new = counted & (targets >= self.num_old)
        weight = torch.where(is_new, self.new_weight, self.old_weight).to(x.dtype).mul_(counted)
        index = (targets * is_new).unsqueeze(1)
        p, log_q = z.softmax(1), x.log_softmax(1)
        moved = p[:, 0] * is_new * weight
        value = -((p * log_q[:, : self.num_old]).sum(1) * weight).sum()
        value -= (moved * (log_q.gather(1, index).squeeze(1) - log_q[:, 0])).sum()
        if not gradients:
            return [value], []
        weighted_exp(log_q, weight.unsqueeze(1), out=x)
        x[:, : self.num_old].addcmul_(p, weight.unsqueeze(1), value=-1)
        x[:, 0].add_(moved)
        return [value], [x.scatter_add_(1, index, -moved.unsqueeze(1))]


def weighted_exp(log_q: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
    """Return weight * exp(log_q) for log_q <= 0 in one pass: what ELU's derivative is below 0."""
    if torch.compiler.is_compiling():  # which takes no `out`, and joins two operations by itself
        return out.copy_(log_q.exp() * weight)
    return torch.ops.aten.elu_backward(weight, 1.0, 1.0, 1.0, False, log_q, grad_input=out)
