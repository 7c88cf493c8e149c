"""The math of the methods: pure functions of tensors, with the paper's equation numbers.

The functions of `reference` take full-resolution logits and are written to be read. `by_strips`
computes any of them from low-resolution logits; `fused_losses` does so for the softmax losses, with
gradients in closed form.
"""

from nacre.labels.channels import IGNORE_INDEX
from nacre.losses.reference import (
    binary_cross_entropy,
    binary_distillation,
    binary_mixed,
    cross_entropy,
    distillation,
    partial_cross_entropy,
    pixel_count,
    unbiased_cross_entropy,
    unbiased_distillation,
    upsample,
)
from nacre.losses.softmax import fused_losses
from nacre.losses.strips import by_strips

__all__ = [
    "IGNORE_INDEX",
    "binary_cross_entropy",
    "binary_distillation",
    "binary_mixed",
    "by_strips",
    "cross_entropy",
    "distillation",
    "fused_losses",
    "partial_cross_entropy",
    "pixel_count",
    "unbiased_cross_entropy",
    "unbiased_distillation",
    "upsample",
]
