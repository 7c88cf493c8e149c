"""The maths of the methods: pure functions of tensors, with the paper's equation numbers.

The functions of `plain` take full-resolution logits and are there to be read; `fused_losses` and
`fused_binary_losses` take low-resolution logits and are there to be fast.
"""

from nacre.losses.compile import compiled_strips
from nacre.losses.fused import fused_binary_losses, fused_losses
from nacre.losses.reference import (
    binary_cross_entropy,
    binary_distillation,
    binary_mixed,
    cross_entropy,
    distillation,
    unbiased_cross_entropy,
    unbiased_distillation,
    upsample,
)
from nacre.models.initialization import split_background
from nacre.scenarios.classes import IGNORED

__all__ = [
    "IGNORED",
    "binary_cross_entropy",
    "binary_distillation",
    "binary_mixed",
    "compiled_strips",
    "cross_entropy",
    "distillation",
    "fused_binary_losses",
    "fused_losses",
    "split_background",
    "unbiased_cross_entropy",
    "unbiased_distillation",
    "upsample",
]
