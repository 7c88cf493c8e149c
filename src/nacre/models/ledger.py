"""A ledger beside a decoder: linear scores of all stages, which are added to the decoder's logits.

    together[c] = z[c] + weight * l[c]      z: the decoder's logits, l: the ledger's
    z[c] = z[background]                    for a class c that the decoder has not learned

To a decoder that has not learned c, c *is* background: it takes the background's logit, as new
classes do before their first update (eq. 8), and the ledger decides between the two. A softmax of
the sum is that of log-softmax(z) + weight * l: they differ by one number for all channels.

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


class LedgerHead(GridHead):
    """Rows of all classes, and which of them the decoder beside them has learned."""

    learned: Tensor

    def __init__(
        self, grid: StageGrid, classes_per_step: Sequence[int], decoder_stride: int
    ) -> None:
        super().__init__(grid, classes_per_step, decoder_stride)
        self.register_buffer("learned", torch.zeros(sum(classes_per_step), dtype=torch.bool))

    def add_to(self, logits: Tensor, scores: Tensor, learned: Tensor | None = None) -> Tensor:
        """Return a decoder's logits and the ledger's scores added, at the finer stride.

        The decoder has learned the classes of `learned`, if given, instead of those that are known.
        """
        own = self.learned if learned is None else learned
        z = torch.where(own[:, None, None], logits, logits[:, :1])
        z, scores = self.at_finer_stride(z, scores)
        return z + self.weight * scores

    def grow(self, num_new: int) -> None:
        """Add rows for new classes, which the decoder has not learned."""
        super().grow(num_new)
        self.learned = torch.cat([self.learned, self.learned.new_zeros(num_new)])


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
