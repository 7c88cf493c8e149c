"""The maths of the methods: pure functions of tensors, with the paper's equation numbers.

The functions of `reference` take full-resolution logits and are there to be read; `fused_losses`
and `fused_binary_losses` take low-resolution logits and are there to be fast.
"""

from nacre.labels.channels import IGNORE_INDEX
from nacre.losses.fused import fused_binary_losses, fused_losses
from nacre.losses.reference import (
    binary_cross_entropy,
    binary_distillation,
    binary_mixed,
    cross_entropy,
    distillation,
    partial_cross_entropy,
    unbiased_cross_entropy,
    unbiased_distillation,
    upsample,
)

__all__ = [
    "IGNORE_INDEX",
    "binary_cross_entropy",
    "binary_distillation",
    "binary_mixed",
    "cross_entropy",
    "distillation",
    "fused_binary_losses",
    "fused_losses",
    "partial_cross_entropy",
    "unbiased_cross_entropy",
    "unbiased_distillation",
    "upsample",
]
