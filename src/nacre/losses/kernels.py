"""What the fused losses do with a strip of upsampled logits: sums and closed-form gradients.

Softmax losses. The channels fall into three groups: the background b, the other old channels, the
new ones. Let L, L_Y and L_C be the log-sum-exps of all channels, of the old ones and b, of the new
ones and b; q, q_Y and q_C the softmaxes over the same channels. Then, per pixel with label y,

    CE            L - x[y]                                   gradient q - onehot(y)
    unbiased CE   if y is b: L - L_Y, else as CE             gradient q - q_Y, else as CE
    KD            L_Y - sum_Y p x                            gradient q_Y - p
    unbiased KD   L - sum_(Y without b) p x - p[b] L_C       gradient q - p (without b) - p[b] q_C

Where the channels that b may be differ from image to image, or new ones split from other channels
than b, `nacre.losses.strips` takes the place of this kernel.

A group's exponentials e are taken relative to the group's own greatest logit m, so that q, q_Y
and q_C are e times exp(m - L), exp(m - L_Y) or exp(m - L_C): a gradient is e times one factor per
pixel and group, less p or a one-hot vector, and nothing overflows or divides by 0.
All of it is in bits: logits times log2(e), powers and logarithms of 2. The formulas are the same,
and powers of 2 take a third of the time of powers of e with PyTorch on CPUs.

Sigmoid losses. For a target t the binary cross-entropy is log(1 + e^x) - t x, its gradient
sigmoid(x) - t. A channel that an image's background may hide has no target there: its term is left
out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

import torch
from torch import Tensor

Variant = Literal["plain", "unbiased"]
OldTargets = Literal["labels", "teacher", "teacher_but_background"]
Sums = tuple[list[Tensor], list[Tensor]]
"""One scalar and, if gradients are wanted, one gradient L,C,W for each term."""


class StripKernel(Protocol):
    """One or several losses, each a sum over pixels."""

    def __hash__(self) -> int:
        """Equal kernels compute the same."""

    @property
    def terms(self) -> int:
        """How many losses."""

    def __call__(
        self, x: Tensor, z: Tensor | None, targets: Tensor, scratch: Tensor, gradients: bool
    ) -> Sums:
        """Sum up the losses over a strip.

        Args:
            x: the student's logits L,C,W; overwritten.
            z: the teacher's logits L,K,W if there are any; overwritten.
            targets: L,W, int64.
            scratch: room of the shape of x.
            gradients: whether gradients are wanted; they lie in x and in scratch.
        """


@dataclass(frozen=True)
class SoftmaxKernel:
    """Cross-entropy, distillation or both, in bits; see the module for the formulas."""

    ce: Variant | None
    kd: Variant | None
    num_old: int
    ignore_index: int

    @property
    def terms(self) -> int:
        """How many losses: one or both."""
        return (self.ce is not None) + (self.kd is not None)

    def __call__(
        self,
        x: Tensor,
        z: Tensor | None,
        targets: Tensor,
        scratch: Tensor,
        gradients: bool,
    ) -> Sums:
        """Sum up the losses over a strip, as `StripKernel` says."""
        label = _Label(x, targets, self.ignore_index)
        minus_p = None if z is None else _minus_softmax2_(z)
        minus_p_times_x = None if minus_p is None else self._dot(x, minus_p, scratch)
        student = _Exponentials(x, self.num_old, gradients)
        values, found = [], []
        if self.ce:
            values.append(self._cross_entropy(student, label))
            if gradients:
                room = scratch if self.kd else x
                found.append(self._cross_entropy_gradient(student, label, room))
        if minus_p is not None and minus_p_times_x is not None:
            values.append(self._distillation(student, minus_p[:, 0], minus_p_times_x))
            if gradients:
                found.append(self._distillation_gradient(student, minus_p))
        return values, found

    def _dot(self, x: Tensor, minus_p: Tensor, scratch: Tensor) -> Tensor:
        """Sum of -p x over the old channels, without background in the unbiased variant."""
        channels = slice(1 if self.kd == "unbiased" else 0, self.num_old)
        return _dot(x[:, channels], minus_p[:, channels], scratch[:, channels])

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
            b -= label.is_background * student.factor(0, student.log_old)
            old -= label.is_background * student.factor(1, student.log_old)
            hits = hits - label.is_background
        student.multiply(b, old, new, out=room)
        label.subtract_one_hot(room, hits)
        return room

    def _distillation(self, student: _Exponentials, minus_p_b: Tensor, dot: Tensor) -> Tensor:
        if self.kd == "plain":
            return (student.log_old + dot).sum()
        return (student.log_all + dot + minus_p_b * student.log_new).sum()

    def _distillation_gradient(self, student: _Exponentials, minus_p: Tensor) -> Tensor:
        """The last user of the exponentials, so that the gradient may take their place."""
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
    """A strip's exponentials by group (in the place of its logits) and their log-sum-exps."""

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
            # What makes each group's exponentials probabilities over all channels.
            self.factors_of_all = [self.factor(group, self.log_all) for group in range(3)]

    def factor(self, group: int, log_sum: Tensor) -> Tensor:
        """What makes a group's exponentials probabilities: those of b (which are 1), old or new."""
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
        """Multiply each group's exponentials by a factor per pixel (None: by 0), and add."""
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
    """What a strip's labels mean for its logits; yes and no are 1 and 0."""

    def __init__(self, x: Tensor, targets: Tensor, ignore_index: int) -> None:
        counted = targets != ignore_index
        self.index = (targets * counted).unsqueeze(1)
        self.logit = x.gather(1, self.index).squeeze(1)
        self.counts = counted.to(x.dtype)
        self.is_background = (targets == 0).to(x.dtype).mul_(self.counts)

    def subtract_one_hot(self, gradient: Tensor, hits: Tensor) -> None:
        """Subtract hits (L,W) from the channels of the labels."""
        gradient.scatter_add_(1, self.index, hits.neg().unsqueeze(1))


