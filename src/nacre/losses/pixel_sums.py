"""Sums over the pixels of a class, of features that are known on a coarse grid.

A network scores a grid of points and upsamples the scores bilinearly, so a pixel p sees the
features x(p) = sum_i u_i(p) x_i of the points i around it. For the pixels P of a class

    n = |P|,   s = sum_p x(p),   S = sum_p x(p) x(p)^T = X^T A X,   A = sum_p u(p) u(p)^T

A couples neighboring points only, and bilinear weights are separable: with U[y, (d, i)] =
u_i(y) u_(i+d)(y) for the rows and V for the columns, A = U^T w V, where w is 1 on the pixels of the
class and 0 elsewhere. So sums over all pixels cost little more than sums over the points. A is
symmetric: with H = half its diagonal and the couplings to later points, X^T A X = B + B^T,
B = X^T H X.

What is the same for all pixels of an image, such as its mean, needs one row per image and not one
per point. Products of one batch are made in the precision of the features around the batch's mean,
which keeps them small; the mean is put back and all is added up in float64. So the sums of a batch
depend on nothing but the batch.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.labels.channels import ignore_value

_PENDING = 64
"""Batches whose shifts are put back at once."""


class PixelSums:
    """Sums over pixels by channel, of features that end in the constant 1."""

    def __init__(self) -> None:
        self._channels: dict[int, _Channel] = {}

    def add(self, maps: Tensor, rows: Tensor, targets: Tensor) -> None:
        """Add the pixels of a batch.

        Args:
            maps: N,C,h,w, features on the grid.
            rows: N,M, features of each image as a whole, which follow those of the maps.
            targets: N,H,W, the channel of each pixel; ignored ones are not counted.
        """
        shift = torch.cat([maps.mean((0, 2, 3)), rows.mean(0), rows.new_zeros(1)])
        x = maps.movedim(1, -1) - shift[: maps.shape[1]]
        ones = rows.new_ones(len(rows), 1)
        beside = (torch.cat([rows, ones], dim=1) - shift[maps.shape[1] :]).double()
        counts = torch.bincount(targets.flatten().int())
        for channel in counts.nonzero().flatten().tolist():
            if channel == ignore_value(targets):
                continue
            if channel not in self._channels:
                self._channels[channel] = _Channel(shift)
            mask = targets == channel
            has = mask.flatten(1).any(1)
            self._channels[channel].add(x[has], beside[has], mask[has].to(x.dtype), shift)

    def products(self) -> dict[int, Tensor]:
        """Return D+1,D+1 in float64 by channel: the sum of (x, 1) (x, 1)^T over the pixels."""
        return {channel: one.product() for channel, one in self._channels.items()}


class _Channel:
    """The sums of one channel, as a matrix that is added to its own transpose in the end.

    Args:
        like: D+1, for size and device.
    """

    def __init__(self, like: Tensor) -> None:
        side = len(like)
        self.half = torch.zeros(side, side, dtype=torch.float64, device=like.device)
        self.shifts: list[Tensor] = []
        self.sums: list[Tensor] = []

    def add(self, x: Tensor, beside: Tensor, weights: Tensor, shift: Tensor) -> None:
        """Add the pixels of some images.

        Args:
            x: N,h,w,C, on the grid, around the shift.
            beside: N,M in float64, of each image, around the shift, the constant 1 last.
            weights: N,H,W, 1 for pixels that count.
            shift: C+M, 0 for the constant.
        """
        count = x.shape[-1]
        share = _points(weights, x)
        used = share.flatten() > 0
        coupled = _couple(x, weights)
        self.half[:count, :count] += x.flatten(0, 2)[used].T @ coupled.flatten(0, 2)[used]
        per_image = torch.bmm(share.flatten(1)[:, None], x.flatten(1, 2))[:, 0].double()
        self.half[:count, count:] += per_image.T @ beside
        pixels = weights.sum((1, 2)).double()
        self.half[count:, count:] += (beside * (pixels / 2)[:, None]).T @ beside
        # (y + m) (y + m)^T summed is that of y, and m a^T + a m^T with a = sum of y + n m / 2.
        total = torch.cat([per_image.sum(0), pixels @ beside])
        self.shifts.append(shift.double())
        self.sums.append(total + shift.double() * (pixels.sum() / 2))
        if len(self.shifts) == _PENDING:
            self._put_back()

    def product(self) -> Tensor:
        """Return the sums so far."""
        self._put_back()
        return self.half + self.half.T

    def _put_back(self) -> None:
        """Put the shifts back that were taken out of the batches, all of them in one product."""
        if self.shifts:
            self.half.addmm_(torch.stack(self.shifts).T, torch.stack(self.sums))
            self.shifts, self.sums = [], []


def _couple(x: Tensor, weights: Tensor) -> Tensor:
    """Return H x for features N,h,w,C and pixel weights N,H,W."""
    height, width = x.shape[1:3]
    rows = _neighbors(_bilinear(weights.shape[1], height, x), (0, 1))
    columns = _neighbors(_bilinear(weights.shape[2], width, x), (-1, 0, 1))
    couplings = (rows.T @ weights @ columns).view(-1, 2, height, 3, width)
    around = F.pad(x, (0, 0, 1, 1, 0, 1))
    y = x * (couplings[:, 0, :, 1] / 2)[..., None]
    for down, right in ((0, 1), (1, -1), (1, 0), (1, 1)):
        others = around[:, down : down + height, 1 + right : 1 + right + width]
        y.addcmul_(couplings[:, down, :, 1 + right, :, None], others)
    return y


def _points(weights: Tensor, x: Tensor) -> Tensor:
    """Return N,h,w, how much the pixels that count see of each point."""
    rows, columns = (_bilinear(weights.shape[i], x.shape[i], x) for i in (1, 2))
    return rows.T @ weights @ columns


def _bilinear(size: int, side: int, like: Tensor) -> Tensor:
    """Return the matrix size,side that upsamples a line as `nacre.losses.upsample` does."""
    points = torch.eye(side, dtype=like.dtype, device=like.device)[None]
    return F.interpolate(points, size=size, mode="linear", align_corners=False)[0].T


def _neighbors(u: Tensor, steps: tuple[int, ...]) -> Tensor:
    """Return size,(steps, side): u_i u_(i+d) for each step d."""
    side = u.shape[1]
    around = F.pad(u, (1, 1))
    return torch.cat([u * around[:, 1 + d : 1 + d + side] for d in steps], dim=1)
