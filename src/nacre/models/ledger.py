"""A ledger beside a decoder: linear scores of all stages, which are added to the decoder's logits.

    together[c] = log q[c] + weight * l[c]      l: the ledger's scores
    q[c] = p[c]                                 p: the softmax of the decoder's logits
    q[c] = sum_k a[c, k] p[k]                   for a class c that the decoder has not learned

A decoder that has not learned c takes it for something else, k, and its origins a[c, k] say how
often: they were counted on pixels of c. Of a person it says background, of a sheep cow and dog as
often. There the ledger decides between c and k. Where nothing was counted, a class is background
to the decoder (a[c, background] = 1), as new classes are before their first update (eq. 8). To be
background is also what its probabilities for classes that it has not learned count as (eq. 7).

Beside a network of others (`RestHead`) there are no sums of what it knew before. To the ledger all
of that is the rest, which has one row r, and the network is left as it is:

    together[k] = z[k] + weight * l[r]              for a class k of the network
                  z[k] + weight * max l             where z[k] > z[background]
    together[c] = z[background] + weight * l[c]     for a class c of the ledger

So a new class is found in what the network takes for background, and nowhere else: of images like
those that the network was trained on the ledger has seen none, and what it says of them is not to
be believed. Without a background the mean of z takes its place, so that a new class begins as one
of average score, as in `nacre.models.widen`: it is found where the network is not sure.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.losses.reference import at_least_float32, upsample
from nacre.models.classifier import Classifier
from nacre.models.decoders import StageGrid


class GridHead(nn.Module):
    """Rows of each step on the grid of stages, whose scores are added to those of a decoder."""

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
        """Return the scores of all channels by the ledger alone, from standardized features."""
        return at_least_float32(self.classifier(features))

    def put_rows(self, weight: Tensor, bias: Tensor) -> None:
        """Take the rows of all channels, K,D, and their biases, K."""
        self.classifier.set_rows(weight, bias)

    def grow(self, num_new: int) -> None:
        """Add rows for new classes."""
        self.classifier.grow(num_new)

    def at_finer_stride(self, z: Tensor, scores: Tensor) -> tuple[Tensor, Tensor]:
        """Return a decoder's logits and the ledger's scores at one stride."""
        if self.grid.stride < self.decoder_stride:
            z = upsample(z, (scores.shape[-2], scores.shape[-1]))
        elif self.grid.stride > self.decoder_stride:
            scores = upsample(scores, (z.shape[-2], z.shape[-1]))
        return z, scores


LEAST = 1e-4
"""Share of every origin at least: what was never counted may happen."""

_TINY = 1e-12


class LedgerHead(GridHead):
    """Rows of all classes, and what the decoder beside them has learned.

    Attributes:
        learned: C, the classes that the decoder has learned.
        origins: C,C, what the decoder takes a class for that it has not learned.
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
        """Return a decoder's logits and the ledger's scores added, at the finer stride.

        The decoder has learned the classes of `learned`, if given, instead of those that are known.
        """
        own = self.learned if learned is None else learned
        said = self.says(logits, own)
        mixed = F.conv2d(said, self.origins.to(said)[:, :, None, None])
        seen = torch.where(_knows(own)[:, None, None], said, mixed)
        z, scores = self.at_finer_stride(seen.clamp(min=_TINY).log(), scores)
        return z + self.weight * scores

    def says(self, logits: Tensor, learned: Tensor) -> Tensor:
        """Return the decoder's probabilities; those of classes it has not learned are background's.

        Args:
            logits: N,C,h,w, of the decoder.
            learned: C.
        """
        p = logits.softmax(1)
        known = torch.where(_knows(learned)[:, None, None], p, 0)
        return torch.cat([1 - known[:, 1:].sum(1, keepdim=True), known[:, 1:]], 1)

    def grow(self, num_new: int) -> None:
        """Add rows for new classes, which are background to the decoder."""
        super().grow(num_new)
        self.learned = torch.cat([self.learned, self.learned.new_zeros(num_new)])
        grown = background_origins(len(self.learned)).to(self.origins)
        grown[: len(self.origins), : len(self.origins)] = self.origins
        self.origins = grown


def background_origins(count: int) -> Tensor:
    """Return the origins of classes that are background to a decoder, count x count."""
    found = torch.zeros(count, count)
    found[:, 0] = 1
    return found


def _knows(learned: Tensor) -> Tensor:
    """Return which channels a decoder tells apart: those it has learned, and the background."""
    return learned | (torch.arange(len(learned), device=learned.device) == 0)


class RestHead(GridHead):
    """Rows of classes that a network of others has not learned, and one row of all that it has.

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
        """Return the scores of all channels, at the finer stride, from both parts' own."""
        z, scores = self.at_finer_stride(logits, scores)
        rest, new = scores[:, :1], scores[:, 1:]
        if self.has_background:
            start, greatest = z[:, :1], scores.amax(1, keepdim=True)
            known = torch.where(z[:, 1:] > start, greatest, rest)
        else:  # its first channel is never probable
            start, known = z[:, 1:].mean(1, keepdim=True), rest.expand(-1, self.own - 1, -1, -1)
        z = torch.cat([z, start.expand(-1, new.shape[1], -1, -1)], 1)
        return z + self.weight * torch.cat([rest, known, new], 1)

    def put_rows(self, weight: Tensor, bias: Tensor) -> None:
        """Take the rows of the rest, which is channel 0, and of the ledger's classes."""
        rows = [0, *range(self.own, len(bias))]
        self.classifier.set_rows(weight[rows], bias[rows])

    def score(self, features: Tensor) -> Tensor:
        """Return the scores of all channels by the ledger alone, those of the rest as channel 0."""
        scores = super().score(features)
        never = scores.new_full((), -1e4).expand_as(scores[:, :1])
        return torch.cat([scores[:, :1], *[never] * (self.own - 1), scores[:, 1:]], 1)
