"""A linear head in closed form: class-balanced ridge regression from stored sums.

Three sums are stored for each class in each step and data folder: the number n of its pixels, the
mean m of their features and their scatter M = sum (x - m) (x - m)^T. With class weights
b_c ~ sqrt(n_c) that sum to 1, each pixel of c weighs f_c = b_c / n_c, and

    mu = sum_r f_r n_r m_r                          (over the stored rows r)
    C = sum_r f_r (M_r + n_r (m_r - mu) (m_r - mu)^T),    s^2 = its diagonal
    R_c = sum_(r of c) f_r n_r (m_r - mu)
    V = (C / (s s^T) + ridge I)^-1 R / s            (float64, one Cholesky factorization)
    score_c(x) = V_c (x - mu) / s + b_c

This is the ridge regression of the indicator of c on x and a constant, which is not shrunk. The
ridge is a share of the variance of each feature. So neither the order of the rows nor the scale of
a feature matters, and rows can be dropped or added at any time. The scores of all channels sum to
1. A channel without pixels has the score 0, so it is never the greatest.

AIR (arXiv 2408.10349) has the same form: a matrix per class, with weights in the solution.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from nacre.errors import NacreError


@dataclass(frozen=True)
class Sums:
    """The sums over the pixels of each class in each step and folder: one row each.

    Attributes:
        step: R, the number of the step.
        folder: R, the number of the data folder in the step.
        channel: R, the class.
        count: R, the number of pixels, float64.
        mean: R,D, the mean of their features, float64.
        scatter: R,D(D+1)/2, the lower triangle of their scatter, in float32: as the mean is
            subtracted, rounding is relative to the spread of the class.
    """

    step: Tensor
    folder: Tensor
    channel: Tensor
    count: Tensor
    mean: Tensor
    scatter: Tensor

    def __post_init__(self) -> None:
        """Refuse tensors that do not match, as they may come from an untrusted file."""
        rows, features = self.mean.shape if self.mean.ndim == 2 else (-1, 0)
        shapes = {name: [rows] for name in ("step", "folder", "channel", "count")}
        shapes["scatter"] = [rows, features * (features + 1) // 2]
        for name, shape in shapes.items():
            if list(getattr(self, name).shape) != shape:
                raise NacreError(
                    f"the sums do not match: {name} has the wrong size; a damaged file?"
                )
        numbers = (self.step, self.folder, self.channel)
        values = (self.count, self.mean, self.scatter)
        if any(x.is_floating_point() for x in numbers) or not all(
            x.is_floating_point() for x in values
        ):
            raise NacreError("the sums do not match: a column has the wrong type; a damaged file?")
        if any(min(x.tolist(), default=0) < 0 for x in numbers):
            raise NacreError("a step, folder or channel of the sums is below 0; a damaged file?")
        if bool((self.count <= 0).any()):
            raise NacreError("a row of the sums has no pixel; a damaged file?")

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.step)

    @property
    def features(self) -> int:
        """The number of features, D."""
        return self.mean.shape[1]

    def tensors(self) -> dict[str, Tensor]:
        """Return the columns by name."""
        return dict(self.__dict__)

    def keep(self, wanted: Tensor) -> "Sums":
        """Return the rows where `wanted` R is True."""
        return Sums(**{name: column[wanted] for name, column in self.tensors().items()})


def join(parts: Iterable[Sums]) -> Sums:
    """Return the rows of several sums, concatenated."""
    columns = [part.tensors() for part in parts]
    return Sums(**{name: torch.cat([column[name] for column in columns]) for name in columns[0]})


def from_products(step: int, products: Mapping[int, Tensor], folder: int = 0) -> Sums:
    """Return the rows of a step and folder from the products of `PixelSums`.

    Raises:
        NacreError: No pixel was counted.
    """
    products = {c: value for c, value in sorted(products.items()) if float(value[-1, -1]) > 0}
    if not products:
        raise NacreError("the images of the step have no labeled pixel; check the masks")
    counts, means, scatters = [], [], []
    for product in products.values():
        count, total = product[-1, -1], product[:-1, -1]
        counts.append(count)
        means.append(total / count)
        scatters.append(_pack(product[:-1, :-1] - total[:, None] * (total / count)))
    device = counts[0].device
    return Sums(
        torch.full((len(products),), step, device=device),
        torch.full((len(products),), folder, device=device),
        torch.tensor(list(products), device=device),
        torch.stack(counts),
        torch.stack(means),
        torch.stack(scatters),
    )


@dataclass(frozen=True)
class LinearHead:
    """A head with the scores V (x - mean) / std + bias.

    Attributes:
        mean: D.
        std: D.
        weight: K,D.
        bias: K.
    """

    mean: Tensor
    std: Tensor
    weight: Tensor
    bias: Tensor


def solve(sums: Sums, num_channels: int, ridge: float) -> LinearHead:
    """Return the head of all channels, in float64."""
    assert len(sums), "a head needs at least one row of sums"
    by_channel = sums.count.new_zeros(num_channels).index_add_(0, sums.channel, sums.count)
    # The weights of the channels: square roots of their numbers of pixels, with sum 1.
    balance = by_channel.sqrt() / by_channel.sqrt().sum()
    pixel_weight = balance[sums.channel] / by_channel[sums.channel]
    row_weight = pixel_weight * sums.count
    mean = row_weight @ sums.mean
    apart = sums.mean - mean
    covariance = apart.T @ (apart * row_weight[:, None])
    within = torch.zeros_like(sums.scatter[0], dtype=torch.float64)
    for weight, scatter in zip(pixel_weight.tolist(), sums.scatter, strict=True):
        within.add_(scatter, alpha=weight)
    covariance += _unpack(within, sums.features)
    variance = covariance.diagonal()
    # A constant feature gets the weight 0.
    varies = variance > 1e-12 * mean.square().clamp(min=1e-12)
    std = torch.where(varies, variance, 1.0).sqrt()
    covariance = covariance / (std[:, None] * std) * (varies[:, None] & varies)
    covariance.diagonal().copy_(torch.full_like(std, 1 + ridge))
    right = apart.new_zeros(num_channels, sums.features)
    right.index_add_(0, sums.channel, apart * row_weight[:, None])
    factor, failed = torch.linalg.cholesky_ex(covariance)
    if bool(failed):
        raise NacreError("the scatter of the sums is no covariance matrix; a damaged file?")
    weight = torch.cholesky_solve((right / std * varies).T, factor).T
    return LinearHead(mean, std, weight, balance)


def _pack(square: Tensor) -> Tensor:
    """Return the lower triangle of a symmetric matrix, row by row, in float32."""
    rows, columns = torch.tril_indices(*square.shape, device=square.device)
    return square[rows, columns].float()


def _unpack(triangle: Tensor, side: int) -> Tensor:
    """Return the symmetric matrix of a lower triangle, in float64."""
    square = torch.zeros(side, side, dtype=torch.float64, device=triangle.device)
    rows, columns = torch.tril_indices(side, side, device=triangle.device)
    square[rows, columns] = triangle.double()
    return square + square.tril(-1).T
