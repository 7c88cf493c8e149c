"""STAR: the statistics that are kept of a class instead of its images, and the terms they are for.

A feature f of a pixel (the head's output, D numbers) is a direction u = f/|f| and a length |f|. Of
the n pixels of a class k are kept

    prototype m = (sum u) / |sum u|       noise[d] = sqrt(mean of (u[d] - m[d])^2)
    mean and standard deviation of |f|    n

about 2 D + 3 numbers. They follow from sums that add up over batches and over processes
(`FeatureMoments`), with mean (u - m)^2 = mean u^2 - 2 m mean u + m^2. Features of the class are
drawn again as

    x = (m + noise * e) * (mean + deviation * e'),   e normal for each channel, e' for each vector

and cut off at 0 where features come from a ReLU.

The channels are one sigmoid per class, without background; old rows stay as they are. With N_k the
pixels of class k in its own step and N_0 those of background, P_k and P_0 the pixels of this step
that are labeled background and that the teacher gives to k or to no class (all on the grid of the
features, over one epoch), an iteration draws

    n_k = floor(max(0, N_k - P_k) / iterations per epoch)     (without P_k if not overlapped)

features x of each old class: those that the step's own images lack, where these may be some of the
old ones. Background that the step lacks is made up by counting
its own again,

    r = max(0, N_0 (1 - 0.01 |new classes|) / P_0 - 1/2)   overlapped,   N_0 / P_0   else

B being the pixels of the batch that are labeled background and of which the teacher says so too.
With w_f = sum n_k / (N h w) and w_b = r |B| / (N h w),

    bce  = sum over the new c of (labels[c] + w_f drawn[c] + w_b background[c]) / (1 + w_f + w_b)
    drawn[c] = mean over the drawn x of log(1 + e^x_c),  background[c] = the same over B

labels[c] is `binary_cross_entropy` of the new channels. (The divisor takes |B| as its mean over the
step's batches, so that neither accumulation nor several processes change it.) Old features stay
where the teacher has them,

    pkd  = sum over m (f - f_teacher)^2 / (D sum m)

m being 1 where the label is background and the teacher says an old class, resized to the grid; and
new classes keep their distance, v_c the direction of the sum of u over the pixels of class c,

    contrast = 1/|new classes| sum over the new c of 1 / min over the old k of |v_c - m_k|

The weights are 5 for pkd and 0.05 for contrast; positive pixels weigh 4 on VOC and 30 on ADE20K.
After a step N_0 becomes N_0 (1 - 0.01 |new classes|) + P_0 / 2 (overlapped), or N_0 + P_0 and N_k
becomes N_k + P_k.

What the released implementation does otherwise, and is mended here:

- the noise of later classes is taken about the prototypes of other, older classes: too large;
- e', the length of a drawn vector, is drawn for each of its channels;
- drawn features may be negative where a ReLU never is;
- pkd is 0/0 in a batch without old pixels, and the update is lost; it is 0 here;
- a class that is absent from the batch has v_c = 0 and adds a constant to contrast; it adds 0 here;
- old rows, which no loss trains, shrink by weight decay: freeze them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.losses.reference import at_least_float32

_LEAST_LENGTH = 1e-9


@dataclass(frozen=True)
class FeatureMoments:
    """Sums over the pixels of each class.

    Attributes:
        count: K, pixels.
        direction: K,D, the sum of u.
        direction_square: K,D, the sum of u^2.
        length: K, the sum of |f|.
        length_square: K, the sum of |f|^2.
    """

    count: Tensor
    direction: Tensor
    direction_square: Tensor
    length: Tensor
    length_square: Tensor

    def __add__(self, other: FeatureMoments) -> FeatureMoments:
        """Return the sums over the pixels of both."""
        return FeatureMoments(
            self.count + other.count,
            self.direction + other.direction,
            self.direction_square + other.direction_square,
            self.length + other.length,
            self.length_square + other.length_square,
        )


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
def feature_moments(
    features: Tensor, targets: Tensor, first: int, num_classes: int
) -> FeatureMoments:
    """Sum up the features of each class.

    Args:
        features: N,D,h,w.
        targets: N,h,w, at the resolution of the features; see `grid_targets`.
        first: the first class's target.
        num_classes: K, how many classes from there on; all other pixels are left out.

    Returns:
        The sums, in float64 (float32 on devices without).
    """
    dtype = torch.float32 if features.device.type == "mps" else torch.float64
    f = features.detach().permute(0, 2, 3, 1).flatten(0, 2).to(dtype)
    classes = torch.arange(first, first + num_classes, device=f.device)
    is_class = (targets.flatten().long() == classes.unsqueeze(1)).to(dtype)
    length, u = f.norm(dim=1), directions(f)
    return FeatureMoments(
        count=is_class.sum(1),
        direction=is_class @ u,
        direction_square=is_class @ u.square(),
        length=is_class @ length,
        length_square=is_class @ length.square(),
    )


def feature_statistics(moments: FeatureMoments) -> FeatureStatistics:
    """Turn sums into what is kept, float32; a class without pixels gets 0 everywhere."""
    count = moments.count.clamp(min=1)
    prototype = directions(moments.direction)
    about_prototype = moments.direction_square - 2 * prototype * moments.direction
    variance = about_prototype / count.unsqueeze(1) + prototype.square()
    mean = moments.length / count
    length_variance = moments.length_square / count - mean.square()
    return FeatureStatistics(
        prototype=prototype.float(),
        noise=variance.clamp(min=0).sqrt().float(),
        length_mean=mean.float(),
        length_std=length_variance.clamp(min=0).sqrt().float(),
        count=moments.count.float(),
    )


def draw_features(
    statistics: FeatureStatistics,
    counts: Tensor,
    *,
    non_negative: bool,
    total: int | None = None,
    generator: torch.Generator | None = None,
) -> Tensor:
    """Draw features of the classes, class by class.

    Args:
        statistics: of K classes.
        counts: K, how many of each.
        non_negative: whether the features come from a ReLU: then none is below 0.
        total: the sum of the counts, where it is known: else a GPU is asked for it.
        generator: of the device of the statistics.

    Returns:
        P,D with P the sum of the counts.
    """
    counts = counts.to(statistics.prototype.device)

    def of_class(values: Tensor) -> Tensor:
        return values.repeat_interleave(counts, 0, output_size=total)

    prototype = of_class(statistics.prototype)
    length = of_class(statistics.length_mean)
    e, e_length = (torch.empty_like(x).normal_(generator=generator) for x in (prototype, length))
    length = (length + of_class(statistics.length_std) * e_length).clamp(min=0)
    x = (prototype + of_class(statistics.noise) * e) * length.unsqueeze(1)
    return x.clamp(min=0) if non_negative else x


def directions(x: Tensor) -> Tensor:
    """Divide vectors ...,D by their lengths; one without length has no direction and stays 0."""
    length = x.norm(dim=-1, keepdim=True)
    return x / torch.where(length > _LEAST_LENGTH, length, 1)


def grid_targets(targets: Tensor, size: tuple[int, int]) -> Tensor:
    """Return targets N,H,W at the resolution of features: of each cell the one in its middle."""
    rows, columns = (
        (2 * torch.arange(small, device=targets.device) + 1) * large // (2 * small)
        for small, large in zip(size, targets.shape[1:], strict=True)
    )
    return targets[:, rows.unsqueeze(1), columns]


def replay_counts(
    stored: Tensor, seen: Tensor, iterations: int, *, overlapped: bool = True
) -> Tensor:
    """Return how many features of each old class to draw in an iteration, n_k.

    Args:
        stored: K, the pixels of the classes in their own steps.
        seen: K, those that the teacher finds in this step.
        iterations: per epoch.
        overlapped: whether images of other steps may come again.
    """
    lacking = (stored - seen).clamp(min=0) if overlapped else stored
    return (lacking / iterations).long()


def background_replay(stored: float, seen: float, num_new: int, *, overlapped: bool) -> float:
    """Return how many times over a step's background counts again, r.

    Args:
        stored: N_0, background pixels of the steps before.
        seen: P_0, those of this step, as labels and teacher agree.
        num_new: new classes.
        overlapped: whether images of other steps may come again.
    """
    if seen <= 0:
        return 0.0
    if overlapped:
        return max(0.0, stored * (1 - 0.01 * num_new) / seen - 0.5)
    return stored / seen


def background_count(stored: float, seen: float, num_new: int, *, overlapped: bool) -> float:
    """Return N_0 for the next step; if overlapped, every other background pixel is a new one."""
    return stored * (1 - 0.01 * num_new) + 0.5 * seen if overlapped else stored + seen


def replay_divisor(num_drawn: float, background_pixels: float, num_pixels: float) -> float:
    """Return 1 + w_f + w_b, which labels, drawn features and background are divided by.

    Args:
        num_drawn: features that are drawn for a batch.
        background_pixels: r |B| of a batch.
        num_pixels: N h w of a batch, on the grid of the features.
    """
    return 1 + (num_drawn + background_pixels) / num_pixels


def sum_of_negatives(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Return the binary cross-entropy of logits to 0, summed over pixels and channels.

    Args:
        logits: of any shape.
        mask: which of them count; all by default. (To select them first would mean to ask a GPU how
            many there are.)
    """
    loss = F.softplus(at_least_float32(logits))
    return (loss if mask is None else loss * mask).sum()


