"""Grafts: what is kept of old pictures, and how it grows on new ones.

Of a picture with features f and the share a of each cell (a pixel of the features) that a class
covers, one vector is kept, the mean of the class's features

    m = sum of a f / sum of a                                         over the cells

Of a class, some of these vectors x_1 … x_M are kept. Means of objects that were never seen are
drawn from the Gaussian that they have in common:

    m' = mean of x + (1 / sqrt M) sum of g_i (x_i - mean of x),       g_i normal

A graft exchanges the means of a picture: of the object that is labelled in it, and of the rest,

    f' = f + a (m' - m) + (1 - a) (b' - b)

What a class looks like around its mean, and where it stands, is then that of a real picture. Of the
background, prototypes b' are kept: centers of the features of its cells, with their weights.




Features that drift take what is kept with them, to x + A x + b; A and b are those of the cells of
pictures that were seen before and after (`Drift`).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST = 1e-3
"""Of a sum of shares that is divided by."""
RIDGE = 1e-3
"""What holds a drift small, beside the mean square of the features."""


def size_of(maps: Tensor) -> tuple[int, int]:
    """Return height and width."""
    return maps.shape[-2], maps.shape[-1]


def pool(values: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the means of N,K,H,W in each cell of a coarser grid."""
    if size_of(values) == size:
        return values
    height, width = (-(-full // cells) for full, cells in zip(values.shape[-2:], size, strict=True))
    # As many pixels to every cell: sizes that the grid does not divide are stretched a little.
    values = F.interpolate(values, (height * size[0], width * size[1]), mode="nearest")
    return F.avg_pool2d(values, (height, width))


def stack(maps: Sequence[Tensor]) -> Tensor:
    """Return maps as one, N,K,h,w, on the grid of the coarsest."""
    size = min((size_of(one) for one in maps), key=math.prod)
    return torch.cat([pool(one, size) for one in maps], 1)


def cell_shares(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """Return the share of each cell that a mask covers.

    Args:
        mask: N,H,W, bool.
        size: Height and width of the grid of cells.
    """
    return pool(mask[:, None].float(), size)[:, 0]


def mean_features(features: Tensor, shares: Tensor) -> Tensor:
    """Return the mean of the features over the cells, weighted by shares: N,K of N,K,h,w."""
    weights = shares[:, None]
    return (features * weights).sum((2, 3)) / weights.sum((2, 3)).clamp(min=LEAST)


def map_means(maps: Sequence[Tensor], shares: Sequence[Tensor]) -> Tensor:
    """Return the means of all maps, each with the shares of its cells: N,K."""
    return torch.cat([mean_features(*one) for one in zip(maps, shares, strict=True)], 1)


def draw_means(kept: Tensor, counts: Tensor, classes: Tensor, noise: Tensor) -> Tensor:
    """Draw means of objects of classes.

    Args:
        kept: C,M,K, the vectors of each class, the rest 0.
        counts: C, how many it has.
        classes: N, of which class each is to be.
        noise: N,M, normal.
    """
    vectors, count = kept[classes], counts[classes].to(kept.dtype)[:, None]
    center = vectors.sum(1) / count.clamp(min=1)
    is_kept = torch.arange(kept.shape[1], device=kept.device) < count
    noise = noise * is_kept
    spread = torch.einsum("nm,nmk->nk", noise, vectors) - noise.sum(1, keepdim=True) * center
    return center + spread / count.clamp(min=1).sqrt()


def graft(features: Tensor, shares: Tensor, objects: Tensor, background: Tensor) -> Tensor:
    """Return features with other means.

    Args:
        features: N,K,h,w.
        shares: N,h,w, of the object.
        objects: N,K, the object's new mean.
        background: N,K, that of the rest.
    """
    object_shift = objects - mean_features(features, shares)
    background_shift = background - mean_features(features, 1 - shares)
    weights = shares[:, None]
    return (
        features
        + weights * object_shift[..., None, None]
        + (1 - weights) * background_shift[..., None, None]
    )


def graft_maps(
    maps: Sequence[Tensor], shares: Sequence[Tensor], objects: Tensor, background: Tensor
) -> list[Tensor]:
    """Return maps with other means, which are those of all maps together."""
    widths = [one.shape[1] for one in maps]
    means = torch.split(objects, widths, 1), torch.split(background, widths, 1)
    return [graft(*one) for one in zip(maps, shares, *means, strict=True)]


def old_share(old_logits: Tensor, shares: Tensor) -> Tensor:
    """Return the probability that a teacher takes an object for one of its classes: N.

    Args:
        old_logits: N,O,h,w, the teacher's, background first.
        shares: N,h,w, of the object.
    """
    background = old_logits.float().softmax(1)[:, :1]
    return 1 - mean_features(background, shares)[:, 0]


def folded_distillation(
    logits: Tensor, old_logits: Tensor, weights: Tensor, *, has_background: bool = True
) -> Tensor:
    """Distillation of the old channels, unbiased (eq. 7), on cells that weigh differently.

    Where a new class is labelled the teacher is wrong: it names the old class that looks most like
    it. Such cells are to weigh 0.

    Args:
        logits: N,C,h,w.
        old_logits: N,O,h,w, the teacher's.
        weights: N,h,w.
        has_background: False where nothing hid the new classes: only old ones are compared (eq. 6).

    Returns:
        The mean over cells and old channels.
    """
    num_old = old_logits.shape[1]
    if not has_background:
        logits = logits[:, :num_old]
    log_p = logits.float().log_softmax(1)
    background = torch.cat([log_p[:, :1], log_p[:, num_old:]], 1).logsumexp(1, keepdim=True)
    folded = torch.cat([background, log_p[:, 1:num_old]], 1)
    terms = (old_logits.float().softmax(1) * folded).sum(1) * weights
    return -terms.mean() / num_old


def find_prototypes(features: Tensor, count: int, rounds: int = 10) -> tuple[Tensor, Tensor]:
    """Return centers of features by k-means, and the share of the features that is nearest to each.

    The result is that of the set of features, whatever their order.

    Args:
        features: n,K.
        count: Of centers; fewer where there are fewer features.
        rounds: Of the search.
    """
    count = min(count, len(features))
    features = features[features[:, 0].argsort()]
    first = torch.linspace(0, max(len(features) - 1, 0), count).long()
    centers = features[first].clone()
    for _ in range(rounds):
        nearest = _nearest(features, centers)
        sizes = _sizes(nearest, centers)
        sums = torch.zeros_like(centers).index_add_(0, nearest, features)
        centers = torch.where(sizes[:, None] > 0, sums / sizes[:, None].clamp(min=1), centers)
    return centers, _sizes(_nearest(features, centers), centers) / max(len(features), 1)


def count_nearest(features: Tensor, centers: Tensor, weights: Tensor) -> Tensor:
    """Return how much all features weigh that are nearest to each center."""
    return _sizes(_nearest(features, centers), centers, weights)


def _nearest(features: Tensor, centers: Tensor) -> Tensor:
    # |x - c|^2 without what is the same for all centers
    return (centers.square().sum(1) - 2 * features @ centers.t()).argmin(1)


def _sizes(nearest: Tensor, centers: Tensor, weights: Tensor | None = None) -> Tensor:
    weights = centers.new_ones(len(nearest)) if weights is None else weights.to(centers.dtype)
    return centers.new_zeros(len(centers)).index_add_(0, nearest, weights)


def give_up(weights: Tensor, explained: Tensor) -> Tensor:
    """Return the weights of background prototypes when new classes explain a part of them.

    A class that was hidden in the background lies near some of its prototypes; they are the less
    background the more of the class does: w (w / (w + q))^2 for each class, q its part.

    Args:
        weights: P, which sum to 1.
        explained: C,P, features of each new class that are nearest to each prototype.
    """
    parts = explained / explained.sum(1, keepdim=True).clamp(min=1)
    kept = weights * (weights / (weights + parts).clamp(min=1e-12)).square().prod(0)
    return kept / kept.sum().clamp(min=1e-12)


class Drift:
    """How features moved, from cells that were seen before and after.

    Of cells x and y the map x + A x + b is found that is nearest to y in the least squares, with A
    held small (`RIDGE`) in directions of which the cells say little.

    Args:
        channels: Of the features.
    """

    def __init__(self, channels: int) -> None:
        # of (x, 1) with itself and with y - x
        self._squares = torch.zeros(channels + 1, channels + 1, dtype=torch.float64)
        self._products = torch.zeros(channels + 1, channels, dtype=torch.float64)

    def add(self, before: Tensor, after: Tensor) -> None:
        """Count features of pictures, N,K,h,w, before and after."""
        x, y = (f.permute(0, 2, 3, 1).flatten(0, 2) for f in (before, after))
        x1 = torch.cat([x, x.new_ones(len(x), 1)], 1)
        self._squares += (x1.t() @ x1).cpu()
        self._products += (x1.t() @ (y - x)).cpu()

    def solve(self, add_up: Callable[[Tensor], Tensor]) -> Callable[[Tensor], Tensor]:
        """Return what moves vectors of shape ...,K; `add_up` joins the processes."""
        squares, products = add_up(self._squares), add_up(self._products)
        ridge = RIDGE * squares.diagonal()[:-1].mean().clamp(min=1e-12)
        held = torch.full((len(squares),), float(ridge), dtype=torch.float64)
        held[-1] = 1e-12  # b is free
        solved = torch.linalg.solve(squares + held.diag(), products)

        def move(vectors: Tensor) -> Tensor:
            wide = vectors.double()
            return (wide + wide @ solved[:-1] + solved[-1]).to(vectors.dtype)

        return move
