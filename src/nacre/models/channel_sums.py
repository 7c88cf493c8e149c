"""Sums per channel that keep their digits in the layout that is fast, and maps made of them.

On CPUs torch adds the pixels of a channels-last map one after the other in float32. Over 131,072
values per channel 1 / std is then off by 3e-4, and the error grows with the number of values; of a
contiguous map, which is summed in float64 and convolved more slowly, it is 8e-8.

Here a channels-last map, which lies in memory as rows of C values, is read as fewer and wider rows:
k pixels side by side are k C columns. torch's own kernel sums each column over some hundred
rows, and the many short sums of a channel are joined in float64. That costs no more than one long
sum does, since the same kernel reads the same values once. Other layouts and devices have sums
in float64 (float32 where there is no float64).

    mean = sum of n_i mean_i / n,   var = sum of n_i (var_i + (mean_i - mean)^2) / n
"""

from __future__ import annotations

import torch
from torch import Tensor

_PER_CHANNEL = (0, 2, 3)  # the dimensions that a channel's values lie in
_COLUMNS = 8192  # of the wide rows: their sums stay in the cache
_ROWS = 128  # values that a thread adds one after the other


def lies_in_rows(x: Tensor) -> bool:
    """Return whether torch gets a map's long sums wrong: float32, channels-last, on a CPU.

    (A compiler makes sums of its own, and knows nothing of numbers of threads.)
    """
    return (
        not torch.compiler.is_compiling()
        and x.device.type == "cpu"
        and x.dtype == torch.float32
        and x.dim() == 4
        and x.numel() > _ROWS * x.shape[1]
        and not x.is_contiguous()
        and x.is_contiguous(memory_format=torch.channels_last)
    )


def wide_type(x: Tensor) -> torch.dtype:
    """Return the type to sum in on the device of a tensor."""
    return torch.float32 if x.device.type == "mps" else torch.float64


def per_channel(values: Tensor) -> Tensor:
    """Return a vector of channel values, shaped to be used with N,C,H,W."""
    return values[:, None, None]


def channel_statistics(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return mean and biased variance of each channel of N,C,H,W, in the wide type."""
    if lies_in_rows(x):
        return _statistics_of_rows(x)
    wide = wide_type(x)
    count = max(x.numel() // x.shape[1], 1)
    mean = x.sum(_PER_CHANNEL, dtype=wide) / count
    # Squares are summed about the mean: about the origin they would cancel where it is far from 0.
    x = x.to(torch.promote_types(x.dtype, torch.float32))
    center = mean.to(x.dtype)
    squares = (x - per_channel(center)).square_().sum(_PER_CHANNEL, dtype=wide)
    return mean, (squares / count - (center.to(wide) - mean).square()).clamp_(min=0)


def channel_sums(dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """Return the sums per channel of dy and of dy * (x - mean) * scale, in the wide type."""
    if lies_in_rows(x) and dy.dtype == x.dtype:
        return _sums_of_rows(dy, x, mean, scale)
    wide = wide_type(x)
    product = dy * ((x - per_channel(mean)) * per_channel(scale))
    return dy.sum(_PER_CHANNEL, dtype=wide), product.sum(_PER_CHANNEL, dtype=wide)


def channel_affine(shift: Tensor, *terms: tuple[Tensor, Tensor]) -> Tensor:
    """Return the shift plus all factors times their maps; shift and factors are per channel."""
    if all(lies_in_rows(values) for _, values in terms):
        return _affine_of_rows(shift, terms)
    total = per_channel(shift)
    for factor, values in terms:
        total = torch.addcmul(total, values, per_channel(factor))
    return total


def _statistics_of_rows(x: Tensor) -> tuple[Tensor, Tensor]:
    channels = x.shape[1]
    means, variances, counts = [], [], []
    for part in _parts(x, _ROWS * torch.get_num_threads()):
        mean, variance = torch.batch_norm_update_stats(part, None, None, 0.0)
        means.append(mean.view(-1, channels))
        variances.append(variance.view(-1, channels))
        counts += [len(part)] * (part.shape[1] // channels)
    share = torch.tensor(counts, dtype=torch.float64)[:, None] / (x.numel() // channels)
    short_mean, short_variance = torch.cat(means).double(), torch.cat(variances).double()
    total_mean = (share * short_mean).sum(0)
    # The variance of all pixels: the parts' own, and how far their means lie from the mean of all.
    return total_mean, (share * (short_variance + (short_mean - total_mean).square())).sum(0)


def _sums_of_rows(dy: Tensor, x: Tensor, mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    channels, rows = x.shape[1], _ROWS * torch.get_num_threads()
    times = _pixels_per_row(channels)
    wide_mean, wide_scale = mean.repeat(times), scale.repeat(times)
    sums, products = [], []
    for dy_part, x_part in zip(_parts(dy, rows), _parts(x, rows), strict=True):
        columns = x_part.shape[1]
        # What the kernel calls the gradients of bias and weight are these two sums.
        _, product, total = torch.ops.aten.native_batch_norm_backward(
            dy_part,
            x_part,
            None,
            None,
            None,
            wide_mean[:columns],
            wide_scale[:columns],
            True,
            0.0,
            [False, True, True],
        )
        sums.append(total.view(-1, channels))
        products.append(product.view(-1, channels))
    return torch.cat(sums).sum(0, dtype=torch.float64), torch.cat(products).sum(
        0, dtype=torch.float64
    )


def _affine_of_rows(shift: Tensor, terms: tuple[tuple[Tensor, Tensor], ...]) -> Tensor:
    result = torch.empty_like(terms[0][1])
    maps = [_parts(values) for _, values in terms]
    for out, *parts in zip(_parts(result), *maps, strict=True):
        times = out.shape[1] // shift.numel()
        total = shift.repeat(times)
        for (factor, _), part in zip(terms, parts, strict=True):
            total = torch.addcmul(total, part, factor.repeat(times), out=out)
    return result


def _pixels_per_row(channels: int) -> int:
    return max(1, _COLUMNS // channels)


def _parts(x: Tensor, rows: int | None = None) -> list[Tensor]:
    """Cut a map into parts of so many wide rows; pixels that fill no wide row are one part more."""
    pixels = x.contiguous(memory_format=torch.channels_last).permute(0, 2, 3, 1).flatten(0, 2)
    count, channels = pixels.shape
    times = _pixels_per_row(channels)
    whole = count - count % times
    wide = pixels[:whole].view(-1, times * channels)
    parts = list(torch.split(wide, rows or len(wide))) if whole else []
    return parts if whole == count else [*parts, pixels[whole:]]
