"""Losses from low-resolution logits: strips of upsampled rows, and their transpose.

Upsampling from h x w to H x W is linear and separable: with two small matrices A (H x h, for the
rows) and B (W x w, for the columns) a channel x becomes A x B^T, and a gradient G of the upsampled
channel becomes A^T G B. A strip of output rows only needs the few input rows where its part of A is
not zero. So a sum over pixels is computed strip by strip, and full-resolution logits never exist.

`by_strips` does this for any loss, such as those of `nacre.losses.reference`: autograd
differentiates it inside each strip, and only one low-resolution gradient is stored for each term,
which the backward pass scales and adds. A kernel with gradients derived by hand can replace
autograd (`sum_strips`); there is one, in `nacre.losses.softmax`.

A strip is the same few rows of one or several images, laid out as lines of pixels, channels,
columns (L,C,W). The L lines are the first rows of all images, then their second rows, and so on.
Sums over channels run along contiguous columns, which is the fastest order on CPUs, and the
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

# A strip and a few tensors of its size should stay in the cache of a CPU core.
_CPU_STRIP_BYTES = 3 << 19
# On a GPU a strip should be large, but take only a few hundredths of the memory together with
# tensors of its size. The total memory decides: with the free memory the order of the sums, and so
# the last digits, would change from run to run.
_GPU_MEMORY_SHARE = 128
_DEVICE_STRIP_BYTES = 64 << 20


def by_strips(
    loss: Callable[..., dict[str, Tensor]],
    logits: Tensor,
    old_logits: Tensor | None,
    targets: Tensor,
    *by_image: Tensor | None,
) -> dict[str, Tensor]:
    """Return the terms of a loss of upsampled logits, which are upsampled strip by strip.

    Args:
        loss: A function of parts of the upsampled logits of student and teacher, of the targets
            and of the values by image, all as images of one row. It returns terms whose sum over
            the parts is the loss: means must divide by the number of pixels of the whole batch.
        logits: The student's, N,C,h,w.
        old_logits: The teacher's, N,K,h,w, or None (h and w may differ from the student's). They
            get no gradient.
        targets: N,H,W.
        by_image: Values by image, N,... each, or None.

    Returns:
        The terms by name. Their weighted sum can be differentiated once.
    """
    kernel = _Autograd(loss)
    logits = at_least_float32(logits)
    if old_logits is not None:
        old_logits = old_logits.detach().to(logits.dtype)
    sums = sum_strips(kernel, logits, old_logits, targets, *by_image)
    return dict(zip(kernel.names, sums, strict=True))


class StripKernel(Protocol):
    """A function that sums one or several terms over a strip and computes their gradients."""

    def __call__(
        self,
        x: Tensor,
        z: Tensor | None,
        targets: Tensor,
        gradients: bool,
        *by_image: Tensor | None,
    ) -> tuple[list[Tensor], list[Tensor]]:
        """Return a scalar and, if `gradients` is set, a gradient L,C,W for each term.

        Args:
            x: The student's logits L,C,W, which may be overwritten.
            z: The teacher's logits L,K,W, or None, which may be overwritten.
            targets: L,W.
            gradients: Whether to compute gradients.
            by_image: The values by image, L,... each, or None.
        """


class _Autograd:
    """A `StripKernel` that differentiates a loss by autograd."""

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
        by_term = []
        for i, value in enumerate(values if gradients else []):
            (gradient,) = torch.autograd.grad(value, x, retain_graph=i + 1 < len(values))
            by_term.append(gradient.squeeze(2).contiguous())
        return [value.detach() for value in values], by_term


def sum_strips(
    kernel: StripKernel,
    logits: Tensor,
    old_logits: Tensor | None,
    targets: Tensor,
    *by_image: Tensor | None,
) -> tuple[Tensor, ...]:
    """Return the sums of a kernel's terms over all pixels, which can be differentiated once.

    The logits are in float32 at least and of one type; the other arguments are as in `by_strips`.
    """
    sums: tuple[Tensor, ...] = _StripSums.apply(kernel, logits, old_logits, targets, *by_image)  # type: ignore[no-untyped-call]
    return sums


class _StripSums(torch.autograd.Function):
    """Sums and gradients in one pass; the backward pass only scales the gradients."""

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
        # Autocast would compute the matrix products in half precision.
        with torch.autocast(logits.device.type, enabled=False):
            for strip in student.strips():
                values, strip_gradients = kernel(
                    student.lines(strip),
                    None if teacher is None else teacher.lines(strip),
                    strip.lines(targets),
                    ctx.needs_input_grad[1],
                    *[None if one is None else strip.repeat(one) for one in by_image],
                )
                totals = totals or [logits.new_zeros(()) for _ in values]
                gradients = gradients or [StripGradient(student) for _ in strip_gradients]
                for total, value in zip(totals, values, strict=True):
                    total.add_(value)
                for gradient, part in zip(gradients, strip_gradients, strict=True):
                    gradient.add(part, strip)
            total_gradients = [gradient.total() for gradient in gradients]
        ctx.num_by_image = len(by_image)
        ctx.save_for_backward(*total_gradients)
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
        """Return the values N,... of images for each line of the strip, L,..."""
        rows = self.rows.stop - self.rows.start
        return values[self.images].repeat(rows, *[1] * (values.ndim - 1))

    def put(self, lines: Tensor, targets: Tensor) -> None:
        """Write lines L,W to their place in labels N,H,W."""
        place = targets[self.images, self.rows].transpose(0, 1)
        place.copy_(lines.view(place.shape))


class StripUpsampler:
    """Low-resolution maps that are upsampled strip by strip."""

    def __init__(
        self, maps: Tensor, size: tuple[int, int], inside: tuple[float, float] | None = None
    ) -> None:
        """Prepare the matrices.

        Args:
            maps: N,C,h,w, float32 or float64.
            size: Height and width to upsample to.
            inside: How many rows and columns of the maps that size covers; by default all.
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
        """Return strips that cover all rows of all images, of a size that suits the device."""
        images, rows = self._images_and_rows()
        count = self.maps.shape[1]
        return [
            Strip(part, span)
            for part in _even_parts(0, count, images)
            for span in self._spans(rows)
        ]

    def lines(self, strip: Strip) -> Tensor:
        """Return the upsampled maps of a strip, L,C,W, which the next call overwrites."""
        weights, sources = self.weights(strip)
        if self._wide_source != (strip.images, sources):
            self._widen(strip.images, sources)
        lines = weights.shape[0] * self._wide.shape[1]
        self._strip.resize_(lines, *self._wide.shape[2:])
        torch.mm(weights, self._wide.flatten(1), out=self._strip.view(weights.shape[0], -1))
        return self._strip

    def weights(self, strip: Strip) -> tuple[Tensor, slice]:
        """Return the nonzero part of the row matrix for a strip, and the input rows it needs."""
        sources = slice(self._lower[strip.rows.start], self._upper[strip.rows.stop - 1] + 1)
        return self.row_weights[strip.rows, sources], sources

    def _widen(self, images: slice, sources: slice) -> None:
        """Upsample the columns of a few input rows, which the next strips often need again."""
        narrow = self.maps[sources, images]
        shape = (*narrow.shape[:3], self.size[1])
        if self._wide.shape != shape:
            self._wide = narrow.new_empty(shape)
        # All images, channels and rows are lines of one matrix product.
        columns = self.column_weights.t()
        torch.mm(narrow.flatten(0, 2), columns, out=self._wide.flatten(0, 2))
        self._wide_source = (images, sources)

    def _images_and_rows(self) -> tuple[int, int]:
        """Return the numbers of images and rows of a strip.

        Rows between the same two input rows share their columns' upsampling. So a strip has no more
        rows than those, but several images, unless there are only few.
        """
        height, count, channels, _ = self.maps.shape
        line_bytes = channels * self.size[1] * self.maps.element_size()
        lines = max(1, _strip_bytes(self.maps.device) // line_bytes)
        between_inputs = -(-self.size[0] // height)
        rows = min(lines, self.size[0], max(between_inputs, lines // count))
        return max(1, min(count, lines // rows)), rows

    def _spans(self, rows: int) -> list[slice]:
        """Return ranges of rows from top to bottom, cut where the input rows change if possible."""
        height = self.size[0]
        starts = [0] + [r for r in range(1, height) if self._lower[r] != self._lower[r - 1]]
        spans: list[slice] = []
        begin = 0
        # Rows from `first` to `end` have the same input rows. A span gets such groups until the
        # next one does not fit; a group that is larger than a span is cut evenly.
        for first, end in pairwise([*starts, height]):
            if end - begin > rows:
                spans += _even_parts(begin, first, rows)
                begin = first
        return spans + _even_parts(begin, height, rows)


class StripGradient:
    """The transpose of a `StripUpsampler`: the sum of the strips' gradients at low resolution."""

    def __init__(self, upsampler: StripUpsampler) -> None:
        self._upsampler = upsampler
        self._total = torch.zeros_like(upsampler.maps)
        self._wide = upsampler.maps.new_empty(0)
        self._wide_source: tuple[slice, slice] | None = None

    def add(self, gradient: Tensor, strip: Strip) -> None:
        """Add the gradient L,C,W of a strip."""
        weights, sources = self._upsampler.weights(strip)
        by_row = gradient.view(weights.shape[0], -1)
        # Strips with the same input rows are added before their columns are transposed.
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
        """Return the sum of all strips, N,C,h,w."""
        self._narrow()
        self._wide_source = None
        return self._total.permute(1, 2, 0, 3).contiguous()

    def _narrow(self) -> None:
        """Apply the transpose of the columns' upsampling to the sum so far."""
        if self._wide_source is not None:
            images, sources = self._wide_source
            columns = self._upsampler.column_weights
            narrow = self._total[sources, images]
            narrow += (self._wide.view(-1, columns.shape[0]) @ columns).view_as(narrow)


def first_channel(is_greatest: Tensor) -> Tensor:
    """Return the first channel c that is 1 for each pixel of lines L,C,W of 0 and 1, in place.

    It is the one with the greatest C - c, which `amax` finds much faster than `argmax`.
    """
    channels = is_greatest.shape[1]
    rank = torch.arange(channels, 0, -1, dtype=is_greatest.dtype, device=is_greatest.device)
    return channels - is_greatest.mul_(rank.view(-1, 1)).amax(1)


def _strip_bytes(device: torch.device) -> int:
    """Return the size of a strip."""
    if device.type == "cuda":
        return torch.cuda.get_device_properties(device).total_memory // _GPU_MEMORY_SHARE
    return _CPU_STRIP_BYTES if device.type == "cpu" else _DEVICE_STRIP_BYTES


def _even_parts(begin: int, end: int, max_size: int) -> list[slice]:
    """Cut a range into as few parts as possible, none larger than `max_size`."""
    parts = -(-(end - begin) // max_size)
    cuts = [begin + (end - begin) * part // parts for part in range(parts)] + [end]
    return [slice(*cut) for cut in pairwise(cuts)]


@lru_cache(maxsize=64)
@torch.inference_mode(False)  # a cached matrix of a test is used in training, too
def _interpolation(
    inputs: int, outputs: int, dtype: torch.dtype, device: torch.device, inside: float
) -> tuple[Tensor, list[int], list[int]]:
    """Return the matrix of linear interpolation, and the first and last input of each output.

    The outputs cover the first `inside` of the inputs; the rest is padding.

    Positions are rounded as in PyTorch's own upsampling (the scale, then the result of a fused
    multiply-add), so that the two agree to the last digits. The matrix is cached, because copying
    it to a GPU waits for the GPU.
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
