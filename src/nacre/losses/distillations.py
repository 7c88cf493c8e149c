"""Distillations of later methods: label-guided (LGKD), decomposed (DKD), local POD (PLOP).

**Label-guided.** The student's softmax q is over all channels. The teacher's p is over the old
channels and 0 on the new ones; where the label is a new class y, its background probability is
moved to y. Per pixel with target y:

    p'[b] = 0, p'[y] = p[b]   if y is new;   p' = p otherwise
    loss  = - weight(y) sum over all channels of p'[c] log q[c]

The sum over the channels is not divided by their number; the mean is over the pixels that are not
ignored. While the unbiased distillation (eq. 7) allows a new class wherever the teacher predicts
background, this one lowers new classes wherever they are not labeled; while the plain one (eq. 6)
is over the old channels, this one is over all. LGKD computes it at the resolution of the logits,
with targets from `grid_targets`.

**Decomposed.** A logit is the sum over d of f[d] w[d]. Its positive and its negative part

    z+ = sum over d of max(f[d] w[d], 0)        z- = sum over d of min(f[d] w[d], 0)

are both distilled, each as a sigmoid, without bias and at the resolution of the features:

    dkd+ = sum over the old classes of the mean over all pixels of B(sigmoid(z+_teacher), z+)
    dkd- = the same with z-

with the binary cross-entropy B(t, x) = log(1 + e^x) - t x. The student's features and rows both get
gradients. With f+ = max(f, 0) and f- = max(-f, 0) and the same for w,

    z+ = f+ w+ + f- w-        z- = -(f+ w- + f- w+)

The auxiliary row learns to be negative on all pixels, those of new classes included:

    ac = mean over all pixels of log(1 + e^x_aux)

A row of a new class starts as a copy of it (`Classifier.grow_from`), so as negative everywhere.

**Local POD.** f is the student's map of a layer (D,h,w) and g the teacher's; all elements are
squared. For each scale s the maps are cut into s x s windows of (h // s) x (w // s); rows and
columns that are left over do not count. A window is described by its means over rows and columns:

    Phi(f) = all of  1/(w // s) sum_col f[d, row, col]^2   and   1/(h // s) sum_row f[d, row, col]^2
    local_pod(f, g) = mean over the images of | Phi(f) - Phi(g) |_2

    pod = sqrt(T/N) / layers * sum over the layers of factor * local_pod

with T all channels, background included, and N the new ones. As in PLOP's released implementation,
for which its factors are meant, the norm is not squared and nothing is normalized. In the layer of
the logits the student's new channels are added to its background (`merge_new_into_background`), so
that student and teacher have the same channels. Phi is linear in the squares, so only f^2 - g^2 is
averaged.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.labels.channels import ignore_value
from nacre.losses.reference import at_least_float32, pixel_count, upsample


def label_guided_distillation(
    logits: Tensor,
    old_logits: Tensor,
    targets: Tensor,
    *,
    old_weight: float = 1.0,
    new_weight: float = 1.0,
    num_pixels: float | Tensor | None = None,
) -> Tensor:
    """Return the cross-entropy of all channels to the guided probabilities of the teacher.

    Pixels with an old target, background included, weigh `old_weight` and those of a new class
    `new_weight`. The other arguments are as in `nacre.losses.reference`.
    """
    logits = at_least_float32(logits)
    guided = guided_probabilities(old_logits, targets, logits.shape[1])
    by_pixel = -(guided.to(logits.dtype) * logits.log_softmax(1)).sum(1)
    is_new = targets >= old_logits.shape[1]
    weights = torch.where(is_new, new_weight, old_weight).to(logits.dtype)
    total = (by_pixel * weights * (targets != ignore_value(targets))).sum()
    return total / pixel_count(logits, targets, num_pixels)


def guided_probabilities(old_logits: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Return the teacher's softmax with the background's share moved to the label's new class.

    Ignored pixels keep the teacher's softmax.
    """
    p = at_least_float32(old_logits.detach()).softmax(1)
    num_old = p.shape[1]
    guided = torch.cat([p, p.new_zeros(len(p), num_classes - num_old, *p.shape[2:])], 1)
    is_new = ((targets >= num_old) & (targets != ignore_value(targets))).unsqueeze(1)
    moved = guided[:, :1] * is_new
    guided[:, :1] -= moved
    return guided.scatter_add_(1, targets.long().unsqueeze(1) * is_new, moved)


