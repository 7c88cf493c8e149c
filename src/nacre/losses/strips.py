"""Losses straight from low-resolution logits: strips of upsampled rows, and their transpose.

Upsampling from h x w to H x W is linear and separable: with two small matrices A (H x h, for the
rows) and B (W x w, for the columns) a channel x becomes A x B^T, and a gradient G of the upsampled
channel becomes A^T G B. Neither needs the whole image: a strip of output rows touches only the few
input rows where its part of A is not zero. So whatever is a sum over pixels is computed strip by
strip, and full-resolution logits never exist.

`by_strips` does so for any readable loss, such as those of `nacre.losses.reference`: autograd
differentiates it inside each strip, and only low-resolution gradients are kept, one for each term,
which the backward pass scales and adds. A kernel with gradients derived by hand can take the place
of autograd (`sum_strips`; there is one, in `nacre.losses.softmax`).

A strip is the same few rows of one or several images, laid out as lines of pixels, channels,
columns (L,C,W) where the L lines are all images' first rows, then all images' second rows, and so
on: sums over channels run along contiguous columns, which is the fastest order on CPUs, and the
products with A are plain matrix products.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any, Protocol

import torch
from torch import Tensor

from nacre.losses.reference import at_least_float32

# On CPUs a strip and its few companions should stay in the cache.
_CPU_STRIP_BYTES = 3 << 19
# On a GPU a strip should be large enough to keep it busy, and its companions together a few
# hundredths of the memory. The total decides, not what is free at the moment: otherwise the order
# of the sums, and so the last digits, would change from run to run.
_GPU_MEMORY_SHARE = 128
_DEVICE_STRIP_BYTES = 64 << 20


def by_strips(
    loss: Callable[..., dict[str, Tensor]],
    logits: Tensor,
    old_logits: Tensor | None,
    targets: Tensor,
    *by_image: Tensor | None,
) -> dict[str, Tensor]:
    """Return the terms of a loss of upsampled logits, without upsampling all of them.

    Args:
        loss: Takes a part of the upsampled logits of student and teacher, of the targets and of
            what is known by image, as images of one row. Returns terms that add up over such
            parts: means over pixels divide by the number of pixels of the whole batch.
        logits: The student's, N,C,h,w.
        old_logits: The teacher's, N,K,h,w, where the loss needs one (h and w may differ from the
            student's); no gradient flows into them.
        targets: N,H,W.
        by_image: N,... each, what is known by image, or None.

    Returns:
        The terms by name; each may be weighted and added at will, but differentiated only once.
    """
    kernel = _Autograd(loss)
    logits = at_least_float32(logits)
    if old_logits is not None:
        old_logits = old_logits.detach().to(logits.dtype)
    sums = sum_strips(kernel, logits, old_logits, targets, *by_image)
    return dict(zip(kernel.names, sums, strict=True))


class StripKernel(Protocol):
    """The sums of one or several terms over a strip, and their gradients."""

    def __call__(
        self,
        x: Tensor,
        z: Tensor | None,
        targets: Tensor,
        gradients: bool,
        *by_image: Tensor | None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return a scalar and, if gradients are wanted, a gradient L,C,W for each term.

        Args:
            x: The student's logits L,C,W; may be overwritten.
            z: The teacher's logits L,K,W if there are any; may be overwritten.
            targets: L,W.
            gradients: Whether gradients are wanted.
            by_image: What is known by image, for each line.
        """


