"""Fusion of the weights of two steps (EWF): the old network and the one learned from it, in one.

    W = (1 - a) W_old + a W_new,     a = sqrt(N / (O + N))   or a number of one's own

for everything that the old network had: weights, the affine parameters of the normalization and its
running statistics, old rows of the classifier. O are the old channels, background included, N the
new ones, whose rows stay as they were learned. What is not a floating-point number stays, too.

After MiB's initialization the background's bias is log(N + 1) below the old one; the fusion leaves
a log(N + 1) of that.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from nacre.errors import NacreError


def fusion_factor(num_old: int, num_new: int) -> float:
    """Return the share of what is new, by EWF's rule.

    Args:
        num_old: old channels, background included.
        num_new: new channels.
    """
    return math.sqrt(num_new / (num_old + num_new))


@torch.no_grad()
def fuse_(network: nn.Module, old: Mapping[str, Tensor], factor: float) -> None:
    """Mix a network's tensors with those of the network it was learned from, in place.

    Args:
        network: what was learned; it has all that `old` has, and may have grown.
        old: the old network's `state_dict`. A tensor that has more rows now keeps the new ones.
        factor: a, the share of what is new: 0 gives the old network back, 1 changes nothing.

    Raises:
        NacreError: a tensor did not grow by rows alone; nothing was mixed.
    """
    mixed: set[object] = set()  # a tied tensor has several names, and is mixed once
    for now, before in _old_parts(network, old):
        place = (now.data_ptr(), now.shape)
        if now.is_floating_point() and place not in mixed:
            now.lerp_(before.to(now), 1 - factor)
            mixed.add(place)


def check_fusible(network: nn.Module, old: Mapping[str, Tensor]) -> None:
    """Refuse a network that has grown in a way that cannot be fused with what it was.

    Raises:
        NacreError: a tensor of the old network did not grow by rows alone.
    """
    _old_parts(network, old)


def _old_parts(network: nn.Module, old: Mapping[str, Tensor]) -> list[tuple[Tensor, Tensor]]:
    """Return what each old tensor has become, without new rows, and the old tensor.

    Rows come at the end of one dimension: the first, or the second of a transposed convolution.
    """
    state = network.state_dict()
    parts: list[tuple[Tensor, Tensor]] = []
    for name, before in old.items():
        now = state.get(name)
        if now is not None and now.dim() == before.dim():
            grew = [i for i in range(now.dim()) if now.shape[i] > before.shape[i]]
            for dim in grew[:1]:
                now = now.narrow(dim, 0, before.shape[dim])
        if now is None or now.shape != before.shape:
            became = "gone" if name not in state else _size(state[name])
            raise NacreError(
                f"method.fusion: {name} was {_size(before)} and is {became} now, which "
                "cannot be fused: only networks that grow by rows of their classifier can; leave "
                "method.fusion=off"
            )
        parts.append((now, before))
    return parts


def _size(value: Tensor) -> str:
    return " x ".join(map(str, value.shape)) or "a number"
