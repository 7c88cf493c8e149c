"""Small problems for losses: logits of student and teacher, and targets at a larger size."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses import upsample

Size = tuple[int, int]


class LossProblem:
    """Low-resolution logits of student and teacher, full-resolution targets drawn from values."""

    def __init__(
        self,
        values: Sequence[int],
        low: Size = (3, 4),
        high: Size = (11, 9),
        num_old: int = 3,
        num_new: int = 2,
        images: int = 2,
        seed: int = 0,
        dtype: torch.dtype = torch.uint8,
    ) -> None:
        g = torch.Generator().manual_seed(seed)
        self.num_old = num_old
        self.logits = 3 * torch.randn(images, num_old + num_new, *low, generator=g).double()
        self.old = 3 * torch.randn(images, num_old, *low, generator=g).double()
        chosen = torch.randint(0, len(values), (images, *high), generator=g)
        self.targets = torch.tensor(values, dtype=dtype)[chosen]

    def full(self, logits: Tensor) -> Tensor:
        """Return logits at the size of the targets."""
        return upsample(logits, (self.targets.shape[1], self.targets.shape[2]))


SIZES = {
    "low": st.tuples(st.integers(1, 4), st.integers(1, 4)),
    "high": st.tuples(st.integers(1, 20), st.integers(1, 20)),
    "num_old": st.integers(1, 4),
    "images": st.integers(1, 3),
    "seed": st.integers(0, 2**31),
}
"""What hypothesis draws for every problem."""
