"""Any loss of full-resolution logits, straight from low-resolution ones, strip by strip.

The loss is a readable function such as those of `nacre.losses.reference`; autograd differentiates
it inside each strip of upsampled rows, and only low-resolution gradients are kept. So logits of
full resolution never exist, and what is rare (several origins, data sets that label different
classes) needs no gradient derived by hand. The common losses have one, in `nacre.losses.kernels`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

StripLoss = Callable[..., list[Tensor]]
"""Takes the lines of a strip as images of one row: the student's logits L,C,1,W, the teacher's (or
None), targets L,1,W, and L,... of what is said by image. Returns sums over the pixels."""


def sum_strips(
    loss: StripLoss,
    logits: Tensor,
    old_logits: Tensor | None,
    targets: Tensor,
    *by_image: Tensor,
) -> tuple[Tensor, ...]:
    """Return the sums over all pixels of the terms of a loss.

    Args:
        loss: what to compute of a strip.
        logits: the student's, N,C,h,w, in float32 at least.
        old_logits: the teacher's, N,K,h,w, where the loss has one; no gradient flows into them.
        targets: N,H,W.
        by_image: N,... each, what the loss is told of the images.
    """
    sums: tuple[Tensor, ...] = _StripSums.apply(loss, logits, old_logits, targets, *by_image)  # type: ignore[no-untyped-call]
    return sums


class _StripSums(torch.autograd.Function):
    """Sums and gradients in one go; the backward pass only scales what the forward pass found."""

    @staticmethod
    def forward(
        ctx: Any,
        loss: StripLoss,
        logits: Tensor,
        old_logits: Tensor | None,
        targets: Tensor,
        *by_image: Tensor,
    ) -> tuple[Tensor, ...]:
        size = (targets.shape[1], targets.shape[2])
        student = StripUpsampler(logits, size)
        teacher = None if old_logits is None else StripUpsampler(old_logits, size)
        totals: list[Tensor] = []
        gradients: list[StripGradient] = []
        # Autocast would take the matrix products to half precision.
        with torch.autocast(logits.device.type, enabled=False):
            for strip in student.strips():
                x = student.lines(strip).unsqueeze(2).requires_grad_(ctx.needs_input_grad[1])
                z = None if teacher is None else teacher.lines(strip).unsqueeze(2)
                told = [strip.repeat(one) for one in by_image]
                with torch.enable_grad():
                    terms = loss(x, z, strip.lines(targets).unsqueeze(1), *told)
                totals = totals or [logits.new_zeros(()) for _ in terms]
                for total, term in zip(totals, terms, strict=True):
                    total.add_(term.detach())
                if ctx.needs_input_grad[1]:
                    gradients = gradients or [StripGradient(student) for _ in terms]
                    for i, gradient in enumerate(gradients):
                        keep = i + 1 < len(terms)
                        (slope,) = torch.autograd.grad(terms[i], x, retain_graph=keep)
                        gradient.add(slope.squeeze(2).contiguous(), strip)
            found = [gradient.total() for gradient in gradients]
        ctx.num_by_image = len(by_image)
        ctx.save_for_backward(*found)
        return tuple(totals)

    @staticmethod
    def backward(ctx: Any, *scales: Tensor) -> tuple[Tensor | None, ...]:
        gradient = scale_gradients(ctx.saved_tensors, scales)
        return None, gradient, None, None, *[None] * ctx.num_by_image


def scale_gradients(gradients: Sequence[Tensor], scales: Sequence[Tensor]) -> Tensor:
    """Return the sum of low-resolution gradients, each times a scale, in a backward pass.

    Raises:
        RuntimeError: the pass is itself to be differentiated, which the gradients do not allow.
    """
    if torch.is_grad_enabled():
        raise RuntimeError(
            "the fused losses cannot be differentiated twice (create_graph=True); "
            "upsample and use the functions of nacre.losses.reference for that"
        )
    total = gradients[0] * scales[0]
    for gradient, scale in zip(gradients[1:], scales[1:], strict=True):
        total.addcmul_(gradient, scale)
    return total


# On CPUs a strip and its few companions should stay in the cache.
_CPU_STRIP_BYTES = 4 << 20
# On other devices a strip should be large enough to keep the device busy, and its companions
# together a few hundredths of the memory. The total decides, not what is free at the moment:
# otherwise the order of the sums, and with it the last digits, would change from run to run.
_DEVICE_MEMORY_SHARE = 128
_DEVICE_STRIP_BYTES = 64 << 20


@dataclass(frozen=True)
class Strip:
    """The same rows of some images."""

    images: slice
    rows: slice

    def lines(self, targets: Tensor) -> Tensor:
        """The strip of labels N,H,W as L,W."""
        return targets[self.images, self.rows].transpose(0, 1).flatten(0, 1)

    def repeat(self, values: Tensor) -> Tensor:
        """Values N,... of the images, repeated for every row of the strip as L,..."""
        rows = self.rows.stop - self.rows.start
        return values[self.images].repeat(rows, *[1] * (values.ndim - 1))

    def put(self, lines: Tensor, targets: Tensor) -> None:
        """Write lines L,W into their place in labels N,H,W."""
        place = targets[self.images, self.rows].transpose(0, 1)
        place.copy_(lines.view(place.shape))


class StripUpsampler:
    """Low-resolution maps of which upsampled strips can be had one after the other."""

    def __init__(
        self, maps: Tensor, size: tuple[int, int], inside: tuple[float, float] | None = None
    ) -> None:
        """Prepare the matrices.

        Args:
            maps: N,C,h,w, float32 or float64.
            size: height and width to upsample to.
            inside: how many rows and columns of the maps that size covers; all by default.
        """
        self.maps = maps.permute(2, 0, 1, 3).contiguous()
        self.size = size
        dtype, device = maps.dtype, maps.device
        high, wide = inside or (float(maps.shape[2]), float(maps.shape[3]))
        rows = _interpolation(maps.shape[2], size[0], dtype, device, high)
        self.row_weights, self._lower, self._upper = rows
        self.column_weights, _, _ = _interpolation(maps.shape[3], size[1], dtype, device, wide)
        self._strip = self._wide = maps.new_empty(0)
        self._wide_source: tuple[slice, slice] | None = None

    def strips(self) -> list[Strip]:
        """Strips of a good size for the device, which together are all rows of all images."""
        images, rows = self._images_and_rows()
        count = self.maps.shape[1]
        return [
            Strip(part, span)
            for part in _even_parts(0, count, images)
            for span in self._spans(rows)
        ]

    def lines(self, strip: Strip) -> Tensor:
        """The upsampled maps of a strip, L,C,W, in a buffer that the next call overwrites."""
        weights, sources = self.weights(strip)
        if self._wide_source != (strip.images, sources):
            self._widen(strip.images, sources)
        lines = weights.shape[0] * self._wide.shape[1]
        self._strip.resize_(lines, *self._wide.shape[2:])
        torch.mm(weights, self._wide.flatten(1), out=self._strip.view(weights.shape[0], -1))
        return self._strip

    def weights(self, strip: Strip) -> tuple[Tensor, slice]:
        """The part of the row matrix that is not zero for a strip, and the input rows it is for."""
        sources = slice(self._lower[strip.rows.start], self._upper[strip.rows.stop - 1] + 1)
        return self.row_weights[strip.rows, sources], sources

    def _widen(self, images: slice, sources: slice) -> None:
        """Upsample the columns of a few input rows; the next strips often need the same."""
        narrow = self.maps[sources, images]
        shape = (*narrow.shape[:3], self.size[1])
        if self._wide.shape != shape:
            self._wide = narrow.new_empty(shape)
        # All images, channels and rows are lines of one matrix product.
        columns = self.column_weights.t()
        torch.mm(narrow.flatten(0, 2), columns, out=self._wide.flatten(0, 2))
        self._wide_source = (images, sources)

    def _images_and_rows(self) -> tuple[int, int]:
        """How many images and rows to put into a strip.

        Rows between the same two input rows cost least, so that several images are better than
        more rows than those; few images leave no choice.
        """
        height, count, channels, _ = self.maps.shape
        line_bytes = channels * self.size[1] * self.maps.element_size()
        # As many lines of output as fit the strip's bytes, at least one.
        lines = max(1, _strip_bytes(self.maps.device) // line_bytes)
        between_inputs = -(-self.size[0] // height)
        rows = min(lines, self.size[0], max(between_inputs, lines // count))
        return max(1, min(count, lines // rows)), rows

    def _spans(self, rows: int) -> list[slice]:
        """All rows from top to bottom, cut where the input rows change if possible."""
        height = self.size[0]
        starts = [0] + [r for r in range(1, height) if self._lower[r] != self._lower[r - 1]]
        spans: list[slice] = []
        begin = 0
        # Rows between `first` and `end` have the same input rows. A span takes in such groups until
        # the next one does not fit; what is larger than a span by itself is cut evenly.
        for first, end in pairwise([*starts, height]):
            if end - begin > rows:
                spans += _even_parts(begin, first, rows)
                begin = first
        return spans + _even_parts(begin, height, rows)


class StripGradient:
    """The transpose of a `StripUpsampler`: adds up gradients of strips at low resolution."""

    def __init__(self, upsampler: StripUpsampler) -> None:
        self._upsampler = upsampler
        self._total = torch.zeros_like(upsampler.maps)
        self._wide = upsampler.maps.new_empty(0)
        self._wide_source: tuple[slice, slice] | None = None

    def add(self, gradient: Tensor, strip: Strip) -> None:
        """Add what the gradient L,C,W of a strip means for the low resolution."""
        weights, sources = self._upsampler.weights(strip)
        by_row = gradient.view(weights.shape[0], -1)
        # Strips with the same input rows share one sum, so that the columns are done once for all.
        if self._wide_source == (strip.images, sources):
            self._wide.addmm_(weights.t(), by_row)
            return
        self._narrow()
        shape = (weights.shape[1], by_row.shape[1])
        if self._wide.shape != shape:
            self._wide = gradient.new_empty(shape)
        torch.mm(weights.t(), by_row, out=self._wide)
        self._wide_source = (strip.images, sources)

    def total(self) -> Tensor:
        """The sum of all, N,C,h,w."""
        self._narrow()
        self._wide_source = None
        return self._total.permute(1, 2, 0, 3).contiguous()

    def _narrow(self) -> None:
        """Transpose the columns' upsampling, once for all strips with the same input rows."""
        if self._wide_source is not None:
            images, sources = self._wide_source
            columns = self._upsampler.column_weights
            narrow = self._total[sources, images]
            narrow += (self._wide.view(-1, columns.shape[0]) @ columns).view_as(narrow)


