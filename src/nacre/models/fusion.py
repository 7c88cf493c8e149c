"""Fusion of the weights of two steps (EWF): the old network and the one learnt from it, in one.

    W = (1 - a) W_old + a W_new,     a = sqrt(N / (O + N))   or a number of one's own

for everything that the old network had: weights, the affine parameters of the normalisation and its
running statistics, old rows of the classifier. O are the old channels, background included, N the
new ones, whose rows stay as they were learnt. What is not a floating-point number stays, too.

After MiB's initialisation the background's bias is log(N + 1) below the old one; the fusion leaves
a log(N + 1) of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn


def fusion_factor(num_old: int, num_new: int) -> float:
    """The share of what is new, by EWF's rule.

    Args:
        num_old: old channels, background included.
        num_new: new channels.
    """
    return math.sqrt(num_new / (num_old + num_new))


@torch.no_grad()
def fuse_(network: nn.Module, old: Mapping[str, Tensor], factor: float) -> None:
    """Mix a network's tensors with those of the network it was learnt from, in place.

    Args:
        network: what was learnt; it has all that `old` has, and may have grown.
        old: the old network's `state_dict`. A tensor that has more rows now keeps the new ones.
        factor: a, the share of what is new: 0 gives the old network back, 1 changes nothing.
    """
    state = network.state_dict()
    for name, before in old.items():
        now = state[name][: len(before)] if before.dim() else state[name]
        assert now.shape == before.shape, (name, state[name].shape, before.shape)
        if now.is_floating_point():
            now.lerp_(before.to(now), 1 - factor)
