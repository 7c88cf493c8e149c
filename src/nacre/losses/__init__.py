"""The maths of the methods: pure functions of tensors, with the paper's equation numbers."""

from nacre.losses.initialisation import split_background
from nacre.losses.plain import (
    IGNORED,
    binary_cross_entropy,
    binary_distillation,
    binary_mixed,
    cross_entropy,
    distillation,
    unbiased_cross_entropy,
    unbiased_distillation,
    upsample,
)

__all__ = [
    "IGNORED",
    "binary_cross_entropy",
    "binary_distillation",
    "binary_mixed",
    "cross_entropy",
    "distillation",
    "split_background",
    "unbiased_cross_entropy",
    "unbiased_distillation",
    "upsample",
]
