"""Split sigmoid losses: old channels learn from the teacher alone, new ones from the labels alone.

Classifiers of one sigmoid per channel need no background that competes: a pixel that is none of
them is negative for all. With logits x, the target y, the teacher's logits z and the weight g of
positive pixels, per pixel

    bce   sum over the new c of   g log(1 + e^-x[c]) if c is y, else log(1 + e^x[c])
    kd    sum over the old c of   log(1 + e^x[c]) - sigmoid(z[c]) x[c]

A target that is no new channel (background, an old class, -1) is negative for all of them. What may
hide in an image's background (`hidden`) has no target there, and its term is left out. The
gradients are sigmoid(x) - [c is y] (times g where it is) and sigmoid(x) - sigmoid(z).

- DKD: both, g = 2 in step 0 and 1 later on VOC, 35 on ADE20K; a pixel with target 255 is a negative
  like any other (`ignore_index=None`).
- STAR: bce with g = 4 on VOC and 30 on ADE20K.
- SSUL: bce with g = 1 over the channels that still learn: background, unknown and the new classes
  (`unknown_targets`). The terms of its frozen channels have no gradient and are left out.

The channel of the background in DKD and STAR is a constant 0 and not among these logits: the
greatest of 0 and x is background where no sigmoid is above 1/2.

SSUL's unknown class u stands for what is in the background and is no class yet. The channels are
background b, u, new classes; a pixel labelled background is u, or, with a map of what is salient, u
only where it is salient and b elsewhere. For inference b and u count as one: the score of b is
logit(min(sigmoid(x[b]) + sigmoid(x[u]), 1 - 1e-6)), so that the greatest logit is the answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.labels.channels import IGNORE_INDEX, ignore_value
from nacre.losses.fused import _losses
from nacre.losses.kernels import Sums, _dot, leave_out_, sum_left_out
from nacre.losses.reference import at_least_float32, pixel_count

NO_CHANNEL = -1
"""The target of a pixel that is none of the channels."""

NOT_COUNTED = -2
"""What `unknown_targets` makes of a pixel that does not count."""


def new_binary_cross_entropy(
    logits: Tensor,
    targets: Tensor,
    first_new: int,
    *,
    positive_weight: float = 1.0,
    hidden: Tensor | None = None,
    num_background: int = 1,
    num_pixels: float | Tensor | None = None,
    ignore_index: int | None = IGNORE_INDEX,
) -> Tensor:
    """Binary cross-entropy of the new channels, summed over them.

    Args:
        logits: N,C,H,W, the new channels alone.
        targets: N,H,W; `first_new` is the first of these channels, and what is none of them is
            negative for all.
        first_new: the target that means the first channel.
        positive_weight: weight of the term of a pixel's own channel.
        hidden: N,C, bool: which of these channels may hide in the background of an image; their
            terms are left out there.
        num_background: how many targets mean background, from 0 on.
        num_pixels: what the sum over the pixels is divided by, instead of the number of pixels that
            are not ignored.
        ignore_index: the target of pixels that do not count; None: all count.

    Returns:
        The mean over the pixels that are not ignored; 0 if all are.
    """
    if ignore_index is not None:
        ignore_index = ignore_value(targets, ignore_index)
    logits = at_least_float32(logits)
    channels = torch.arange(first_new, first_new + logits.shape[1], device=logits.device)
    is_target = targets.long().unsqueeze(1) == channels.view(-1, 1, 1)
    by_channel = F.binary_cross_entropy_with_logits(
        logits,
        is_target.to(logits.dtype),
        pos_weight=logits.new_full((), positive_weight),
        reduction="none",
    )
    if hidden is not None:
        is_background = _is_background(targets, num_background).unsqueeze(1)
        by_channel = by_channel.masked_fill(hidden[:, :, None, None] & is_background, 0)
    total = (by_channel.sum(1) * _counted(targets, ignore_index)).sum()
    return total / _divisor(logits, targets, num_pixels, ignore_index)


def fused_split_binary_losses(
    logits: Tensor,
    targets: Tensor,
    old_logits: Tensor | None = None,
    *,
    first_new: int,
    positive_weight: float = 1.0,
    hidden: Tensor | None = None,
    num_background: int = 1,
    num_pixels: float | Tensor | None = None,
    ignore_index: int | None = IGNORE_INDEX,
) -> dict[str, Tensor]:
    """The split losses of upsampled logits, straight from low-resolution ones.

    Args:
        logits: the student's, N,C,h,w: first the teacher's channels, if there is one, then the new.
        targets: N,H,W, as in `new_binary_cross_entropy`.
        old_logits: the teacher's, N,K,h,w (h and w may differ from the student's), for the
            distillation. No gradient flows into them.
        first_new: the target that means the first new channel.
        positive_weight: weight of the term of a pixel's own channel.
        hidden: N,C, bool, over the student's channels; else as in `new_binary_cross_entropy`.
        num_background: as in `new_binary_cross_entropy`.
        num_pixels: as in `new_binary_cross_entropy`.
        ignore_index: as in `new_binary_cross_entropy`; the distillation is over all pixels.

    Returns:
        `bce` and, with a teacher, `kd`, which is that of `binary_distillation`; each may be
        weighted and added at will, but differentiated only once.
    """
    if ignore_index is not None:
        ignore_index = ignore_value(targets, ignore_index)
    logits = at_least_float32(logits)
    divisors = {"bce": _divisor(logits, targets, num_pixels, ignore_index)}
    teacher = None
    if old_logits is not None:
        teacher = old_logits.detach().to(logits.dtype)
        divisors["kd"] = logits.new_full((), targets.numel())
    taught = 0 if teacher is None else teacher.shape[1]
    kernel = SplitSigmoidKernel(taught, first_new, positive_weight, ignore_index, num_background)
    left_out = None if hidden is None else hidden.to(logits.dtype)
    return _losses(kernel, logits, teacher, targets, divisors, left_out)


def unknown_targets(
    targets: Tensor,
    num_old: int,
    *,
    salient: Tensor | None = None,
    ignore_index: int = IGNORE_INDEX,
) -> Tensor:
    """Targets over all channels as targets over background 0, unknown 1 and the new classes.

    Args:
        targets: N,H,W, numbers over all channels; pseudo-labels may be among them.
        num_old: old channels, background included; 1 in step 0.
        salient: N,H,W, where background is unknown; everywhere if not given.
        ignore_index: the target of pixels that do not count.

    Returns:
        N,H,W, int32: the second new class is 3, old classes are `NO_CHANNEL`, pixels that do not
        count are `NOT_COUNTED`, whatever the type of the targets.
    """
    ignored = targets == ignore_value(targets, ignore_index)
    numbers = targets.to(torch.int32)
    found = torch.where((numbers >= num_old) & ~ignored, numbers - num_old + 2, NO_CHANNEL)
    unknown = 1 if salient is None else salient.to(torch.int32)
    found = torch.where(numbers == 0, unknown, found)
    return torch.where(ignored, NOT_COUNTED, found).to(torch.int32)


def merge_unknown(logits: Tensor, unknown: Tensor) -> Tensor:
    """Logits whose background has the probabilities of background and unknown together.

    Args:
        logits: N,C,H,W, background first.
        unknown: N,1,H,W, the unknown class's.

    Returns:
        N,C,H,W; the probabilities' sum is at most 1 - 1e-6.
    """
    logits, unknown = at_least_float32(logits), at_least_float32(unknown)
    together = logits[:, :1].sigmoid() + unknown.sigmoid()
    return torch.cat([together.clamp(max=1 - 1e-6).logit(), logits[:, 1:]], 1)


def _is_background(targets: Tensor, num_background: int) -> Tensor:
    return (targets >= 0) & (targets < num_background)


def _counted(targets: Tensor, ignore_index: int | None) -> Tensor:
    if ignore_index is None:
        return torch.ones_like(targets, dtype=torch.bool)
    return targets != ignore_index


def _divisor(
    logits: Tensor, targets: Tensor, num_pixels: float | Tensor | None, ignore_index: int | None
) -> Tensor:
    if ignore_index is None and num_pixels is None:
        return logits.new_full((), targets.numel())
    return pixel_count(
        logits, targets, num_pixels, IGNORE_INDEX if ignore_index is None else ignore_index
    )


@dataclass(frozen=True)
class SplitSigmoidKernel:
    """The split losses of a strip; a `StripKernel`.

    Attributes:
        taught: channels that learn from the teacher, which come first; with 0 there is no teacher.
        first_new: the target that means the first of the other channels.
        positive_weight: weight of the term of a pixel's own channel.
        ignore_index: the target of pixels that do not count in the cross-entropy, if any.
        num_background: how many targets mean background, from 0 on.
    """

    taught: int
    first_new: int
    positive_weight: float
    ignore_index: int | None
    num_background: int = 1

    @property
    def terms(self) -> int:
        """How many losses: the cross-entropy, and maybe the distillation."""
        return 1 + (self.taught > 0)

    def __call__(
        self,
        x: Tensor,
        z: Tensor | None,
        targets: Tensor,
        scratch: Tensor,
        gradients: bool,
        hidden: Tensor | None = None,
    ) -> Sums:
        """Sum up the losses over a strip, as `StripKernel` says.

        With `hidden` (L,C: 1 for a channel that the line's background may hide, else 0) the
        cross-entropy leaves these out on background.
        """
        old, new = slice(0, self.taught), slice(self.taught, x.shape[1])
        counted = _counted(targets, self.ignore_index)
        channel = targets + (self.taught - self.first_new)
        is_new = counted & (channel >= self.taught) & (channel < x.shape[1])
        own = torch.where(is_new, channel, 0).unsqueeze(1)
        counts, hits = counted.to(x.dtype), is_new.to(x.dtype)

        softplus = torch.logaddexp(x, x.new_zeros(()), out=scratch)
        positive = (self.positive_weight - 1) * softplus.gather(1, own).squeeze(1)
        positive -= self.positive_weight * x.gather(1, own).squeeze(1)
        of_new = softplus[:, new].sum(1)
        is_background = _is_background(targets, self.num_background).to(x.dtype)
        if hidden is not None:
            of_new -= sum_left_out(softplus[:, new], hidden[:, new]) * is_background
        values = [(of_new * counts + positive * hits).sum()]
        if z is not None:
            of_old = softplus[:, old].sum(1)
            values.append((of_old - _dot(x[:, old], z.sigmoid_(), scratch[:, old])).sum())
        if not gradients:
            return values, []
        sigmoid = x.sigmoid_()
        found = [self._label_gradient(sigmoid, own, counts, hits, scratch)]
        if hidden is not None:
            leave_out_(found[0], hidden, is_background)
        if z is not None:
            sigmoid[:, old].sub_(z)
            sigmoid[:, new] = 0
            found.append(sigmoid)
        return values, found

    def _label_gradient(
        self, sigmoid: Tensor, own: Tensor, counts: Tensor, hits: Tensor, room: Tensor
    ) -> Tensor:
        more = (self.positive_weight - 1) * sigmoid.gather(1, own).squeeze(1) - self.positive_weight
        gradient = room.copy_(sigmoid).mul_(counts.unsqueeze(1))
        gradient[:, : self.taught] = 0
        return gradient.scatter_add_(1, own, (more * hits).unsqueeze(1))
