"""Pseudo-labels: the teacher's predictions on background pixels where it is certain.

With p the teacher's softmax of a pixel over its O channels, a pixel whose target y is background
becomes

    y' = argmax p   where the teacher is certain, else ignored (PLOP) or unchanged (SSUL)

and y' = y otherwise. (PLOP also replaces old targets, which its protocol does not have; here a
label of an old class stays.) The criteria of certainty are

    entropy       H < threshold[argmax p],  H = -sum p log p / log O, in 0..1 (PLOP)
    probability   max p >= threshold
    sigmoid       max sigmoid(z) >= threshold, for teachers with one sigmoid per channel (SSUL)

PLOP's threshold of a channel is the median of H over the pixels that are labeled background and
that the teacher assigns to the channel, but at least 0.001. The median is interpolated within a bin
of a histogram (`score_histogram`); histograms of batches and processes are added.

PLOP's factor of an image is the share of its background pixels with pseudo-labels, which weighs the
image's cross-entropy. The divisor of the mean does not change.

PLOP's implementation computes something else (`released`), for which its results are published:

- it divides the entropy by O log T once more, T being the number of channels with the new ones. So
  all values are below 1 / (O log T) (0.022 in VOC 15-1, 0.002 in ADE20K 100-10), and most of them
  are in the first of 100 bins;
- in the median the running sum adds the number of a bin and not its count. With r = i(i-1)/2 before
  bin i, the first bin with r <= half <= r + count gives (i + (half - r) / count) / 100, which is
  0.005 / (share of bin 0) if this share is at least half. If there is no such bin, the last, empty
  one divides by 0: then all pixels of the channel are accepted, or those below 0.001 if the channel
  has fewer than about 9900 pixels.

`teacher_predictions` works strip by strip, so that full-resolution logits never exist: only the
best channel and one number for each pixel do.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from nacre.labels.channels import ignore_value, target_dtype
from nacre.losses.reference import at_least_float32
from nacre.losses.strips import StripUpsampler, first_channel

Score = Literal["entropy", "probability", "sigmoid"]
MIN_THRESHOLD = 0.001
"""PLOP's minimum of a threshold, which channels without a pixel get, too."""
RELEASED_BINS = 100

_BITS = math.log2(math.e)


class TeacherPrediction(NamedTuple):
    """The teacher's best channel of each pixel and its score.

    Attributes:
        channels: N,H,W, of the type of targets.
        scores: N,H,W, the entropy, the greatest probability or the greatest sigmoid.
    """

    channels: Tensor
    scores: Tensor


@torch.no_grad()
def teacher_predictions(
    old_logits: Tensor, size: tuple[int, int], score: Score
) -> TeacherPrediction:
    """Return the best channel and its score for each pixel of a size, from logits N,O,h,w."""
    # In bits, as in the fused losses: powers of 2 are faster. The unit of the entropy cancels.
    logits = at_least_float32(old_logits.detach()) * _BITS
    images, channels = logits.shape[:2]
    dtype = getattr(torch, target_dtype(channels))
    best = torch.empty(images, *size, dtype=dtype, device=logits.device)
    scores = logits.new_empty(images, *size)
    upsampler = StripUpsampler(logits, size)
    # Autocast would compute the matrix products in half precision.
    with torch.autocast(logits.device.type, enabled=False):
        for strip in upsampler.strips():
            lines = upsampler.lines(strip)
            greatest = lines.amax(1)
            below = lines.sub_(greatest.unsqueeze(1))
            strip.put(_score(below, greatest, score), scores)
            strip.put(first_channel(below.eq_(0)), best)
    return TeacherPrediction(best, scores)


def _score(below: Tensor, greatest: Tensor, score: Score) -> Tensor:
    """Return the score from the greatest logit, L,W, and all minus the greatest, L,C,W."""
    if score == "sigmoid":
        return greatest.div(_BITS).sigmoid_()
    powers = below.exp2()
    total = powers.sum(1)
    if score == "probability":
        return total.reciprocal_()
    # -sum p log p with log p = below - log total
    entropy = total.log2() - powers.mul_(below).sum(1) / total
    return entropy / max(math.log2(below.shape[1]), 1.0)


