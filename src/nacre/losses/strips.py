"""Bilinear upsampling a few rows at a time, and its transpose.

Upsampling from h x w to H x W is linear and separable: with two small matrices A (H x h, for the
rows) and B (W x w, for the columns) a channel x becomes A x B^T, and a gradient G of the upsampled
channel becomes A^T G B. Neither needs the whole picture: a strip of output rows touches only the
few input rows where its part of A is not zero. So whatever is a sum over pixels can be computed
strip by strip, and full-resolution logits never exist.

Strips are laid out as rows, channels, columns (R,C,W): sums over channels then run along contiguous
columns, which is the fastest order on CPUs, and the products with A are plain matrix products.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

# On CPUs a strip and its few companions should stay in the cache.
_CPU_STRIP_BYTES = 3 << 20
# On other devices a strip should be large enough to keep the device busy, and its companions
# together a few hundredths of the memory. The total decides, not what is free at the moment:
# otherwise the order of the sums, and with it the last digits, would change from run to run.
_DEVICE_MEMORY_SHARE = 128
_DEVICE_STRIP_BYTES = 64 << 20


class StripUpsampler:
    """Low-resolution maps of which strips of upsampled rows can be had one after the other."""

    def __init__(self, maps: Tensor, size: tuple[int, int], rows: int) -> None:
        """Prepare matrices and buffers.

        Args:
            maps: N,C,h,w, float32 or float64.
            size: height and width to upsample to.
            rows: the greatest number of rows of a strip.
        """
        self.maps = maps.transpose(1, 2).contiguous()
        self.size = size
        self.max_rows = rows
        self.row_weights, lower, upper = _interpolation(maps.shape[2], size[0], maps)
        self.column_weights, _, _ = _interpolation(maps.shape[3], size[1], maps)
        self._lower, self._upper = lower.tolist(), upper.tolist()
        self._strip = maps.new_empty(rows, maps.shape[1], size[1])
        self._wide = maps.new_empty(0)
        self._wide_source: tuple[int, slice] | None = None

    def spans(self) -> list[slice]:
        """The rows of all strips, from top to bottom.

        Neighbouring output rows lie between the same two input rows. Strips do not cross such
        groups, or else hold whole ones, so that they touch as few input rows as can be.
        """
        starts = [0] + [r for r in range(1, self.size[0]) if self._lower[r] != self._lower[r - 1]]
        spans: list[slice] = []
        begin = 0
        for first, end in pairwise([*starts, self.size[0]]):
            if end - begin > self.max_rows:
                spans += _even_parts(begin, first, self.max_rows)
                begin = first
        return spans + _even_parts(begin, self.size[0], self.max_rows)

    def rows(self, image: int, span: slice) -> Tensor:
        """The upsampled rows of one image, R,C,W, in a buffer that the next call overwrites."""
        weights, sources = self.weights(span)
        if self._wide_source != (image, sources):
            self._widen(image, sources)
        strip = self._strip[: weights.shape[0]]
        torch.mm(weights, self._wide.flatten(1), out=strip.flatten(1))
        return strip

    def weights(self, span: slice) -> tuple[Tensor, slice]:
        """The part of the row matrix that is not zero for a span, and the input rows it is for."""
        sources = slice(self._lower[span.start], self._upper[span.stop - 1] + 1)
        return self.row_weights[span, sources], sources

    def _widen(self, image: int, sources: slice) -> None:
        """Upsample the columns of a few input rows; the next strips often need the same."""
        narrow = self.maps[image, sources]
        if self._wide.shape[:1] != narrow.shape[:1]:
            self._wide = narrow.new_empty(*narrow.shape[:2], self.size[1])
        torch.mm(narrow.flatten(0, 1), self.column_weights.t(), out=self._wide.flatten(0, 1))
        self._wide_source = (image, sources)


class StripGradient:
    """The transpose of a `StripUpsampler`: adds up gradients of strips at low resolution."""

    def __init__(self, upsampler: StripUpsampler) -> None:
        self._upsampler = upsampler
        self._total = torch.zeros_like(upsampler.maps)
        self._wide = upsampler.maps.new_empty(0)
        self._wide_source: tuple[int, slice] | None = None

    def add(self, gradient: Tensor, image: int, span: slice) -> None:
        """Add what the gradient R,C,W of the rows of an image means for its low resolution."""
        weights, sources = self._upsampler.weights(span)
        if self._wide_source == (image, sources):
            self._wide.addmm_(weights.t(), gradient.flatten(1))
            return
        self._narrow()
        if self._wide.shape[:1] != weights.shape[1:]:
            self._wide = gradient.new_empty(weights.shape[1], gradient[0].numel())
        torch.mm(weights.t(), gradient.flatten(1), out=self._wide)
        self._wide_source = (image, sources)

    def total(self) -> Tensor:
        """The sum of all, N,h,C,w."""
        self._narrow()
        self._wide_source = None
        return self._total

    def _narrow(self) -> None:
        """Transpose the columns' upsampling, once for all strips with the same input rows."""
        if self._wide_source is not None:
            image, sources = self._wide_source
            narrow = self._total[image, sources].flatten(0, 1)
            wide = self._wide.view(len(narrow), -1)
            narrow.addmm_(wide, self._upsampler.column_weights)


def rows_per_strip(maps: Tensor, size: tuple[int, int]) -> int:
    """How many rows of N,C,h,w maps upsampled to a size make a good strip on their device."""
    row_bytes = maps.shape[1] * size[1] * maps.element_size()
    return max(1, min(size[0], _strip_bytes(maps.device) // row_bytes))


def _even_parts(begin: int, end: int, most: int) -> list[slice]:
    """A range of rows cut into as few parts as can be, none larger than allowed."""
    parts = -(-(end - begin) // most)
    cuts = [begin + (end - begin) * part // parts for part in range(parts)] + [end]
    return [slice(*cut) for cut in pairwise(cuts)] if parts else []


def _strip_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return _CPU_STRIP_BYTES
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // _DEVICE_MEMORY_SHARE
    return _DEVICE_STRIP_BYTES


def _interpolation(inputs: int, outputs: int, like: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The matrix of linear interpolation, and the first and last input that each output touches.

    Positions are rounded where PyTorch's own upsampling rounds them (the scale, then the result of
    a fused multiply-add), so that the two agree to the last digits.
    """
    scale = (torch.tensor(float(inputs), dtype=like.dtype) / outputs).double()
    position = scale * (torch.arange(outputs, dtype=torch.float64) + 0.5) - 0.5
    position = position.clamp(min=0).to(like.dtype)
    lower = position.floor().long().clamp(max=inputs - 1)
    upper = (lower + 1).clamp(max=inputs - 1)
    fraction = (position - lower).clamp(0, 1)
    matrix = torch.zeros(outputs, inputs, dtype=like.dtype)
    output = torch.arange(outputs)
    matrix[output, lower] += 1 - fraction
    matrix[output, upper] += fraction
    return matrix.to(like.device), lower, upper
