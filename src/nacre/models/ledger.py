"""A ledger beside a decoder: linear scores of all stages, which are added to the decoder's logits.

    together[c] = z[c] + weight * l[c]      z: the decoder's logits, l: the ledger's
    z[c] = z[background]                    for a class c that the decoder has not learned

To a decoder that has not learned c, c *is* background: it takes the background's logit, as new
classes do before their first update (eq. 8), and the ledger decides between the two. A softmax of
the sum is that of log-softmax(z) + weight * l: they differ by one number for all channels.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from nacre.losses.reference import at_least_float32, upsample
from nacre.models.classifier import Classifier
from nacre.models.stage_grid import StageGrid


class LedgerHead(nn.Module):
    """Rows on the grid of stages, and which classes the decoder beside them has learned.

    Args:
        grid: joins the stages.
        classes_per_step: channels of each step, those of step 0 with the background.
        decoder_stride: input pixels per logit of the decoder.
    """

    learned: Tensor
    weight: Tensor

    def __init__(
        self, grid: StageGrid, classes_per_step: Sequence[int], decoder_stride: int
    ) -> None:
        super().__init__()
        self.grid, self.decoder_stride = grid, decoder_stride
        self.classifier = Classifier(grid.channels, list(classes_per_step))
        count = sum(classes_per_step)
        self.register_buffer("learned", torch.zeros(count, dtype=torch.bool))
        self.register_buffer("weight", torch.ones(()))

    def forward(self, stages: tuple[Tensor, ...]) -> Tensor:
        """Return the ledger's scores, N,C,h,w."""
        return at_least_float32(self.classifier(self.grid(stages)))

    def add_to(self, logits: Tensor, scores: Tensor, learned: Tensor | None = None) -> Tensor:
        """Return a decoder's logits and the ledger's scores added, at the finer stride.

        Args:
            logits: N,C,h,w, of the decoder.
            scores: N,C,h,w, of the ledger.
            learned: C, the classes that the decoder has learned, if not those that are known.
        """
        own = self.learned if learned is None else learned
        z = torch.where(own[:, None, None], logits, logits[:, :1])
        if self.grid.stride < self.decoder_stride:
            z = upsample(z, (scores.shape[-2], scores.shape[-1]))
        elif self.grid.stride > self.decoder_stride:
            scores = upsample(scores, (z.shape[-2], z.shape[-1]))
        return z + self.weight * scores

    def grow(self, num_new: int) -> None:
        """Add rows for new classes, which the decoder has not learned."""
        self.classifier.grow(num_new)
        self.learned = torch.cat([self.learned, self.learned.new_zeros(num_new)])
