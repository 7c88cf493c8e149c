"""The DeepLabv3 head of the paper's network.

    y = act_norm(concat of a 1x1 and three dilated 3x3 convolutions of x)
    z = 1x1(act_norm(1x1(pool(x))))
    out = act_norm(1x1(y) + z)

In training `pool` is the mean over the whole crop. At test time an image may be larger than
the crop: then it is the mean over a window of the crop's size around each feature, and what
the head sees is what it saw in training.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.models.abn import ABN, NormFactory


def default_atrous_rates(stride: int) -> tuple[int, int, int]:
    """Return 6, 12, 18 at output stride 16, and the same reach in pixels at other strides."""
    first, second, third = (max(1, reach // stride) for reach in (96, 192, 288))
    return first, second, third


class DeepLabHead(nn.Module):
    """Atrous spatial pyramid pooling, as in the paper's network.

    Args:
        in_channels: channels of the features.
        width: channels of each branch and of the output.
        atrous_rates: of the three 3x3 convolutions.
        window: features per side of the training crop; None always pools over the whole image.
        norm: makes the normalisation layers.
    """

    reads: tuple[int, ...] = ()
    """Stages of the backbone that it takes; it takes the features alone."""

    def __init__(
        self,
        in_channels: int,
        *,
        width: int = 256,
        atrous_rates: tuple[int, int, int] = (6, 12, 18),
        window: int | None = 32,
        norm: NormFactory = ABN,
    ) -> None:
        super().__init__()
        self.channels = width
        self.pool = WindowPool(window)
        self.branches = nn.ModuleList(
            [
                nn.Conv2d(in_channels, width, 1, bias=False),
                *(
                    nn.Conv2d(in_channels, width, 3, padding=d, dilation=d, bias=False)
                    for d in atrous_rates
                ),
            ]
        )
        self.branches_norm = norm(4 * width)
        self.reduce = nn.Conv2d(4 * width, width, 1, bias=False)
        self.pooled = nn.Conv2d(in_channels, width, 1, bias=False)
        self.pooled_norm = norm(width)
        self.pooled_reduce = nn.Conv2d(width, width, 1, bias=False)
        self.norm = norm(width)
        initialize_head(self)

    def forward(self, x: Tensor) -> Tensor:
        """Return features of the same size that have seen their surroundings."""
        y = self.branches_norm(torch.cat([branch(x) for branch in self.branches], dim=1))
        z = self.pooled_reduce(self.pooled_norm(self.pooled(self.pool(x))))
        out: Tensor = self.norm(self.reduce(y) + z)
        return out


class WindowPool(nn.Module):
    """The mean over a crop in training, and over a window of the crop's size around it in eval.

    Args:
        window: features per side of the training crop; None always pools over the whole image.

    Attributes:
        any_size: Pool by operations that hold for all sizes, for a graph that is traced once.
    """

    any_size = False

    def __init__(self, window: int | None) -> None:
        super().__init__()
        self.window = window

    def forward(self, x: Tensor) -> Tensor:
        """Return N,K,1,1, or N,K,h,w in eval."""
        if self.training or self.window is None:
            return x.mean((2, 3), keepdim=True)
        if self.any_size:
            return _pool_any_size(x, self.window)
        height, width = (min(self.window, size) for size in x.shape[-2:])
        pooled = F.avg_pool2d(x, (height, width), stride=1)
        # An even window has no middle: its mean stands at the feature left of and above it.
        top, left = (height - 1) // 2, (width - 1) // 2
        padding = (left, width - 1 - left, top, height - 1 - top)
        return F.pad(pooled, padding, mode="replicate")


def initialize_head(head: nn.Module) -> None:
    """Draw the weights of all convolutions of a head."""
    gain = nn.init.calculate_gain("leaky_relu", 0.01)
    for module in head.modules():
        if isinstance(module, nn.Conv2d):
            nn.init.xavier_normal_(module.weight, gain)


def _pool_any_size(x: Tensor, window: int) -> Tensor:
    """Pool as `WindowPool` does, by two products that hold for sizes not known yet.

    A graph that is traced once and used at many sizes cannot ask which is smaller, the window or
    the picture; the mean along a side is a matrix whose content says so.
    """
    rows, columns = (_window_means(size, window, x) for size in x.shape[-2:])
    return rows @ x @ columns.T


def _window_means(size: int, window: int, like: Tensor) -> Tensor:
    """Return the matrix whose rows hold 1 / width within the window around each feature."""
    places = torch.arange(size, device=like.device)
    last = places.max()
    width = (last + 1).clamp(max=window)
    starts = (places - (width - 1) // 2).clamp(min=0).minimum(last + 1 - width)
    offsets = places[None] - starts[:, None]
    return ((offsets >= 0) & (offsets < width)).to(like.dtype) / width.to(like.dtype)