def decomposed_logits(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return the positive and the negative part of each class's logit, N,K,h,w.

    Args:
        features: N,D,h,w, of any sign.
        weight: K,D, a row for each class.
    """
    features, weight = at_least_float32(features), at_least_float32(weight)
    f = torch.cat([features.relu(), (-features).relu()], 1)
    up, down = weight.relu(), (-weight).relu()
    rows = torch.cat([torch.cat([up, down], 1), -torch.cat([down, up], 1)])
    # Autocast would compute the products in half precision.
    with torch.autocast(features.device.type, enabled=False):
        parts = F.conv2d(f, rows[:, :, None, None])
    positive, negative = parts.chunk(2, 1)
    return positive, negative


def decomposed_distillation(
    features: Tensor, weight: Tensor, old_features: Tensor, old_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Return dkd+ and dkd-, each the sum over the old classes of means over the pixels.

    Args:
        features: The student's, N,D,h,w.
        weight: The student's rows of the old classes, K,D.
        old_features: The teacher's, of the same shape, without a gradient.
        old_weight: The teacher's rows of these classes.
    """
    student = decomposed_logits(features, weight)
    teacher = decomposed_logits(old_features.detach(), old_weight.detach())
    positive, negative = (
        F.binary_cross_entropy_with_logits(x, t.sigmoid()) * x.shape[1]
        for x, t in zip(student, teacher, strict=True)
    )
    return positive, negative


def auxiliary_loss(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the loss of logits N,1,h,w of the auxiliary row, which should be negative."""
    return F.softplus(upsample(logits, size)).mean()


SCALES = (1, 2, 4)
"""The scales of PLOP: the whole map, its quarters, its sixteenths."""


def local_pod(features: Tensor, old_features: Tensor, *, scales: Sequence[int] = SCALES) -> Tensor:
    """Return the distance of features N,D,h,w from the teacher's, averaged over the images.

    Squares are computed in float32 at least. The teacher's features have no gradient. A scale with
    more windows than rows or columns is left out.
    """
    assert features.shape == old_features.shape, (features.shape, old_features.shape)
    dtype = torch.promote_types(features.dtype, torch.float32)  # squares would overflow half
    difference = features.to(dtype).square() - old_features.detach().to(dtype).square()
    difference = difference.contiguous()
    height, width = difference.shape[2:]
    squares = difference.new_zeros(len(difference))
    for scale in scales:
        if scale > min(height, width):
            continue
        rows, columns = height // scale, width // scale
        windows = difference[:, :, : scale * rows, : scale * columns]
        windows = windows.reshape(*windows.shape[:2], scale, rows, scale, columns)
        for means in (windows.mean(-1), windows.mean(-3)):
            squares = squares + means.square().flatten(1).sum(1)
    # The square root has no gradient at 0.
    is_far = squares > 0
    return torch.where(is_far, torch.where(is_far, squares, 1).sqrt(), 0).mean()


def pod_loss(
    layers: Iterable[tuple[Tensor, Tensor, float]],
    *,
    num_old: int,
    num_new: int,
) -> Tensor:
    """Return PLOP's mean over layers: pairs of student's and teacher's features with a factor."""
    distances = [factor * local_pod(f, g) for f, g, factor in layers]
    return math.sqrt((num_old + num_new) / num_new) * torch.stack(distances).mean()


def merge_new_into_background(logits: Tensor, num_old: int) -> Tensor:
    """Add the new channels' logits to the background's: N,C,h,w becomes N,num_old,h,w."""
    background = logits[:, :1] + logits[:, num_old:].sum(1, keepdim=True)
    return torch.cat([background, logits[:, 1:num_old]], 1)