class _Autograd:
    """A `StripKernel` that lets autograd differentiate a loss of images of one row."""

    def __init__(self, loss: Callable[..., dict[str, Tensor]]) -> None:
        self.loss = loss
        self.names: tuple[str, ...] = ()

    def __call__(
        self,
        x: Tensor,
        z: Tensor | None,
        targets: Tensor,
        gradients: bool,
        *by_image: Tensor | None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        x = x.unsqueeze(2).requires_grad_(gradients)
        old = None if z is None else z.unsqueeze(2)
        with torch.enable_grad():
            terms = self.loss(x, old, targets.unsqueeze(1), *by_image)
        self.names = tuple(terms)
        values = list(terms.values())
        slopes = []
        for i, value in enumerate(values if gradients else []):
            (slope,) = torch.autograd.grad(value, x, retain_graph=i + 1 < len(values))
            slopes.append(slope.squeeze(2).contiguous())
        return [value.detach() for value in values], slopes


def sum_strips(
    kernel: StripKernel,
    logits: Tensor,
    old_logits: Tensor | None,
    targets: Tensor,
    *by_image: Tensor | None,
) -> tuple[Tensor, ...]:
    """Return the sums of a kernel's terms over all pixels, which can be differentiated once.

    Args:
        kernel: What to compute of a strip.
        logits: The student's, N,C,h,w, in float32 at least.
        old_logits: The teacher's, N,K,h,w, of the same type, where the kernel needs them.
        targets: N,H,W.
        by_image: N,... each, what is known by image, or None.
    """
    sums: tuple[Tensor, ...] = _StripSums.apply(kernel, logits, old_logits, targets, *by_image)  # type: ignore[no-untyped-call]
    return sums


class _StripSums(torch.autograd.Function):
    """Sums and gradients in one go; the backward pass only scales what the forward pass found."""

    @staticmethod
    def forward(
        ctx: Any,
        kernel: StripKernel,
        logits: Tensor,
        old_logits: Tensor | None,
        targets: Tensor,
        *by_image: Tensor | None,
    ) -> tuple[Tensor, ...]:
        size = (targets.shape[1], targets.shape[2])
        student = StripUpsampler(logits, size)
        teacher = None if old_logits is None else StripUpsampler(old_logits, size)
        totals: list[Tensor] = []
        gradients: list[StripGradient] = []
        # Autocast would take the matrix products to half precision.
        with torch.autocast(logits.device.type, enabled=False):
            for strip in student.strips():
                values, slopes = kernel(
                    student.lines(strip),
                    None if teacher is None else teacher.lines(strip),
                    strip.lines(targets),
                    ctx.needs_input_grad[1],
                    *[None if one is None else strip.repeat(one) for one in by_image],
                )
                totals = totals or [logits.new_zeros(()) for _ in values]
                gradients = gradients or [StripGradient(student) for _ in slopes]
                for total, value in zip(totals, values, strict=True):
                    total.add_(value)
                for gradient, slope in zip(gradients, slopes, strict=True):
                    gradient.add(slope, strip)
            found = [gradient.total() for gradient in gradients]
        ctx.num_by_image = len(by_image)
        ctx.save_for_backward(*found)
        return tuple(totals)

    @staticmethod
    def backward(ctx: Any, *scales: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():
            raise RuntimeError(
                "losses by strips cannot be differentiated twice (create_graph=True); "
                "upsample and use the functions of nacre.losses.reference for that"
            )
        total = ctx.saved_tensors[0] * scales[0]
        for gradient, scale in zip(ctx.saved_tensors[1:], scales[1:], strict=True):
            total.addcmul_(gradient, scale)
        return None, total, None, None, *[None] * ctx.num_by_image


@dataclass(frozen=True)
class Strip:
    """The same rows of some images."""

    images: slice
    rows: slice

    def lines(self, targets: Tensor) -> Tensor:
        """Return the strip of labels N,H,W as L,W."""
        return targets[self.images, self.rows].transpose(0, 1).flatten(0, 1)

    def repeat(self, values: Tensor) -> Tensor:
        """Return values N,... of the images for every row of the strip, L,..."""
        rows = self.rows.stop - self.rows.start
        return values[self.images].repeat(rows, *[1] * (values.ndim - 1))

    def put(self, lines: Tensor, targets: Tensor) -> None:
        """Write lines L,W into their place in labels N,H,W."""
        place = targets[self.images, self.rows].transpose(0, 1)
        place.copy_(lines.view(place.shape))


class StripUpsampler:
    """Low-resolution maps that are upsampled one strip after the other."""

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
        """Return strips of a good size for the device, together all rows of all images."""
        images, rows = self._images_and_rows()
        count = self.maps.shape[1]
        return [
            Strip(part, span)
            for part in _even_parts(0, count, images)
            for span in self._spans(rows)
        ]

    def lines(self, strip: Strip) -> Tensor:
        """Return the upsampled maps of a strip, L,C,W; the next call overwrites them."""
        weights, sources = self.weights(strip)
        if self._wide_source != (strip.images, sources):
            self._widen(strip.images, sources)
        lines = weights.shape[0] * self._wide.shape[1]
        self._strip.resize_(lines, *self._wide.shape[2:])
        torch.mm(weights, self._wide.flatten(1), out=self._strip.view(weights.shape[0], -1))
        return self._strip

    def weights(self, strip: Strip) -> tuple[Tensor, slice]:
        """Return the part of the row matrix that is not zero for a strip, and its input rows."""
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
        """Return how many images and rows to put into a strip.

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
        """Return all rows from top to bottom, cut where the input rows change if possible."""
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
        """Return the sum of all, N,C,h,w."""
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


def first_channel(is_greatest: Tensor) -> Tensor:
    """Return of lines L,C,W, 1 where a channel is the greatest and else 0, the first such channel.

    It is found by values alone, in place: C - c where it is 1 is greatest at the first one.
    """
    channels = is_greatest.shape[1]
    rank = torch.arange(channels, 0, -1, dtype=is_greatest.dtype, device=is_greatest.device)
    return channels - is_greatest.mul_(rank.view(-1, 1)).amax(1)


def _strip_bytes(device: torch.device) -> int:
    """Return how large a strip may be."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // _GPU_MEMORY_SHARE
    return _CPU_STRIP_BYTES if device.type == "cpu" else _DEVICE_STRIP_BYTES


def _even_parts(begin: int, end: int, most: int) -> list[slice]:
    """Cut a range into as few parts as can be, none larger than allowed."""
    parts = -(-(end - begin) // most)
    cuts = [begin + (end - begin) * part // parts for part in range(parts)] + [end]
    return [slice(*cut) for cut in pairwise(cuts)]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a matrix that was made in a test serves the next training too
def _interpolation(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device, inside: float
) -> tuple[Tensor, list[int], list[int]]:
    """Return the matrix of linear interpolation, and the first and last input of each output.

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
