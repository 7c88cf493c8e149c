"""The DeepLabv3 head: its sum, its pooling in training and at test time."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.errors import NacreError
from nacre.models.head import DeepLabHead, default_atrous_rates


def features(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def head(window: int | None = 4) -> DeepLabHead:
    torch.manual_seed(0)
    return DeepLabHead(6, width=3, atrous_rates=(1, 2, 3), window=window)


def by_hand(net: DeepLabHead, x: Tensor, pooled: Tensor) -> Tensor:
    """The head in eval with fresh norms, which divide by sqrt(1 + eps) alone."""

    def act(y: Tensor) -> Tensor:
        return F.leaky_relu(y / (1 + 1e-5) ** 0.5, 0.01)

    weights = list(net.branches.parameters())
    branches = [F.conv2d(x, weights[0])]
    branches += [F.conv2d(x, weights[d], padding=d, dilation=d) for d in (1, 2, 3)]
    y = F.conv2d(act(torch.cat(branches, 1)), net.reduce.weight)
    z = F.conv2d(act(F.conv2d(pooled, net.pooled.weight)), net.pooled_reduce.weight)
    return act(y + z)


def test_sum_of_branches_and_pooled_branch() -> None:
    net, x = head(window=None).eval(), features(2, 6, 5, 7)
    torch.testing.assert_close(net(x), by_hand(net, x, x.mean((2, 3), keepdim=True)))


def test_window_around_each_feature_of_a_large_image() -> None:
    net, x = head(window=4).eval(), features(1, 6, 7, 9)
    rows, columns = (range(7), range(9))
    means = torch.empty(1, 6, 7, 9)
    for row in rows:
        for column in columns:
            # windows begin one feature before theirs, and stay inside the image
            top, left = min(max(row - 1, 0), 7 - 4), min(max(column - 1, 0), 9 - 4)
            means[..., row, column] = x[..., top : top + 4, left : left + 4].mean((2, 3))
    torch.testing.assert_close(net(x), by_hand(net, x, means))


@pytest.mark.parametrize("size", [(4, 4), (3, 2)])
def test_global_mean_when_not_larger_than_the_window(size: tuple[int, int]) -> None:
    net, x = head(window=4).eval(), features(2, 6, *size)
    torch.testing.assert_close(net(x), by_hand(net, x, x.mean((2, 3), keepdim=True)))


def test_global_mean_in_training_whatever_the_window() -> None:
    x = features(2, 6, 9, 9)
    torch.testing.assert_close(head(window=4)(x), head(window=None)(x))


def test_training_with_one_image_says_what_is_needed() -> None:
    with pytest.raises(NacreError, match=r"one picture at a time .* train\.micro_batch"):
        head()(features(1, 6, 5, 5))


def test_dilations_reach_equally_far_at_every_stride() -> None:
    assert default_atrous_rates(16) == (6, 12, 18)
    assert default_atrous_rates(8) == (12, 24, 36)
    assert default_atrous_rates(32) == (3, 6, 9)


@pytest.mark.parametrize("window", [1, 4, 5, 8])
@pytest.mark.parametrize("size", [(1, 1), (3, 9), (4, 5), (8, 8), (9, 20)])
def test_pooling_for_all_sizes_is_pooling(window: int, size: tuple[int, int]) -> None:
    head = DeepLabHead(6, width=4, window=window).eval()
    x = torch.randn(2, 6, *size)
    wanted = head.pool(x).expand_as(x)
    head.pool.any_size = True
    assert torch.allclose(head.pool(x), wanted, atol=1e-6)
