"""Statistics that are kept of a class instead of its images, and distances to what they say (STAR).

A feature f of a pixel (the decoder's output, D numbers) is a direction u = f/|f| and a length |f|.
Of the n pixels of a class are kept

    prototype m = (sum u) / |sum u|       noise[d] = sqrt(mean of (u[d] - m[d])^2)
    mean and standard deviation of |f|    n

about 2 D + 3 numbers. They follow from sums that add up over batches and over processes
(`feature_moments`), with mean (u - m)^2 = mean u^2 - 2 m mean u + m^2. Features of the class are
drawn again as

    x = (m + noise * e) * (mean + deviation * e'),   e normal for each channel, e' for each vector

and cut off at 0 where features come from a ReLU. Old features stay where the teacher has them, with
a weight w of each pixel, and new classes c keep their distance to old prototypes m_k, v_c being the
direction of the sum of u over the pixels of c:

    masked_feature_distance   sum over the pixels of w (f - f_teacher)^2 / (D sum w)
    prototype_contrast        mean over the new c of 1 / min over the old k of |v_c - m_k|

`nacre.methods.star` says what these are for.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.losses.reference import at_least_float32

_LEAST_LENGTH = 1e-9


@dataclass(frozen=True)
class FeatureStatistics:
    """The statistics of each class; see the module.

    Attributes:
        prototype: K,D, of length 1, or 0 for a class without pixels.
        noise: K,D.
        length_mean: K.
        length_std: K.
        count: K, pixels.
    """

    prototype: Tensor
    noise: Tensor
    length_mean: Tensor
    length_std: Tensor
    count: Tensor


@torch.no_grad()
def feature_moments(features: Tensor, targets: Tensor, first: int, num_classes: int) -> Tensor:
    """Sum up the features N,D,h,w of each of K classes, whose targets count from `first`.

    Targets N,h,w have the resolution of the features (`grid_targets`). Returned are K,3+2D sums
    over the pixels of each class of 1, |f|, |f|^2, u and u^2, in float64 (float32 on devices
    without). They may be added.
    """
    dtype = torch.float32 if features.device.type == "mps" else torch.float64
    f = features.detach().permute(0, 2, 3, 1).flatten(0, 2).to(dtype)
    classes = torch.arange(first, first + num_classes, device=f.device)
    is_class = (targets.flatten().long() == classes.unsqueeze(1)).to(dtype)
    length, u = f.norm(dim=1), directions(f)
    lengths = torch.stack([is_class.sum(1), is_class @ length, is_class @ length.square()], 1)
    return torch.cat([lengths, is_class @ u, is_class @ u.square()], 1)


def feature_statistics(moments: Tensor) -> FeatureStatistics:
    """Turn sums into what is kept, float32; a class without pixels gets 0 everywhere."""
    pixels, length, length_square = moments[:, :3].unbind(1)
    direction, direction_square = moments[:, 3:].chunk(2, 1)
    count = pixels.clamp(min=1)
    prototype = directions(direction)
    about_prototype = direction_square - 2 * prototype * direction
    variance = about_prototype / count.unsqueeze(1) + prototype.square()
    mean = length / count
    length_variance = length_square / count - mean.square()
    return FeatureStatistics(
        prototype=prototype.float(),
        noise=variance.clamp(min=0).sqrt().float(),
        length_mean=mean.float(),
        length_std=length_variance.clamp(min=0).sqrt().float(),
        count=pixels.float(),
    )


def draw_features(
    statistics: FeatureStatistics, counts: Tensor, *, non_negative: bool, total: int | None = None
) -> Tensor:
    """Draw features of the classes, class by class.

    Args:
        statistics: of K classes.
        counts: K, how many of each.
        non_negative: whether the features come from a ReLU: then none is below 0.
        total: the sum of the counts, where it is known: else a GPU is asked for it.

    Returns:
        P,D with P the sum of the counts.
    """
    counts = counts.to(statistics.prototype.device)

    def of_class(values: Tensor) -> Tensor:
        return values.repeat_interleave(counts, 0, output_size=total)

    prototype = of_class(statistics.prototype)
    length = of_class(statistics.length_mean)
    e, e_length = torch.randn_like(prototype), torch.randn_like(length)
    length = (length + of_class(statistics.length_std) * e_length).clamp(min=0)
    x = (prototype + of_class(statistics.noise) * e) * length.unsqueeze(1)
    return x.clamp(min=0) if non_negative else x


def directions(x: Tensor) -> Tensor:
    """Divide vectors ...,D by their lengths; one without length has no direction and stays 0."""
    length = x.norm(dim=-1, keepdim=True)
    return x / torch.where(length > _LEAST_LENGTH, length, 1)


def grid_targets(targets: Tensor, size: tuple[int, int], *, corner: bool = False) -> Tensor:
    """Return targets N,H,W on a grid: of each cell the one in its middle or top left corner."""
    rows, columns = (
        (2 * torch.arange(small, device=targets.device) + (not corner)) * large // (2 * small)
        for small, large in zip(size, targets.shape[1:], strict=True)
    )
    return targets[:, rows.unsqueeze(1), columns]


def masked_feature_distance(
    features: Tensor, old_features: Tensor, mask: Tensor, *, total: Tensor | None = None
) -> Tensor:
    """Return the mean square distance of features to the teacher's, weighted by a mask N,h,w.

    `total` is what the weighted sum is divided by, instead of the sum of the weights. It is 0 if
    all weights are.
    """
    features = at_least_float32(features)
    distance = (features - old_features.detach().to(features.dtype)).square().mean(1)
    return (distance * mask).sum() / (mask.sum() if total is None else total).clamp(min=1e-4)


def direction_sums(features: Tensor, targets: Tensor, first_new: int, num_new: int) -> Tensor:
    """Return the sum of the directions of each new class's features, C,D; 0 for an absent class."""
    f = at_least_float32(features).permute(0, 2, 3, 1).flatten(0, 2)
    classes = torch.arange(first_new, first_new + num_new, device=f.device)
    is_class = targets.flatten().long() == classes.unsqueeze(1)
    # Autocast would take the product to half precision.
    with torch.autocast(f.device.type, enabled=False):
        return is_class.to(f.dtype) @ directions(f)


def prototype_contrast(sums: Tensor, prototypes: Tensor) -> Tensor:
    """Return how near new classes are to the nearest old prototypes.

    Args:
        sums: C,D, as `direction_sums` gives them; they add up over batches and processes.
        prototypes: K,D, of the old classes; 0 for one of which no pixel was seen, which is far.
    """
    v = directions(sums)
    distances = (v.unsqueeze(1) - prototypes.to(v.dtype)).norm(dim=2)
    nearest = distances.masked_fill(~prototypes.any(1), torch.inf).amin(1)
    return ((sums != 0).any(1) / nearest.clamp(min=1e-6)).mean()
