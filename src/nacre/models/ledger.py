"""The ledger's head beside a decoder: linear scores of all stages, added to the decoder's logits.

    combined[c] = log q[c] + weight * l[c]      l: the ledger's scores
    q[c] = p[c]                                 p: the softmax of the decoder's logits
    q[c] = sum_k a[c, k] p[k]                   for a class c that the decoder has not learned

A decoder that has not learned c predicts other classes k on its pixels. The origins a[c, k] are the
frequencies of these predictions, counted on pixels of c: it predicts background for a person, and
cow and dog equally often for a sheep. There the ledger decides between c and k. Before anything is
counted, a class is background to the decoder (a[c, background] = 1), as new classes are before
their first update (eq. 8). The decoder's probabilities for classes that it has not learned count as
background, too (eq. 7).

Beside an external network (`RestHead`) there are no sums of the classes that it knew before. To the
ledger all of them are the rest, with one row r, and the network itself does not change:

    combined[k] = z[k]                                          for a class k of the network
    combined[c] = z[background] + weight * s (l[c] - l[r])      for a class c of the ledger

with s = z[background] - max of the other z[k], clipped to 0..1. So a new class can win only where
the network predicts background: the ledger has no images like those that the network was trained
on, so it must not decide about known classes. (s is continuous, so that rounding in an exported
graph does not change a class.) Without a background, the mean of z takes its place and s is 1: a
new class starts with an average score, as in `nacre.models.widen`, and wins where the network is
uncertain.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.losses.reference import at_least_float32, upsample
from nacre.models.classifier import Classifier
from nacre.models.decoders import StageGrid

MIN_ORIGIN = 1e-4
"""Smallest value of an origin: a prediction that was never counted may still occur."""

_MIN_PROBABILITY = 1e-12


class GridHead(nn.Module):
    """Rows for each step on the grid of stages, whose scores are added to a decoder's."""

    weight: Tensor

    def __init__(self, grid: StageGrid, rows_per_step: Sequence[int], decoder_stride: int) -> None:
        super().__init__()
        self.grid, self.decoder_stride = grid, decoder_stride
        self.classifier = Classifier(grid.channels, list(rows_per_step))
        self.register_buffer("weight", torch.ones(()))

    def forward(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Return the scores of its rows, N,R,h,w."""
        return at_least_float32(self.classifier(self.grid(stages)))

    def score(self, features: Tensor) -> Tensor:
        """Return the ledger's own scores of all channels from standardized features."""
        return at_least_float32(self.classifier(features))

    def put_rows(self, weight: Tensor, bias: Tensor) -> None:
        """Set the rows of all channels, K,D, and their biases, K."""
        self.classifier.set_rows(weight, bias)

    def grow(self, num_new: int) -> None:
        """Append rows for new classes."""
        self.classifier.grow(num_new)

    def at_finer_stride(self, z: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return a decoder's logits and the ledger's scores, the coarser of them upsampled."""
        if self.grid.stride < self.decoder_stride:
            z = upsample(z, (scores.shape[-2], scores.shape[-1]))
        elif self.grid.stride > self.decoder_stride:
            scores = upsample(scores, (z.shape[-2], z.shape[-1]))
        return z, scores


class LedgerHead(GridHead):
    """Rows of all classes beside a decoder that has learned some of them.

    Attributes:
        learned: C, True for classes that the decoder has learned.
        origins: C,C, the decoder's predictions on pixels of classes that it has not learned.
    """

    learned: Tensor
    origins: Tensor

    def __init__(
        self, grid: StageGrid, classes_per_step: Sequence[int], decoder_stride: int
    ) -> None:
        super().__init__(grid, classes_per_step, decoder_stride)
        count = sum(classes_per_step)
        self.register_buffer("learned", torch.zeros(count, dtype=torch.bool))
        self.register_buffer("origins", background_origins(count))

    def add_to(self, logits: Tensor, scores: Tensor, learned: Tensor | None = None) -> Tensor:
        """Return the sum of a decoder's logits and the ledger's scores, at the finer stride.

        `learned` replaces the classes that the decoder has learned.
        """
        learned = self.learned if learned is None else learned
        p = self.decoder_probabilities(logits, learned)
        mixed = F.conv2d(p, self.origins.to(p)[:, :, None, None])
        q = torch.where(_is_known(learned)[:, None, None], p, mixed)
        z, scores = self.at_finer_stride(q.clamp(min=_MIN_PROBABILITY).log(), scores)
        return z + self.weight * scores

    def decoder_probabilities(self, logits: Tensor, learned: Tensor) -> Tensor:
        """Return the decoder's probabilities, with classes that it has not learned as background.

        Args:
            logits: N,C,h,w, of the decoder.
            learned: C.
        """
        p = logits.softmax(1)
        known = torch.where(_is_known(learned)[:, None, None], p, 0)
        return torch.cat([1 - known[:, 1:].sum(1, keepdim=True), known[:, 1:]], 1)

    def grow(self, num_new: int) -> None:
        """Append rows for new classes, which are background to the decoder."""
        super().grow(num_new)
        self.learned = torch.cat([self.learned, self.learned.new_zeros(num_new)])
        grown = background_origins(len(self.learned)).to(self.origins)
        grown[: len(self.origins), : len(self.origins)] = self.origins
        self.origins = grown


def background_origins(count: int) -> Tensor:
    """Return the origins of classes that are background to a decoder, count x count."""
    origins = torch.zeros(count, count)
    origins[:, 0] = 1
    return origins


def _is_known(learned: Tensor) -> Tensor:
    """Return the channels that a decoder distinguishes: learned classes and the background."""
    return learned | (torch.arange(len(learned), device=learned.device) == 0)


class RestHead(GridHead):
    """Rows for classes that an external network has not learned, and one row for the rest.

    The network has `own` channels, with the background, and `stride` input pixels per score.
    """

    def __init__(
        self,
        grid: StageGrid,
        own: int,
        classes_per_step: Sequence[int],
        stride: int,
        has_background: bool,
    ) -> None:
        super().__init__(grid, [1, *classes_per_step], stride)
        self.own, self.has_background = own, has_background

    def add_to(self, logits: Tensor, scores: Tensor) -> Tensor:
        """Return the scores of all channels, at the finer stride."""
        z, scores = self.at_finer_stride(logits, scores)
        gain = self.weight * (scores[:, 1:] - scores[:, :1])
        if not self.has_background:  # the first channel has the probability 0
            start = z[:, 1:].mean(1, keepdim=True)
        else:
            start = z[:, :1]
            if self.own > 1:
                gain = gain * (start - z[:, 1:].amax(1, keepdim=True)).clamp(0, 1)
        return torch.cat([z, start + gain], 1)

    def put_rows(self, weight: Tensor, bias: Tensor) -> None:
        """Set the rows of the rest, which is channel 0, and of the ledger's classes."""
        rows = [0, *range(self.own, len(bias))]
        self.classifier.set_rows(weight[rows], bias[rows])

    def score(self, features: Tensor) -> Tensor:
        """Return the ledger's own scores of all channels, with the rest as channel 0."""
        scores = super().score(features)
        never = scores.new_full((), -1e4).expand_as(scores[:, :1])
        return torch.cat([scores[:, :1], *[never] * (self.own - 1), scores[:, 1:]], 1)
