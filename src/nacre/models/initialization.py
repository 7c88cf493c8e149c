"""How new classes start: from the background, eq. 8 and 9, or as copies of an auxiliary row (DKD).

With C the new classes and background b:

    eq. 8   w[c] = w_old[b]                 for c in C
    eq. 9   beta[c] = beta_old[b] - log|C|  for c in C

so that each of C gets an equal share of the probability that the teacher gives to b, and the
probability of the old classes does not change.
"""

from __future__ import annotations

import math

from torch import Tensor


def split_background(weight: Tensor, bias: Tensor, num_new: int) -> tuple[Tensor, Tensor, Tensor]:
    """Share the background's probability evenly between itself and the new classes, eq. 8 and 9.

    Args:
        weight: the background's row of the classifier's weights, of any shape.
        bias: the background's bias, a scalar.
        num_new: number of new classes, background not counted.

    Returns:
        The new classes' weights (num_new, *weight.shape), their biases (num_new,), and the
        background's own bias (its weights stay). None of them shares memory or a graph with the
        arguments.
    """
    assert num_new >= 1, num_new
    weight, bias = weight.detach(), bias.detach().reshape(())
    shared_bias = bias - math.log(num_new + 1)
    return weight.expand(num_new, *weight.shape).clone(), shared_bias.repeat(num_new), shared_bias


def copy_row(weight: Tensor, bias: Tensor, num_new: int) -> tuple[Tensor, Tensor]:
    """Let every new class start as a copy of one row.

    Args:
        weight: the row, of any shape.
        bias: its bias, a scalar.
        num_new: number of new classes.

    Returns:
        Weights (num_new, *weight.shape) and biases (num_new,), which share no memory or graph with
        the arguments.
    """
    assert num_new >= 1, num_new
    weight, bias = weight.detach(), bias.detach().reshape(())
    return weight.expand(num_new, *weight.shape).clone(), bias.repeat(num_new)
