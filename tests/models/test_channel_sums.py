"""Sums per channel against float64, and the norms that are made of them."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from nacre.models.norm import (
    ABN,
    InPlaceABN,
    channel_affine,
    channel_statistics,
    channel_sums,
    lies_in_rows,
    per_channel,
)

LAST = torch.channels_last


def a_map(*shape: int, seed: int = 0) -> Tensor:
    """Values as they come out of an activation: many zeros, a mean that is not 0."""
    values = torch.randn(*shape, generator=torch.Generator().manual_seed(seed))
    return (2 * values + 1).relu().contiguous(memory_format=LAST)


SHAPES = [(2, 16, 256, 256), (3, 5, 61, 47), (2, 200, 33, 31), (1, 9000, 12, 12)]


@pytest.mark.parametrize("shape", SHAPES)
def test_statistics_have_the_digits_of_float64(shape: tuple[int, ...]) -> None:
    x = a_map(*shape)
    assert lies_in_rows(x)
    mean, var = channel_statistics(x)
    exact = x.double()
    torch.testing.assert_close(mean, exact.mean((0, 2, 3)), rtol=2e-6, atol=0)
    torch.testing.assert_close(var, exact.var((0, 2, 3), correction=0), rtol=2e-6, atol=0)


@pytest.mark.parametrize("shape", SHAPES)
def test_sums_of_products_have_the_digits_of_float64(shape: tuple[int, ...]) -> None:
    x, dy = a_map(*shape), a_map(*shape, seed=1) - 0.3
    mean, scale = x.mean((0, 2, 3)), x.std((0, 2, 3)).reciprocal()
    found = channel_sums(dy, x, mean, scale)
    exact = dy.double()
    xhat = (x.double() - per_channel(mean)) * per_channel(scale)
    for one, product in zip(found, (exact, exact * xhat), strict=True):
        error = (one - product.sum((0, 2, 3))).abs() / product.abs().sum((0, 2, 3))
        assert error.max() < 2e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_an_affine_map_keeps_its_layout_and_its_values(shape: tuple[int, ...]) -> None:
    x, dy = a_map(*shape), a_map(*shape, seed=1)
    shift, a, b = torch.randn(3, shape[1], generator=torch.Generator().manual_seed(2))
    found = channel_affine(shift, (a, x), (b, dy))
    assert found.is_contiguous(memory_format=LAST)
    expected = per_channel(shift) + per_channel(a) * x + per_channel(b) * dy
    torch.testing.assert_close(found, expected)


def gradients(norm: nn.Module, x: Tensor, shortcut: Tensor, dy: Tensor) -> dict[str, Tensor]:
    x, shortcut = x.clone().requires_grad_(), shortcut.clone().requires_grad_()
    y = norm(x, shortcut)
    y.backward(dy)
    assert x.grad is not None
    assert shortcut.grad is not None
    found = {"y": y.detach(), "dx": x.grad, "dshortcut": shortcut.grad}
    found |= {f"d{name}": p.grad for name, p in norm.named_parameters() if p.grad is not None}
    return found | {name: value.clone() for name, value in norm.named_buffers()}


@pytest.mark.parametrize("kind", [ABN, InPlaceABN])
def test_a_norm_in_the_fast_layout_has_the_digits_of_the_other(kind: type[ABN]) -> None:
    shape = (2, 16, 256, 256)  # torch's kernel is off by 3e-4 here
    x, shortcut, dy = a_map(*shape), a_map(*shape, seed=1), a_map(*shape, seed=2) - 0.3
    norm, exact = kind(16), kind(16).double()
    found = gradients(norm, x, shortcut, dy)
    expected = gradients(exact, x.double(), shortcut.double(), dy.double())
    for name, value in expected.items():
        error = (found[name] - value).abs().max() / value.abs().max()
        assert error < 2e-6, name
    assert found["dx"].is_contiguous(memory_format=LAST)


@pytest.mark.parametrize("kind", [ABN, InPlaceABN])
def test_a_norm_gives_the_same_bits_again(kind: type[ABN]) -> None:
    x = a_map(2, 8, 64, 64)
    one, other = (gradients(kind(8), x, x + 1, x - 0.5) for _ in range(2))
    assert all(torch.equal(one[name], other[name]) for name in one)


def test_small_and_contiguous_maps_are_left_to_torch() -> None:
    assert not lies_in_rows(a_map(2, 8, 64, 64).contiguous())
    assert not lies_in_rows(a_map(2, 8, 4, 4))
    assert not lies_in_rows(a_map(2, 8, 64, 64).double())
    assert not lies_in_rows(torch.empty(2, 8, 64, 64, device="meta").to(memory_format=LAST))
