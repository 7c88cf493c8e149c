"""The terms of STAR: replay of class statistics, of the background, and features held in place.

The channels are one sigmoid per class, without background; old rows stay as they are. With N_k the
pixels of class k in its own step and N_0 those of background, P_k and P_0 the pixels of this step
that are labelled background and that the teacher gives to k or to no class (all on the grid of the
features, over one epoch), an iteration draws

    n_k = floor(max(0, N_k - P_k) / iterations per epoch)     (without P_k if not overlapped)

features x of each old class (`nacre.losses.feature_statistics`): those that the step's own pictures
lack, where these may be some of the old ones. Background that the step lacks is made up by counting
its own again,

    r = max(0, N_0 (1 - 0.01 |new classes|) / P_0 - 1/2)   overlapped,   N_0 / P_0   else

B being the pixels of the batch that are labelled background and of which the teacher says so too.
With w_f = sum n_k / (N h w) and w_b = r |B| / (N h w),

    bce  = sum over the new c of (labels[c] + w_f drawn[c] + w_b background[c]) / (1 + w_f + w_b)
    drawn[c] = mean over the drawn x of log(1 + e^x_c),  background[c] = the same over B

labels[c] is `new_binary_cross_entropy`. (The divisor takes |B| as its mean over the step's batches,
so that neither accumulation nor several processes change it.) Old features stay where the teacher
has them,

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

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.losses.feature_statistics import directions
from nacre.losses.reference import at_least_float32


def replay_counts(
    stored: Tensor, seen: Tensor, iterations: int, *, overlapped: bool = True
) -> Tensor:
    """How many features of each old class to draw in an iteration, n_k.

    Args:
        stored: K, the pixels of the classes in their own steps.
        seen: K, those that the teacher finds in this step.
        iterations: per epoch.
        overlapped: whether pictures of other steps may come again.
    """
    lacking = (stored - seen).clamp(min=0) if overlapped else stored
    return (lacking / iterations).long()


def background_replay(stored: float, seen: float, num_new: int, *, overlapped: bool) -> float:
    """How many times over a step's background counts again, r.

    Args:
        stored: N_0, background pixels of the steps before.
        seen: P_0, those of this step, as labels and teacher agree.
        num_new: new classes.
        overlapped: whether pictures of other steps may come again.
    """
    if seen <= 0:
        return 0.0
    if overlapped:
        return max(0.0, stored * (1 - 0.01 * num_new) / seen - 0.5)
    return stored / seen


def background_count(stored: float, seen: float, num_new: int, *, overlapped: bool) -> float:
    """N_0 for the next step; in overlapped every other background pixel is taken for a new one."""
    return stored * (1 - 0.01 * num_new) + 0.5 * seen if overlapped else stored + seen


def replay_divisor(num_drawn: float, background_pixels: float, num_pixels: float) -> float:
    """1 + w_f + w_b, which labels, drawn features and background are divided by.

    Args:
        num_drawn: features that are drawn for a batch.
        background_pixels: r |B| of a batch.
        num_pixels: N h w of a batch, on the grid of the features.
    """
    return 1 + (num_drawn + background_pixels) / num_pixels


def sum_of_negatives(logits: Tensor, mask: Tensor | None = None) -> Tensor:
    """Binary cross-entropy of logits to 0, summed over pixels and channels.

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
    """Mean square distance of features where a mask says so, pkd.

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
    """A mask N,H,W at the resolution of features: bilinear between the pixels in the middle."""
    wide = mask.float().unsqueeze(1)
    return F.interpolate(wide, size=size, mode="bilinear", align_corners=False).squeeze(1)


def direction_sums(features: Tensor, targets: Tensor, first_new: int, num_new: int) -> Tensor:
    """The sum of the directions of each new class's features, C,D; 0 for a class that is absent.

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
    """How near new classes are to the nearest old prototypes, contrast.

    Args:
        sums: C,D, as `direction_sums` gives them; they add up over batches and processes.
        prototypes: K,D, of the old classes; 0 for one of which no pixel was seen, which is far.
    """
    v = directions(sums)
    distances = (v.unsqueeze(1) - prototypes.to(v.dtype)).norm(dim=2)
    nearest = distances.masked_fill(~prototypes.any(1), torch.inf).amin(1)
    return ((sums != 0).any(1) / nearest.clamp(min=1e-6)).mean()