def _exponentiate_(group: Tensor) -> tuple[Tensor, Tensor]:
    """Logits to powers of 2 relative to their greatest, in place; that one, and the log-sum."""
    if group.shape[1] == 0:
        nothing = group.new_zeros(group.shape[0], group.shape[2])
        return nothing, nothing - torch.inf
    peak = group.amax(1)
    group.sub_(peak.unsqueeze(1)).exp2_()
    return peak, group.sum(1).log2_().add_(peak)


def _minus_softmax2_(logits: Tensor) -> Tensor:
    """Minus the softmax of logits in bits over the channels, in place."""
    logits.sub_(logits.amax(1, keepdim=True)).exp2_()
    return logits.div_(logits.sum(1, keepdim=True).neg_())


@dataclass(frozen=True)
class SigmoidKernel:
    """Binary cross-entropy to labels, teacher or both, and distillation: a sigmoid per channel."""

    old_targets: OldTargets
    distil: bool
    num_old: int
    ignore_index: int

    @property
    def terms(self) -> int:
        """How many losses: the cross-entropy, and maybe the distillation."""
        return 1 + self.distil

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
        cross-entropy leaves these out on background, unless the teacher names their target.
        """
        label = _Label(x, targets, self.ignore_index)
        taught = self._taught_channels()
        left_out = None if hidden is None else self._left_out(hidden)
        from_label = (label.index < taught.start) | (label.index >= taught.stop)
        hits = label.counts * from_label.squeeze(1)
        t = x.new_empty(x.shape[0], 0, x.shape[2]) if z is None else z.sigmoid_()

        # log(1 + e^x) of all channels, then t x off for those that the teacher or the label name
        softplus = torch.logaddexp(x, x.new_zeros(()), out=scratch)
        by_pixel = softplus.sum(1)
        if left_out is not None:
            by_pixel -= sum_left_out(softplus, left_out) * label.is_background
        old_by_pixel = softplus[:, : self.num_old].sum(1) if self.distil else None
        by_pixel -= _dot(x[:, taught], t[:, taught], scratch[:, taught])
        values = [(by_pixel * label.counts - label.logit * hits).sum()]
        if old_by_pixel is not None:
            old = slice(0, self.num_old)
            values.append((old_by_pixel - _dot(x[:, old], t, scratch[:, old])).sum())
        if not gradients:
            return values, []
        return values, self._gradients(x.sigmoid_(), t, label, hits, left_out, scratch)

    def _left_out(self, hidden: Tensor) -> Tensor:
        """What hides, but for the background itself and for channels that the teacher teaches."""
        left_out = hidden.clone()
        left_out[:, 0] = 0
        left_out[:, self._taught_channels()] = 0
        return left_out

    def _taught_channels(self) -> slice:
        """The channels whose target in the cross-entropy is the teacher's."""
        first = {"labels": self.num_old, "teacher": 0, "teacher_but_background": 1}[
            self.old_targets
        ]
        return slice(first, self.num_old)

    def _gradients(
        self,
        sigmoid: Tensor,
        t: Tensor,
        label: _Label,
        hits: Tensor,
        left_out: Tensor | None,
        scratch: Tensor,
    ) -> list[Tensor]:
        taught = self._taught_channels()
        # sigmoid - t, and 0 where the pixel is ignored; two terms need two places
        gradient = scratch.copy_(sigmoid) if self.distil else sigmoid
        gradient[:, taught].sub_(t[:, taught])
        gradient.mul_(label.counts.unsqueeze(1))
        if left_out is not None:
            leave_out_(gradient, left_out, label.is_background)
        label.subtract_one_hot(gradient, hits)
        if not self.distil:
            return [gradient]
        sigmoid[:, : self.num_old].sub_(t)
        sigmoid[:, self.num_old :] = 0
        return [gradient, sigmoid]


def sum_left_out(values: Tensor, left_out: Tensor) -> Tensor:
    """Sum of the values L,C,W over the channels that are left out, L,C; returns L,W."""
    return torch.bmm(left_out.unsqueeze(1), values).squeeze(1)


def leave_out_(gradient: Tensor, left_out: Tensor, is_background: Tensor) -> None:
    """Set a gradient L,C,W to 0 for the channels that are left out, L,C, on background, L,W."""
    gradient.mul_(1 - left_out.unsqueeze(2) * is_background.unsqueeze(1))


def _dot(a: Tensor, b: Tensor, room: Tensor) -> Tensor:
    """Sum of products over the channels."""
    return torch.mul(a, b, out=room).sum(1)
