"""Losses of a strip on a GPU, by the kernels that torch has for a softmax.

A GPU is bound by the memory that is read and written, and torch's log-softmax does in one kernel
what takes the kernels for CPUs several. So cross-entropy (eq. 2) and distillation (eq. 5, 6), where
nothing is unbiased, are computed here in nats as

    CE       log q = log_softmax(x);   -w log q[y]              gradient w (q - onehot(y))
    KD       log q^ = log_softmax(x over Y);   -p . log q^      gradient q^ - p

w is the weight of a pixel: 0 where it is ignored, else 1 or the image's. The cross-entropy takes 6
passes over the logits where upsampling first takes 8.
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


def weighted_exp(log_q: Tensor, weight: Tensor, *, out: Tensor) -> Tensor:
    """Return weight * exp(log_q) for log_q <= 0 in one pass: what ELU's derivative is below 0."""
    return torch.ops.aten.elu_backward(weight, 1.0, 1.0, 1.0, False, log_q, grad_input=out)
