"""How a classification network keeps its resolution: strides that are given up become dilation.

Where a layer keeps its resolution instead of halving it, the layers after it are dilated: at every
second pixel the features are then those of the network as trained.
"""

from __future__ import annotations

from collections.abc import Iterable


def dilate(strides: Iterable[int], output_stride: int) -> list[tuple[int, int]]:
    """Return stride and dilation of each layer.

    Args:
        strides: of the layers as trained, from the first.
        output_stride: what all strides together may be.
    """
    reached = dilation = 1
    layers = []
    for stride in strides:
        kept = reached * stride <= output_stride
        layers.append((stride if kept else 1, dilation))
        reached *= stride if kept else 1
        dilation *= 1 if kept else stride
    return layers
