"""Distillations of later methods: guided by labels (LGKD), decomposed (DKD), local POD (PLOP).

**Guided by labels.** The student's softmax q is over all channels. The teacher's p is over the old
ones, 0 on the new ones; where the label names a new class y, what the teacher calls background is
y, so that its background's probability is moved there. Per pixel with target y:

    p'[b] = 0, p'[y] = p[b]   if y is new;   p' = p elsewhere
    loss  = - weight(y) sum over all channels of p'[c] log q[c]

The sum over the channels is not divided by their number; the mean is over the pixels that are not
ignored. Unlike the unbiased distillation (eq. 7), which lets a new class share the teacher's
background anywhere, this one pushes new classes down wherever the label does not name them, and
unlike the plain one (eq. 6) it sees all channels. With the weight 0 for new classes and on pixels
labeled background alone it is the first term of ALIFE. LGKD stays at the resolution of the logits:
with targets from `grid_targets` nothing is upsampled.

**Decomposed.** A logit is the sum over d of f[d] w[d]. Its positive and its negative part

    z+ = sum over d of max(f[d] w[d], 0)        z- = sum over d of min(f[d] w[d], 0)

say what speaks for the class and what against it. Both are kept where the teacher has them, each as
a sigmoid, without bias and at the resolution of the features:

    dkd+ = sum over the old classes of the mean over all pixels of B(sigmoid(z+_teacher), z+)
    dkd- = the same with z-

with the binary cross-entropy B(t, x) = log(1 + e^x) - t x. The student's features and rows both get
gradients. With f+ = max(f, 0) and f- = max(-f, 0) and the same for w, for any features

    z+ = f+ w+ + f- w-        z- = -(f+ w- + f- w+)

The auxiliary classifier is one row that learns to call every pixel negative, new classes included,
on features that get no gradient from it:

    ac = mean over all pixels of log(1 + e^x_aux)

A row of a new class starts as a copy of it (`Classifier.grow_from`): negative wherever
nothing is known.

**Local POD.** With f the student's map of a layer (D,h,w) and g the teacher's, every element is
squared. For each scale s the maps are cut into s x s windows of (h // s) x (w // s); rows and
columns that are left over do not count. Each window is described by its means over the width and
over the height:

    Phi(f) = all of  1/(w // s) sum_col f[d, row, col]^2   and   1/(h // s) sum_row f[d, row, col]^2
    local_pod(f, g) = mean over the images of | Phi(f) - Phi(g) |_2

    pod = sqrt(T/N) / layers * sum over the layers of factor * local_pod

with T all channels, background included, and N the new ones. The norm is not squared, nothing is
normalized: so PLOP's released implementation, whose factors mean something only with it. For the
layer of the logits the student's new channels are added to its background's, as they are
(`merge_new_into_background`), so that both have the old channels. Phi is linear in the squares, so
only f^2 - g^2 is pooled, for all scales at once by one matrix product along the width and one along
the height.
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
    """Return the cross-entropy of all channels to the teacher's, guided by the labels.

    Pixels labeled background (or with any old target) weigh `old_weight`, those of a new class
    `new_weight`; the rest is as everywhere in `nacre.losses.reference`.
    """
    logits = at_least_float32(logits)
    guided = guided_probabilities(old_logits, targets, logits.shape[1])
    by_pixel = -(guided.to(logits.dtype) * logits.log_softmax(1)).sum(1)
    is_new = targets >= old_logits.shape[1]
    weights = torch.where(is_new, new_weight, old_weight).to(logits.dtype)
    total = (by_pixel * weights * (targets != ignore_value(targets))).sum()
    return total / pixel_count(logits, targets, num_pixels)


def guided_probabilities(old_logits: Tensor, targets: Tensor, num_classes: int) -> Tensor:
    """Return the teacher's softmax over all channels, its background moved to the label's class.

    Pixels that do not count keep the teacher's softmax.
    """
    p = at_least_float32(old_logits.detach()).softmax(1)
    num_old = p.shape[1]
    guided = torch.cat([p, p.new_zeros(len(p), num_classes - num_old, *p.shape[2:])], 1)
    is_new = ((targets >= num_old) & (targets != ignore_value(targets))).unsqueeze(1)
    moved = guided[:, :1] * is_new
    guided[:, :1] -= moved
    return guided.scatter_add_(1, targets.long().unsqueeze(1) * is_new, moved)


def decomposed_logits(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Return what speaks for each class and what against it.

    Args:
        features: N,D,h,w, of any sign.
        weight: K,D, a row for each class.

    Returns:
        The positive parts and the negative parts, N,K,h,w each, whose sum are the logits without
        their biases.
    """
    features, weight = at_least_float32(features), at_least_float32(weight)
    f = torch.cat([features.relu(), (-features).relu()], 1)
    up, down = weight.relu(), (-weight).relu()
    rows = torch.cat([torch.cat([up, down], 1), -torch.cat([down, up], 1)])
    # Autocast would take the products to half precision.
    with torch.autocast(features.device.type, enabled=False):
        parts = F.conv2d(f, rows[:, :, None, None])
    positive, negative = parts.chunk(2, 1)
    return positive, negative


