"""Upsampling by strips against PyTorch's, and its transpose against autograd."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses import strips, upsample
from nacre.losses.strips import Strip, StripGradient, StripUpsampler

shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))


@pytest.fixture(autouse=True)
def _usual_strip_size() -> Iterator[None]:
    usual = strips._CPU_STRIP_BYTES
    yield
    strips._CPU_STRIP_BYTES = usual


@settings(max_examples=80, deadline=None)
@given(
    low=shapes,
    size=shapes.map(lambda s: (s[0] * 5 - 2, s[1] * 4 - 1)),
    images=st.integers(1, 5),
    lines=st.integers(1, 60),
)
def test_lines_and_transpose_equal_pytorch(
    low: tuple[int, int], size: tuple[int, int], images: int, lines: int
) -> None:
    strips._CPU_STRIP_BYTES = lines * 3 * size[1] * 8
    torch.manual_seed(lines)
    maps = torch.randn(images, 3, *low, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(images, 3, *size, dtype=torch.float64)
    whole = upsample(maps, size)
    whole.backward(gradient)
    assert maps.grad is not None

    upsampler = StripUpsampler(maps.detach(), size)
    total = StripGradient(upsampler)
    for strip in upsampler.strips():
        torch.testing.assert_close(upsampler.lines(strip), lines_of(whole.detach(), strip))
        total.add(lines_of(gradient, strip), strip)
    torch.testing.assert_close(total.total(), maps.grad)


def lines_of(full: Tensor, strip: Strip) -> Tensor:
    """A strip of N,C,H,W as L,C,W."""
    return full[strip.images, :, strip.rows].permute(2, 0, 1, 3).flatten(0, 1).contiguous()


@pytest.mark.parametrize(("inputs", "outputs"), [(33, 512), (65, 1024), (500, 768), (512, 512)])
def test_float32_positions_are_pytorchs(inputs: int, outputs: int) -> None:
    maps = torch.randn(1, 1, inputs, 2)
    upsampler = StripUpsampler(maps, (outputs, 2))
    lines = upsampler.lines(Strip(slice(0, 1), slice(0, outputs)))
    # Older ones round a few positions otherwise.
    is_old = tuple(map(int, torch.__version__.split(".")[:2])) < (2, 13)
    wanted = upsample(maps, (outputs, 2))[0, 0]
    torch.testing.assert_close(lines[:, 0], wanted, rtol=0, atol=2e-5 if is_old else 1e-6)


@settings(max_examples=80, deadline=None)
@given(
    inputs=st.integers(1, 40),
    outputs=st.integers(1, 90),
    images=st.integers(1, 6),
    lines=st.integers(1, 300),
)
def test_strips_hold_every_row_once_and_are_no_larger_than_allowed(
    inputs: int, outputs: int, images: int, lines: int
) -> None:
    strips._CPU_STRIP_BYTES = lines * 4
    seen = torch.zeros(images, outputs, 1, dtype=torch.int64)
    for strip in StripUpsampler(torch.zeros(images, 1, inputs, 1), (outputs, 1)).strips():
        held = strip.lines(seen)
        assert 1 <= len(held) <= lines
        strip.put(held + 1, seen)
    assert (seen == 1).all()
