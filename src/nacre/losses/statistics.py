"""Feature statistics of classes, stored instead of their images, and the distances of STAR.

A feature f of a pixel (the decoder's output, D numbers) has a direction u = f/|f| and a length |f|.
For the n pixels of a class the statistics are

    prototype m = (sum u) / |sum u|       noise[d] = sqrt(mean of (u[d] - m[d])^2)
    mean and standard deviation of |f|    n

about 2 D + 3 numbers. They follow from sums, which can be added over batches and processes
(`feature_moments`), with mean (u - m)^2 = mean u^2 - 2 m mean u + m^2. Features of the class are
drawn as

    x = (m + noise * e) * (mean + deviation * e'),   e normal for each channel, e' for each vector

and clipped at 0 if features come from a ReLU. Two distances keep old features near the teacher's,
with a weight w for each pixel, and new classes c away from old prototypes m_k, with v_c the
direction of the sum of u over the pixels of c:

    masked_feature_distance   sum over the pixels of w (f - f_teacher)^2 / (D sum w)
    prototype_contrast        mean over new c of 1 / min over old k of |v_c - m_k|

`nacre.methods.star` uses them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.losses.reference import at_least_float32

_MIN_LENGTH = 1e-9


@dataclass(frozen=True)
class FeatureStatistics:
    """The statistics of K classes, see the module.

    Attributes:
        prototype: K,D, of length 1; 0 for a class without pixels.
        noise: K,D.
        length_mean: K.
        length_std: K.
        count: K, numbers of pixels.
    """

    prototype: Tensor
    noise: Tensor
    length_mean: Tensor
    length_std: Tensor
    count: Tensor


@torch.no_grad()
def feature_moments(features: Tensor, targets: Tensor, first: int, num_classes: int) -> Tensor:
    """Return sums K,3+2D over the pixels of each of K classes, of 1, |f|, |f|^2, u and u^2.

    The first class has the target `first`. Targets N,h,w have the resolution of the features
    N,D,h,w (`grid_targets`). The sums are in float64 (float32 on Metal) and can be added.
    """
    dtype = torch.float32 if features.device.type == "mps" else torch.float64
    f = features.detach().permute(0, 2, 3, 1).flatten(0, 2).to(dtype)
    classes = torch.arange(first, first + num_classes, device=f.device)
    is_class = (targets.flatten().long() == classes.unsqueeze(1)).to(dtype)
    length, u = f.norm(dim=1), directions(f)
    lengths = torch.stack([is_class.sum(1), is_class @ length, is_class @ length.square()], 1)
    return torch.cat([lengths, is_class @ u, is_class @ u.square()], 1)


def feature_statistics(moments: Tensor) -> FeatureStatistics:
    """Return the statistics that follow from sums, in float32; all 0 for a class without pixels."""
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
    """Return features P,D, class by class, `counts` K of each; none below 0 if `non_negative`.

    Without `total`, the sum of the counts, a GPU would have to be waited for.
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
    """Return vectors ...,D divided by their lengths; a vector of length 0 stays 0."""
    length = x.norm(dim=-1, keepdim=True)
    return x / torch.where(length > _MIN_LENGTH, length, 1)


def grid_targets(targets: Tensor, size: tuple[int, int], *, corner: bool = False) -> Tensor:
    """Return targets N,H,W on a grid: those in the middle or the top left corner of each cell."""
    rows, columns = (
        (2 * torch.arange(small, device=targets.device) + (not corner)) * large // (2 * small)
        for small, large in zip(size, targets.shape[1:], strict=True)
    )
    return targets[:, rows.unsqueeze(1), columns]


def masked_feature_distance(
    features: Tensor, old_features: Tensor, mask: Tensor, *, total: Tensor | None = None
) -> Tensor:
    """Return the mean squared distance of features from the teacher's, weighted by a mask N,h,w.

    The divisor is `total` instead of the sum of the mask, if given. The result is 0 for an empty
    mask.
    """
    features = at_least_float32(features)
    distance = (features - old_features.detach().to(features.dtype)).square().mean(1)
    return (distance * mask).sum() / (mask.sum() if total is None else total).clamp(min=1e-4)


def direction_sums(features: Tensor, targets: Tensor, first_new: int, num_new: int) -> Tensor:
    """Return the sums of directions of each new class's features, C,D; 0 for an absent class."""
    f = at_least_float32(features).permute(0, 2, 3, 1).flatten(0, 2)
    classes = torch.arange(first_new, first_new + num_new, device=f.device)
    is_class = targets.flatten().long() == classes.unsqueeze(1)
    # Autocast would compute the product in half precision.
    with torch.autocast(f.device.type, enabled=False):
        return is_class.to(f.dtype) @ directions(f)


def prototype_contrast(sums: Tensor, prototypes: Tensor) -> Tensor:
    """Return the mean of 1 / distance of new classes from the nearest old prototype.

    Args:
        sums: C,D, from `direction_sums`; sums of batches and processes can be added.
        prototypes: K,D, of the old classes; a prototype of 0 (no pixels) is left out.
    """
    v = directions(sums)
    distances = (v.unsqueeze(1) - prototypes.to(v.dtype)).norm(dim=2)
    nearest = distances.masked_fill(~prototypes.any(1), torch.inf).amin(1)
    return ((sums != 0).any(1) / nearest.clamp(min=1e-6)).mean()