def decomposed_distillation(
    features: Tensor, weight: Tensor, old_features: Tensor, old_weight: Tensor
) -> tuple[Tensor, Tensor]:
    """Distill the positive and the negative parts of the old classes' logits.

    Args:
        features: the student's, N,D,h,w.
        weight: its rows of the old classes, K,D.
        old_features: the teacher's, of the same shape; no gradient flows into them.
        old_weight: the teacher's rows of these classes.

    Returns:
        dkd+ and dkd-, each the sum over the classes of the mean over all pixels.
    """
    student = decomposed_logits(features, weight)
    teacher = decomposed_logits(old_features.detach(), old_weight.detach())
    positive, negative = (
        F.binary_cross_entropy_with_logits(x, t.sigmoid()) * x.shape[1]
        for x, t in zip(student, teacher, strict=True)
    )
    return positive, negative


def auxiliary_loss(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """Return how far logits N,1,h,w of the auxiliary row are from calling all pixels negative."""
    return F.softplus(upsample(logits, size)).mean()


SCALES = (1, 2, 4)
"""PLOP's: the whole map, its quarters, its sixteenths."""


def local_pod(features: Tensor, old_features: Tensor, *, scales: Sequence[int] = SCALES) -> Tensor:
    """Return the distance of one layer's features N,D,h,w to the teacher's, averaged over images.

    Squares are taken in float32 at least; no gradient flows into the teacher's features. A scale
    with more windows than rows or columns is left out.
    """
    assert features.shape == old_features.shape, (features.shape, old_features.shape)
    height, width = features.shape[2:]
    scales = tuple(scale for scale in scales if scale <= min(height, width))
    # Squares would overflow half precision, to which autocast would take the matrix products, too.
    dtype = torch.promote_types(features.dtype, torch.float32)
    with torch.autocast(features.device.type, enabled=False):
        difference = features.to(dtype).square() - old_features.detach().to(dtype).square()
        difference = difference.permute(0, 2, 3, 1).contiguous()
        rows, columns = (_Windows(size, scales, difference) for size in (height, width))
        by_row = torch.matmul(columns.means.t(), difference) * rows.inside.unsqueeze(2)
        by_column = torch.matmul(rows.means.t(), difference.flatten(2))
        by_column = by_column.view(len(difference), -1, *difference.shape[2:])
        by_column = by_column * columns.inside.t().unsqueeze(2)
        squares = by_row.square().sum((1, 2, 3)) + by_column.square().sum((1, 2, 3))
        # The square root has no slope at 0, where nothing is to be learned.
        is_far = squares > 0
        return torch.where(is_far, torch.where(is_far, squares, 1).sqrt(), 0).mean()


def pod_loss(
    layers: Iterable[tuple[Tensor, Tensor, float]],
    *,
    num_old: int,
    num_new: int,
) -> Tensor:
    """Return the sum of the layers' distances, weighted as PLOP does.

    A layer is the student's features, the teacher's, and its factor.
    """
    distances = [factor * local_pod(f, g) for f, g, factor in layers]
    return math.sqrt((num_old + num_new) / num_new) * torch.stack(distances).mean()


def merge_new_into_background(logits: Tensor, num_old: int) -> Tensor:
    """Add the new channels' logits to the background's: N,C,h,w becomes N,num_old,h,w."""
    background = logits[:, :1] + logits[:, num_old:].sum(1, keepdim=True)
    return torch.cat([background, logits[:, 1:num_old]], 1)


class _Windows:
    """The windows that the rows (or columns) of a map fall into, all scales side by side.

    Attributes:
        means: size x windows, what averages over each window.
        inside: size x windows, 1 where a row lies in any window of that window's scale, else 0.
    """

    def __init__(self, size: int, scales: tuple[int, ...], like: Tensor) -> None:
        position = torch.arange(size, device=like.device).unsqueeze(1)
        means, inside = [], []
        for scale in scales:
            length = size // scale
            number = torch.arange(scale, device=like.device)
            means.append((position // length == number).to(like.dtype) / length)
            inside.append((position < scale * length).to(like.dtype).expand(size, scale))
        self.means = torch.cat(means, 1)
        self.inside = torch.cat(inside, 1)
