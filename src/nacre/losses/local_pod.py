"""Local POD: the distance between two feature maps in the means over bands of windows (PLOP).

With f the student's map of a layer (D,h,w) and g the teacher's, every element is squared. For each
scale s the maps are cut into s x s windows of (h // s) x (w // s); rows and columns that are left
over do not count. Each window is described by its means over the width and over the height:

    Phi(f) = all of  1/(w // s) sum_col f[d, row, col]^2   and   1/(h // s) sum_row f[d, row, col]^2
    local_pod(f, g) = mean over the images of | Phi(f) - Phi(g) |_2

    pod = sqrt(T/N) / layers * sum over the layers of factor * local_pod

with T all channels, background included, and N the new ones. The norm is not squared, nothing is
normalised: so PLOP's released implementation, whose factors mean something only with it. For the
layer of the logits the student's new channels are added to its background's, as they are
(`merge_new_into_background`), so that both have the old channels.

Phi is linear in the squares, so only d = f^2 - g^2 is pooled, for all scales at once by one matrix
product along the width and one along the height. The gradient is

    2 f * (the transposed products of Phi(f) - Phi(g)) / |Phi(f) - Phi(g)| / images

(0 where the norm is 0), so that of all intermediate results only the small Phi need be kept.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

SCALES = (1, 2, 4)
"""PLOP's: the whole map, its quarters, its sixteenths."""


def local_pod(features: Tensor, old_features: Tensor, *, scales: Sequence[int] = SCALES) -> Tensor:
    """Distance of one layer's features to the teacher's.

    Args:
        features: the student's, N,D,h,w, in any precision; squares are taken in float32 at least.
        old_features: the teacher's, of the same shape; no gradient flows into them.
        scales: windows along each side. One with more windows than rows or columns has none.

    Returns:
        The mean over the images of the distance.
    """
    assert features.shape == old_features.shape, (features.shape, old_features.shape)
    distance: Tensor = _LocalPod.apply(  # type: ignore[no-untyped-call]
        features, old_features.detach(), tuple(scales)
    )
    return distance


def pod_loss(
    layers: Iterable[tuple[Tensor, Tensor, float]],
    *,
    num_old: int,
    num_new: int,
    scales: Sequence[int] = SCALES,
) -> Tensor:
    """Sum of the layers' distances, weighted as PLOP does.

    Args:
        layers: the student's features, the teacher's, and the layer's factor.
        num_old: old channels, background included.
        num_new: new channels.
        scales: as in `local_pod`.
    """
    distances = [factor * local_pod(f, g, scales=scales) for f, g, factor in layers]
    return math.sqrt((num_old + num_new) / num_new) * torch.stack(distances).mean()


def merge_new_into_background(logits: Tensor, num_old: int) -> Tensor:
    """Add the new channels' logits to the background's: N,C,h,w becomes N,num_old,h,w."""
    background = logits[:, :1] + logits[:, num_old:].sum(1, keepdim=True)
    return torch.cat([background, logits[:, 1:num_old]], 1)


class _LocalPod(torch.autograd.Function):
    """Both passes in the layout N,h,w,D, in which the trainer has features lie in memory."""

    @staticmethod
    def forward(
        ctx: Any, features: Tensor, old_features: Tensor, scales: tuple[int, ...]
    ) -> Tensor:
        # Autocast would take the matrix products to half precision.
        with torch.autocast(features.device.type, enabled=False):
            difference = _difference_of_squares(features, old_features)
            _, height, width, _ = difference.shape
            scales = tuple(scale for scale in scales if scale <= min(height, width))
            rows, columns = (_Windows(size, scales, difference) for size in (height, width))
            by_row = torch.matmul(columns.means.t(), difference) * rows.inside.unsqueeze(2)
            by_column = _along_height(rows.means.t(), difference) * columns.inside.t().unsqueeze(2)
            norms = (_square_sum(by_row) + _square_sum(by_column)).sqrt()
        ctx.save_for_backward(features, by_row, by_column, rows.means, columns.means, norms)
        return norms.mean()

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, scale: Tensor) -> tuple[Tensor | None, ...]:
        features, by_row, by_column, row_means, column_means, norms = ctx.saved_tensors
        with torch.autocast(features.device.type, enabled=False):
            factor = torch.where(norms > 0, 2 * scale / (norms * len(norms)), 0).view(-1, 1, 1, 1)
            gradient = torch.matmul(column_means, by_row * factor)
            gradient += _along_height(row_means, by_column * factor)
            gradient = gradient.permute(0, 3, 1, 2).mul_(features)
        return gradient.to(features.dtype), None, None


class _Windows:
    """How the rows (or columns) of a map fall into windows, all scales side by side.

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


def _difference_of_squares(features: Tensor, old_features: Tensor) -> Tensor:
    """The difference of squares, N,h,w,D, in float32 at least: squares overflow half precision."""
    dtype = torch.promote_types(features.dtype, torch.float32)
    difference = features.to(dtype).square() - old_features.to(dtype).square()
    return difference.permute(0, 2, 3, 1).contiguous()


def _along_height(matrix: Tensor, x: Tensor) -> Tensor:
    """The product with a matrix over the rows of N,h,w,D."""
    return torch.matmul(matrix, x.flatten(2)).view(len(x), len(matrix), *x.shape[2:])


def _square_sum(x: Tensor) -> Tensor:
    return x.square().sum((1, 2, 3))
