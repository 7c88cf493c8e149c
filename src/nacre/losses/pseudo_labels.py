"""Pseudo-labels: what the teacher says of pixels that are labeled background, where it is sure.

With p the teacher's softmax of a pixel over its O channels, a pixel whose target y is background
becomes

    y' = argmax p   where the teacher is certain, else ignored (PLOP) or left as it is (SSUL)

and y' = y elsewhere. (PLOP does so with old targets as well, of which its protocol has none; a
label that names an old class is believed here.) Certain is one of

    entropy       H < threshold[argmax p],  H = -sum p log p / log O, in 0..1 (PLOP)
    probability   max p >= threshold
    sigmoid       max sigmoid(z) >= threshold, for teachers of one sigmoid per channel (SSUL)

PLOP's threshold of a channel is the median of H over the pixels that are labeled background and
that the teacher gives to the channel, but at least 0.001. `score_histogram` counts them: histograms
of batches and of processes add up, and the median is interpolated within its bin.

PLOP's factor of an image is the share of its background pixels that were accepted: it weighs the
image's cross-entropy. The mean is still taken over the pixels that had a label before.

`released` is what PLOP's implementation computes instead, which its published figures are for:

- the entropy is divided by O log T once more, T being the channels with the new ones: no value is
  greater than 1 / (O log T) (0.022 in VOC 15-1, 0.002 in ADE20K 100-10) and most lie in the first
  of 100 bins;
- in search of the median the running sum adds a bin's number and not its count. With r = i(i-1)/2
  before bin i, the first bin with r <= half <= r + count gives (i + (half - r) / count) / 100:
  0.005 / (share of bin 0) if that is at least half. If no bin fits, the last, empty one divides by
  0: then all pixels of the channel are accepted, or, if it has fewer than about 9900, those
  below 0.001.

What a teacher predicts (`teacher_predictions`) is found strip by strip, so that its logits never
exist at the size of the targets; only the best channel and one number per pixel do.
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
LEAST_THRESHOLD = 0.001
"""PLOP's least threshold of an entropy, and that of channels the teacher never predicts."""
RELEASED_BINS = 100

_BITS = math.log2(math.e)


class TeacherPrediction(NamedTuple):
    """The teacher's best channel of each pixel, and how sure it is.

    Attributes:
        channels: N,H,W, of the type of targets.
        scores: N,H,W, as the kind of score says.
    """

    channels: Tensor
    scores: Tensor


@torch.no_grad()
def teacher_predictions(
    old_logits: Tensor, size: tuple[int, int], score: Score
) -> TeacherPrediction:
    """Find the best channel of each pixel of a size and its score from logits N,O,h,w."""
    # In bits, as the fused losses: powers of 2 are faster, and the entropy's unit cancels out
    logits = at_least_float32(old_logits.detach()) * _BITS
    images, channels = logits.shape[:2]
    dtype = getattr(torch, target_dtype(channels))
    best = torch.empty(images, *size, dtype=dtype, device=logits.device)
    scores = logits.new_empty(images, *size)
    upsampler = StripUpsampler(logits, size)
    # Autocast would take the matrix products to half precision.
    with torch.autocast(logits.device.type, enabled=False):
        for strip in upsampler.strips():
            lines = upsampler.lines(strip)
            greatest = lines.amax(1)
            below = lines.sub_(greatest.unsqueeze(1))
            strip.put(_score(below, greatest, score), scores)
            strip.put(first_channel(below.eq_(0)), best)
    return TeacherPrediction(best, scores)


def _score(below: Tensor, greatest: Tensor, score: Score) -> Tensor:
    """Return the score from logits below the greatest, L,C,W, and the greatest, L,W."""
    if score == "sigmoid":
        return greatest.div(_BITS).sigmoid_()
    powers = below.exp2()
    total = powers.sum(1)
    if score == "probability":
        return total.reciprocal_()
    # -sum p log p with log p = below - log total
    entropy = total.log2() - powers.mul_(below).sum(1) / total
    return entropy / max(math.log2(below.shape[1]), 1.0)


def score_histogram(view: TeacherPrediction, counted: Tensor, num_old: int, *, bins: int) -> Tensor:
    """Count pixels by the teacher's channel and by its score in 0..1: num_old x bins, int64.

    Counted are pixels that are labeled background; scores beyond 1 are in the last bin. Histograms
    of batches and of processes may be added.
    """
    bin_of = (view.scores * bins).long().clamp_(0, bins - 1)
    place = torch.where(counted, view.channels.long() * bins + bin_of, num_old * bins)
    counts = place.new_zeros(num_old * bins + 1)
    counts.index_add_(0, place.flatten(), torch.ones_like(place).flatten())
    return counts[:-1].view(num_old, bins)


def median_thresholds(histogram: Tensor) -> Tensor:
    """Return the median score of each channel, interpolated within its bin, float32."""
    counts = histogram.double()
    half = counts.sum(1, keepdim=True) / 2
    until = counts.cumsum(1)
    # The first bin at whose end at least half of the pixels are counted; empty channels: any
    index = (until < half).sum(1, keepdim=True).clamp_(max=counts.shape[1] - 1)
    count = counts.gather(1, index)
    before = until.gather(1, index) - count
    median = (index + (half - before) / count) / counts.shape[1]
    return torch.where(half > 0, median, 0).clamp_(min=LEAST_THRESHOLD).squeeze(1).float()


def released_thresholds(histogram: Tensor) -> Tensor:
    """Return what PLOP's implementation takes for the median of `released_scores`."""
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
    found = (index + (half - running) / counts.gather(1, index)) / bins
    found = torch.where((half > 0) & ~found.isnan(), found, 0)
    return found.clamp_(min=LEAST_THRESHOLD).squeeze(1).float()


def released_scores(entropy: Tensor, num_old: int, num_new: int) -> Tensor:
    """Return the entropy as PLOP's implementation normalizes it: divided by O log T once more."""
    return entropy / (num_old * math.log(num_old + num_new))


def accept_by_entropy(view: TeacherPrediction, thresholds: Tensor) -> Tensor:
    """Return where the entropy is below the threshold of the teacher's channel, N,H,W."""
    return view.scores < thresholds.to(view.scores.dtype)[view.channels.long()]


def pseudo_targets(
    targets: Tensor,
    channels: Tensor,
    certain: Tensor,
    *,
    unsure: Literal["ignored", "kept"] = "ignored",
) -> Tensor:
    """Put the teacher's channels where the targets are background and the teacher is certain.

    What becomes of the other background pixels `unsure` says. All are N,H,W; the result is of the
    type of `targets`.
    """
    is_background, kept = targets == 0, targets
    if unsure == "ignored":
        kept = targets.masked_fill(is_background, ignore_value(targets))
    return torch.where(is_background & certain, channels.to(targets.dtype), kept)


def acceptance_rate(targets: Tensor, certain: Tensor) -> Tensor:
    """Return PLOP's factor of each image: the share of its background that was accepted."""
    is_background = targets == 0
    accepted = (is_background & certain).sum((1, 2), dtype=torch.float32)
    return accepted / (is_background.sum((1, 2)) + 1e-6)