def masked_feature_distance(
    features: Tensor, old_features: Tensor, mask: Tensor, *, total: Tensor | None = None
) -> Tensor:
    """Return the mean square distance of features where a mask says so, pkd.

    Args:
        features: the student's, N,D,h,w.
        old_features: the teacher's, of the same shape; no gradient flows into them.
        mask: N,h,w, weights in 0..1, such as `grid_mask`.
        total: what the weighted sum is divided by, instead of the sum of the weights.

    Returns:
        The mean over the channels and the pixels, weighted; 0 if all weights are 0.
    """
    features = at_least_float32(features)
    distance = (features - old_features.detach().to(features.dtype)).square().mean(1)
    return (distance * mask).sum() / (mask.sum() if total is None else total).clamp(min=1e-4)


def grid_mask(mask: Tensor, size: tuple[int, int]) -> Tensor:
    """Return a mask N,H,W at the resolution of features, bilinear between the middle pixels."""
    wide = mask.float().unsqueeze(1)
    return F.interpolate(wide, size=size, mode="bilinear", align_corners=False).squeeze(1)


def direction_sums(features: Tensor, targets: Tensor, first_new: int, num_new: int) -> Tensor:
    """Return the sum of the directions of each new class's features, C,D; 0 for an absent class.

    Args:
        features: the student's, N,D,h,w.
        targets: N,h,w, at the resolution of the features.
        first_new: the first new class's target.
        num_new: new classes.
    """
    f = at_least_float32(features).permute(0, 2, 3, 1).flatten(0, 2)
    classes = torch.arange(first_new, first_new + num_new, device=f.device)
    is_class = targets.flatten().long() == classes.unsqueeze(1)
    # Autocast would take the product to half precision.
    with torch.autocast(f.device.type, enabled=False):
        return is_class.to(f.dtype) @ directions(f)


def prototype_contrast(sums: Tensor, prototypes: Tensor) -> Tensor:
    """Return how near new classes are to the nearest old prototypes, contrast.

    Args:
        sums: C,D, as `direction_sums` gives them; they add up over batches and processes.
        prototypes: K,D, of the old classes; 0 for one of which no pixel was seen, which is far.
    """
    v = directions(sums)
    distances = (v.unsqueeze(1) - prototypes.to(v.dtype)).norm(dim=2)
    nearest = distances.masked_fill(~prototypes.any(1), torch.inf).amin(1)
    return ((sums != 0).any(1) / nearest.clamp(min=1e-6)).mean()
