"""Small problems for losses, and the losses of one pixel, written out."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses import IGNORE_INDEX, upsample

Size = tuple[int, int]
Logits = list[float]


class LossProblem:
    """Low-resolution logits of student and teacher, full-resolution targets drawn from values.

    Without values, the targets are all channels, background twice, and some that are ignored.
    """

    def __init__(
        self,
        low: Size = (3, 4),
        high: Size = (11, 9),
        num_old: int = 3,
        num_new: int = 2,
        images: int = 2,
        seed: int = 0,
        *,
        values: Sequence[int] | None = None,
        dtype: torch.dtype = torch.float64,
        target_dtype: torch.dtype = torch.uint8,
        scale: float = 3.0,
    ) -> None:
        g = torch.Generator().manual_seed(seed)
        self.num_old, self.num_new, channels = num_old, num_new, num_old + num_new
        self.logits = scale * torch.randn(images, channels, *low, generator=g, dtype=dtype)
        self.old = scale * torch.randn(images, num_old, *low, generator=g, dtype=dtype)
        drawn = [0, *range(channels), IGNORE_INDEX] if values is None else values
        chosen = torch.randint(0, len(drawn), (images, *high), generator=g)
        self.targets = torch.tensor(drawn, dtype=target_dtype)[chosen]
        self.hidden = torch.rand(images, channels, generator=g) < 0.5
        self.weights = 2 * torch.rand(images, generator=g)
        rows = torch.rand(images, channels, channels, generator=g) < 0.4
        self.may_be = rows | torch.eye(channels, dtype=torch.bool)
        self.new_origins = torch.randint(0, num_old, (num_new,), generator=g).tolist()

    def full(self, logits: Tensor) -> Tensor:
        """Return logits at the size of the targets."""
        return upsample(logits, (self.targets.shape[1], self.targets.shape[2]))


SIZES = {
    "low": st.tuples(st.integers(1, 5), st.integers(1, 5)),
    "high": st.tuples(st.integers(1, 24), st.integers(1, 24)),
    "num_old": st.integers(1, 4),
    "images": st.integers(1, 3),
    "seed": st.integers(0, 2**31),
}
"""What hypothesis draws for every problem."""


def mean_over_pixels(
    per_pixel: Callable[..., float],
    targets: Tensor | None,
    *maps: Tensor,
    ignore_index: int | None = IGNORE_INDEX,
) -> float:
    """Mean of a function of a pixel's vectors, or of the first, the target and the others.

    With targets, over the pixels that are not ignored.
    """
    vectors = [one.detach().permute(0, 2, 3, 1).flatten(0, 2).tolist() for one in maps]
    if targets is None:
        values = [per_pixel(*pixel) for pixel in zip(*vectors, strict=True)]
    else:
        pixels = zip(targets.flatten().tolist(), *vectors, strict=True)
        values = [per_pixel(x, y, *more) for y, x, *more in pixels if y != ignore_index]
    return sum(values) / max(len(values), 1)


def softmax(x: Logits) -> list[float]:
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


def binary(target: float, v: float) -> float:
    return -target * math.log(sigmoid(v)) - (1 - target) * math.log(1 - sigmoid(v))


def pixel_ce(x: Logits, y: int) -> float:
    return -math.log(softmax(x)[y])


def pixel_unbiased_ce(x: Logits, y: int, num_old: int) -> float:
    """Eq. 3: background is the background or any old class."""
    q = softmax(x)
    return -math.log(sum(q[: max(1, num_old)]) if y == 0 else q[y])


def pixel_partial_ce(x: Logits, y: int, may_be: Sequence[float]) -> float:
    """Eq. 3 for any target: it is what it may be, by its row of the image's C x C."""
    row = may_be[y * len(x) : (y + 1) * len(x)]
    return -math.log(sum(q for q, may in zip(softmax(x), row, strict=True) if may))


def pixel_kd(x: Logits, old: Logits) -> float:
    """Eq. 5 and 6, a mean over the old channels."""
    p, q = softmax(old), softmax(x[: len(old)])
    return -sum(pc * math.log(qc) for pc, qc in zip(p, q, strict=True)) / len(old)


def pixel_unbiased_kd(x: Logits, old: Logits, new_origins: Sequence[int] | None = None) -> float:
    """Eq. 5 and 7: an old channel and all that splits from it are one."""
    num_old, p, q = len(old), softmax(old), softmax(x)
    hat = q[:num_old]
    for i, probability in enumerate(q[num_old:]):
        hat[0 if new_origins is None else new_origins[i]] += probability
    return -sum(pc * math.log(qc) for pc, qc in zip(p, hat, strict=True)) / num_old


def pixel_bce(x: Logits, y: int, hidden: Sequence[float] | None = None) -> float:
    terms = [binary(float(c == y), v) for c, v in enumerate(x)]
    if y == 0 and hidden is not None:
        terms = [term for c, term in enumerate(terms) if c == 0 or not hidden[c]]
    return sum(terms)


def pixel_binary_kd(x: Logits, old: Logits) -> float:
    return sum(binary(sigmoid(o), v) for o, v in zip(old, x, strict=False))


def pixel_mixed(x: Logits, y: int, old: Logits, labeled_background: bool = False) -> float:
    """Old channels to the teacher's, new ones and, if it is labeled, background to the label."""
    first = int(labeled_background)
    targets = [sigmoid(v) for v in old] + [float(c == y) for c in range(len(old), len(x))]
    targets[:first] = [float(y == 0)] * first
    return sum(binary(t, v) for t, v in zip(targets, x, strict=True))


def pixel_new_bce(x: Logits, y: int, first_new: int, positive_weight: float) -> float:
    terms = [binary(float(c + first_new == y), v) for c, v in enumerate(x)]
    weights = [positive_weight if c + first_new == y else 1 for c in range(len(x))]
    return sum(w * term for w, term in zip(weights, terms, strict=True))


def pixel_guided(x: Logits, y: int, old: Logits, old_weight: float, new_weight: float) -> float:
    q, p = softmax(x), softmax(old) + [0.0] * (len(x) - len(old))
    if y >= len(old):
        p[0], p[y] = 0.0, p[0]
    loss = -sum(pc * math.log(qc) for pc, qc in zip(p, q, strict=True))
    return (new_weight if y >= len(old) else old_weight) * loss