def score_histogram(
    prediction: TeacherPrediction, counted: Tensor, num_old: int, *, bins: int
) -> Tensor:
    """Return counts of pixels by the teacher's channel and score in 0..1: num_old x bins, int64.

    `counted` N,H,W selects the pixels. Scores above 1 are in the last bin. Histograms of batches
    and processes can be added.
    """
    bin_of = (prediction.scores * bins).long().clamp_(0, bins - 1)
    place = torch.where(counted, prediction.channels.long() * bins + bin_of, num_old * bins)
    counts = place.new_zeros(num_old * bins + 1)
    counts.index_add_(0, place.flatten(), torch.ones_like(place).flatten())
    return counts[:-1].view(num_old, bins)


def median_thresholds(histogram: Tensor) -> Tensor:
    """Return the median score of each channel, interpolated within its bin, float32."""
    counts = histogram.double()
    half = counts.sum(1, keepdim=True) / 2
    until = counts.cumsum(1)
    # The first bin at whose end at least half of the pixels are counted; any for no pixels.
    index = (until < half).sum(1, keepdim=True).clamp_(max=counts.shape[1] - 1)
    count = counts.gather(1, index)
    before = until.gather(1, index) - count
    median = (index + (half - before) / count) / counts.shape[1]
    return torch.where(half > 0, median, 0).clamp_(min=MIN_THRESHOLD).squeeze(1).float()


def released_thresholds(histogram: Tensor) -> Tensor:
    """Return what PLOP's implementation computes as the median of `released_scores`."""
    bins = histogram.shape[1]
    counts = histogram.double()
    number = torch.arange(bins, device=counts.device, dtype=counts.dtype)
    before = (number * (number - 1) / 2).expand_as(counts)
    half = counts.sum(1, keepdim=True) / 2
    fits = (before <= half) & (half <= before + counts)
    index = torch.where(fits, number, bins).amin(1, keepdim=True).long()
    none_fits = index == bins
    index = index.clamp(max=bins - 1)
    running = torch.where(none_fits, bins * (bins - 1) / 2, before.gather(1, index))
    median = (index + (half - running) / counts.gather(1, index)) / bins
    median = torch.where((half > 0) & ~median.isnan(), median, 0)
    return median.clamp_(min=MIN_THRESHOLD).squeeze(1).float()


def released_scores(entropy: Tensor, num_old: int, num_new: int) -> Tensor:
    """Return the entropy as PLOP's implementation normalizes it: divided by O log T once more."""
    return entropy / (num_old * math.log(num_old + num_new))


def accept_by_entropy(prediction: TeacherPrediction, thresholds: Tensor) -> Tensor:
    """Return N,H,W: whether the entropy is below the threshold of the teacher's channel."""
    scores = prediction.scores
    return scores < thresholds.to(scores.dtype)[prediction.channels.long()]


def pseudo_targets(
    targets: Tensor,
    channels: Tensor,
    certain: Tensor,
    *,
    unsure: Literal["ignored", "kept"] = "ignored",
) -> Tensor:
    """Return targets with the teacher's channels on background pixels where it is certain.

    `unsure` decides about the other background pixels. All tensors are N,H,W.
    """
    is_background, kept = targets == 0, targets
    if unsure == "ignored":
        kept = targets.masked_fill(is_background, ignore_value(targets))
    return torch.where(is_background & certain, channels.to(targets.dtype), kept)


def acceptance_rate(targets: Tensor, certain: Tensor) -> Tensor:
    """Return PLOP's factor of each image: the share of its background with pseudo-labels."""
    is_background = targets == 0
    accepted = (is_background & certain).sum((1, 2), dtype=torch.float32)
    return accepted / (is_background.sum((1, 2)) + 1e-6)