def _even_parts(begin: int, end: int, most: int) -> list[slice]:
    """A range cut into as few parts as can be, none larger than allowed."""
    parts = -(-(end - begin) // most)
    cuts = [begin + (end - begin) * part // parts for part in range(parts)] + [end]
    return [slice(*cut) for cut in pairwise(cuts)]


def _strip_bytes(device: torch.device) -> int:
    if device.type == "cpu":
        return _CPU_STRIP_BYTES
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // _DEVICE_MEMORY_SHARE
    return _DEVICE_STRIP_BYTES


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a matrix that was made in a test serves the next training too
def _interpolation(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device, inside: float
) -> tuple[Tensor, list[int], list[int]]:
    """The matrix of linear interpolation, and the first and last input that each output touches.

    The outputs cover the first `inside` of the inputs: the rest is padding.

    Positions are rounded where PyTorch's own upsampling rounds them (the scale, then the result of
    a fused multiply-add), so that the two agree to the last digits. The matrix is kept: to bring it
    to a GPU would mean to wait for all that the GPU still has to do.
    """
    scale = (torch.tensor(inside, dtype=dtype) / outputs).double()
    position = scale * (torch.arange(outputs, dtype=torch.float64) + 0.5) - 0.5
    position = position.clamp(min=0).to(dtype)
    lower = position.floor().long().clamp(max=inputs - 1)
    upper = (lower + 1).clamp(max=inputs - 1)
    fraction = (position - lower).clamp(0, 1)
    matrix = torch.zeros(outputs, inputs, dtype=dtype)
    output = torch.arange(outputs)
    matrix[output, lower] += 1 - fraction
    matrix[output, upper] += fraction
    return matrix.to(device), lower.tolist(), upper.tolist()


def forget_matrices() -> None:
    """Free the matrices that are kept."""
    _interpolation.cache_clear()
