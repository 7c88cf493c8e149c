"""Decomposed distillation and the auxiliary classifier (DKD).

A logit is the sum over d of f[d] w[d]. Its positive and its negative part

    z+ = sum over d of max(f[d] w[d], 0)        z- = sum over d of min(f[d] w[d], 0)

say what speaks for the class and what against it. Both are kept where the teacher has them, each as
a sigmoid, without bias and at the resolution of the features:

    dkd+ = sum over the old classes of the mean over all pixels of B(sigmoid(z+_teacher), z+)
    dkd- = the same with z-

with the binary cross-entropy B(t, x) = log(1 + e^x) - t x. The student's features and rows both get
gradients. DKD's features come from a ReLU, f >= 0, so that z+ is the product with max(w, 0) and z-
with min(w, 0). With f+ = max(f, 0) and f- = max(-f, 0) and the same for w, for any features

    z+ = f+ w+ + f- w-        z- = -(f+ w- + f- w+)

The auxiliary classifier is one row that learns to call every pixel negative, new classes included,
on features that get no gradient from it:

    ac = mean over all pixels of log(1 + e^x_aux)

A row of a new class starts as a copy of it (`nacre.models.classifier.copy_row`): negative
wherever nothing is known.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.losses.reference import at_least_float32, upsample


def decomposed_logits(features: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """What speaks for each class and what against it.

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
    """Distil the positive and the negative parts of the old classes' logits.

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
        _sum_of_means(x, t.sigmoid()) for x, t in zip(student, teacher, strict=True)
    )
    return positive, negative


def auxiliary_loss(logits: Tensor, size: tuple[int, int]) -> Tensor:
    """How far the auxiliary classifier is from calling every pixel negative.

    Args:
        logits: N,1,h,w, of features that are detached.
        size: height and width of the pixels.
    """
    return F.softplus(upsample(logits, size)).mean()


def _sum_of_means(logits: Tensor, probabilities: Tensor) -> Tensor:
    """Binary cross-entropy, summed over channels, mean over pixels."""
    return F.binary_cross_entropy_with_logits(logits, probabilities) * logits.shape[1]
