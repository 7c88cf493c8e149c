"""Sums over the pixels of a class, of features on a coarse grid.

A network scores the points of a grid and upsamples the scores bilinearly. So a pixel p has the
features x(p) = sum_i u_i(p) x_i of the points i around it. For the pixels P of a class

    n = |P|,   s = sum_p x(p),   S = sum_p x(p) x(p)^T = X^T A X,   A = sum_p u(p) u(p)^T

A only couples neighboring points, and bilinear weights are separable. Between the points of a row
of the grid and those of the same or the next row, it is

    A[(y, i), (y + d, j)] = sum_(py, px) u_y(py) u_(y+d)(py) w(py, px) v_i(px) v_j(px),    d = 0, 1

where w is 1 on the pixels of the class and 0 elsewhere, u are the weights of rows and v those of
columns. So sums over all pixels take little more time than sums over the points. S is symmetric:
only the blocks on and below its diagonal are computed.

Maps y that are coarser than the grid are upsampled to it first, x = U y. Their sums are

    S = Y^T (U^T A U) Y,    and    Y^T U^T (A Z)    with maps z of the grid itself

where U^T A U couples the points of the coarse grid up to d = 2. So coarse maps are never upsampled.

Features that all pixels of an image share, such as its mean, need one row per image. The products
of a batch are computed in the precision of the features, around the mean of the batch, which keeps
them small; then the mean is added again and all is summed in float64. So the sums of a batch depend
on nothing but the batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.labels.channels import ignore_value

_PENDING = 256
"""Number of images whose rows and shifts are added at once."""

_BLOCK = 196
"""Rows of S per product; with more of them more of the unneeded upper half is computed."""

_SPARSE = 0.8
"""If a class touches a smaller share of the grid points, the other points are left out."""


class PixelSums:
    """The sums over the pixels of each channel, of features followed by the constant 1."""

    def __init__(self) -> None:
        self._channels: dict[int, _Channel] = {}

    def add(
        self, maps: Tensor, rows: Tensor, targets: Tensor, coarse: Tensor | None = None
    ) -> None:
        """Add the pixels of a batch.

        Args:
            maps: N,C,h,w, features on the grid.
            rows: N,M, features of whole images, which come last.
            targets: N,H,W, the channel of each pixel; ignored ones are not counted.
            coarse: N,B,k,l, features that come after the maps and are upsampled to the grid.
        """
        grids = [maps] if coarse is None else [maps, coarse]
        means = [grid.mean((0, 2, 3)) for grid in grids]
        shift = torch.cat([*means, rows.mean(0), rows.new_zeros(1)])
        x, *y = (grid.movedim(1, -1) - mean for grid, mean in zip(grids, means, strict=True))
        ones, num_maps = rows.new_ones(len(rows), 1), sum(map(len, means))
        beside = (torch.cat([rows, ones], dim=1) - shift[num_maps:]).double()
        on_grid = _Couplings(targets, x)
        on_coarse = [_Couplings(targets, grid, x) for grid in y]
        counts = _count(targets)
        for channel in counts.sum(0).nonzero().flatten().tolist():
            if channel == ignore_value(targets):
                continue
            channel_sums = self._channels.setdefault(channel, _Channel(shift))
            with_class = counts[:, channel].nonzero().flatten()
            images = slice(None) if len(with_class) == len(x) else with_class
            weights = (targets[images] == channel).to(x.dtype)
            coupled, share = on_grid(x[images], weights)
            channel_sums.add(x[images], coupled, share)
            sums = [_total(x[images], share)]
            for coarse_x, couplings in zip(y, on_coarse, strict=True):
                own, share = couplings(coarse_x[images], weights)
                both = torch.cat([couplings.gather(coupled), own], dim=-1)
                channel_sums.add(coarse_x[images], both, share)
                sums.append(_total(coarse_x[images], share))
            pixels = counts[images, channel].double()
            channel_sums.add_rows(torch.cat(sums, dim=1), pixels, beside[images], shift.double())

    def products(self) -> dict[int, Tensor]:
        """Return the sums of (x, 1) (x, 1)^T over the pixels, D+1,D+1 in float64 by channel."""
        return {channel: sums.product() for channel, sums in self._channels.items()}


class _Channel:
    """The sums of one channel, of which only the lower triangle is complete.

    Args:
        like: A tensor of the size D+1 on the device.
    """

    def __init__(self, like: Tensor) -> None:
        side = len(like)
        self.lower = torch.zeros(side, side, dtype=torch.float64, device=like.device)
        self.shifts: list[Tensor] = []
        self.sums: list[Tensor] = []
        self.beside: list[Tensor] = []
        self.per_image: list[Tensor] = []

    def add(self, x: Tensor, coupled: Tensor, share: Tensor) -> None:
        """Add X^T A (Z, X) of some images.

        Args:
            x: N,h,w,C, on a grid, minus the shift.
            coupled: N,h,w,B+C, A z of the B features before x, then A x.
            share: N,h,w, the sum of the pixels' weights for each point.
        """
        count, before = x.shape[-1], coupled.shape[-1] - x.shape[-1]
        x, coupled = x.flatten(0, 2), coupled.flatten(0, 2)
        used = share.flatten().nonzero().flatten()
        if len(used) < _SPARSE * len(x):
            x, coupled = x[used], coupled[used]
        for start in range(0, count, _BLOCK):
            end = min(count, start + _BLOCK)
            place = slice(before + start, before + end), slice(before + end)
            self.lower[place] += x[:, start:end].T @ coupled[:, place[1]]

    def add_rows(self, sums: Tensor, pixels: Tensor, beside: Tensor, shift: Tensor) -> None:
        """Add the products that need one row per image.

        Args:
            sums: N,C in float64, of the maps' features over the pixels, minus the shift.
            pixels: N in float64, the number of pixels of each image.
            beside: N,M in float64, features of each image minus the shift, then the constant 1.
            shift: C+M in float64, 0 for the constant.
        """
        self.beside.append(beside)
        self.per_image.append(torch.cat([sums, beside * pixels[:, None]], dim=1))
        # (y + m) (y + m)^T summed is that of y, and m a^T + a m^T with a = sum of y + n m / 2.
        self.shifts.append(shift)
        self.sums.append(self.per_image[-1].sum(0) + shift * (pixels.sum() / 2))
        if sum(map(len, self.beside)) >= _PENDING:
            self._put_back()

    def product(self) -> Tensor:
        """Return the symmetric matrix of sums."""
        self._put_back()
        return self.lower.tril() + self.lower.tril(-1).T

    def _put_back(self) -> None:
        """Add the rows of images, and the shifts that were subtracted from the batches."""
        if self.shifts:
            beside = torch.cat(self.beside)
            self.lower[-beside.shape[1] :].addmm_(beside.T, torch.cat(self.per_image))
            shifts, sums = torch.stack(self.shifts), torch.stack(self.sums)
            self.lower.addmm_(torch.cat([shifts, sums]).T, torch.cat([sums, shifts]))
            self.shifts, self.sums, self.beside, self.per_image = [], [], [], []


class _Couplings:
    """The coupling of grid points by the pixels of a batch.

    Args:
        targets: N,H,W: their size is that of the images.
        x: N,h,w,C: their size is that of the grid.
        finer: N,y,x,B: their size is that of a finer grid, to which this one is upsampled first.
    """

    def __init__(self, targets: Tensor, x: Tensor, finer: Tensor | None = None) -> None:
        self.height, self.width = x.shape[1:3]
        through = x if finer is None else finer
        u, self.columns = (_bilinear(targets.shape[i], through.shape[i], x) for i in (1, 2))
        self.reach = 1
        if finer is not None:
            self.reach = 2  # a pixel depends on two points of the finer grid and three of this one
            self.upsampling = [_bilinear(finer.shape[i], x.shape[i], x) for i in (1, 2)]
            u, self.columns = u @ self.upsampling[0], self.columns @ self.upsampling[1]
        # Each row of the grid with itself and with the next ones, then the weights themselves.
        pairs = [u * F.pad(u, (0, d))[:, d:] for d in range(self.reach + 1)]
        self.rows = torch.cat([*pairs, u], dim=1).T
        self.pairs = (self.columns[:, :, None] * self.columns[:, None]).flatten(1)

    def __call__(self, x: Tensor, weights: Tensor) -> tuple[Tensor, Tensor]:
        """Return A x, and the sum of the pixels' weights for each point, N,h,w.

        Args:
            x: N,h,w,C, on the grid.
            weights: N,H,W, 1 for pixels of the class.
        """
        count, width = self.reach + 1, self.width
        lines = self.rows @ weights
        share = lines[:, count * self.height :] @ self.columns
        both = lines[:, : count * self.height] @ self.pairs
        # All rows of all images below each other; the last row of an image has no next one.
        same, *others = both.view(len(x), count, self.height, width, width).unbind(1)
        flat = x.flatten(0, 1)
        coupled = torch.bmm(same.flatten(0, 1), flat)
        for d, other in enumerate(others, start=1):
            later = other.flatten(0, 1)[:-d]
            coupled[:-d].baddbmm_(later, flat[d:])
            coupled[d:].baddbmm_(later.mT, flat[:-d])
        return coupled.view(x.shape), share

    def gather(self, finer: Tensor) -> Tensor:
        """Return U^T z, N,h,w,B, of values on the finer grid."""
        return torch.einsum("nyxb,yh,xw->nhwb", finer, *self.upsampling)


def _total(x: Tensor, share: Tensor) -> Tensor:
    """Return the sums of N,h,w,C over the pixels of each image, N,C in float64."""
    return torch.bmm(share.flatten(1)[:, None], x.flatten(1, 2))[:, 0].double()


def _count(targets: Tensor) -> Tensor:
    """Return N,K: the number of pixels of each channel in each image."""
    channels = int(targets.max()) + 1
    first = channels * torch.arange(len(targets), device=targets.device, dtype=torch.int32)
    bins = targets.flatten(1) + first[:, None]
    return torch.bincount(bins.flatten(), minlength=len(targets) * channels).view(-1, channels)


def _bilinear(size: int, side: int, like: Tensor) -> Tensor:
    """Return the matrix size,side that upsamples a line as `nacre.losses.upsample` does."""
    points = torch.eye(side, dtype=like.dtype, device=like.device)[None]
    return F.interpolate(points, size=size, mode="linear", align_corners=False)[0].T
