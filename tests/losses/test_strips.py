"""Upsampling by strips against PyTorch's, and its transpose against autograd."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nacre.losses import upsample
from nacre.losses.strips import StripGradient, StripUpsampler, rows_per_strip

shapes = st.tuples(st.integers(1, 9), st.integers(1, 9))


@settings(max_examples=60, deadline=None)
@given(low=shapes, size=shapes.map(lambda s: (s[0] * 5 - 2, s[1] * 4 - 1)), rows=st.integers(1, 50))
def test_rows_and_transpose_equal_pytorch(
    low: tuple[int, int], size: tuple[int, int], rows: int
) -> None:
    torch.manual_seed(rows)
    maps = torch.randn(2, 3, *low, dtype=torch.float64, requires_grad=True)
    gradient = torch.randn(2, 3, *size, dtype=torch.float64)
    whole = upsample(maps, size)
    whole.backward(gradient)
    assert maps.grad is not None

    upsampler = StripUpsampler(maps.detach(), size, rows)
    total = StripGradient(upsampler)
    for image in range(2):
        for span in upsampler.spans():
            strip = upsampler.rows(image, span).transpose(0, 1)
            torch.testing.assert_close(strip, whole.detach()[image, :, span])
            part = gradient[image, :, span].transpose(0, 1).contiguous()
            total.add(part, image, span)
    torch.testing.assert_close(total.total().transpose(1, 2), maps.grad)


@pytest.mark.parametrize(("inputs", "outputs"), [(33, 512), (65, 1024), (500, 768), (512, 512)])
def test_float32_positions_are_pytorchs(inputs: int, outputs: int) -> None:
    maps = torch.randn(1, 1, inputs, 2)
    upsampler = StripUpsampler(maps, (outputs, 2), outputs)
    strip = upsampler.rows(0, slice(0, outputs))
    torch.testing.assert_close(strip[:, 0], upsample(maps, (outputs, 2))[0, 0], rtol=0, atol=1e-6)


@settings(max_examples=60, deadline=None)
@given(inputs=st.integers(1, 40), outputs=st.integers(1, 90), rows=st.integers(1, 100))
def test_spans_cover_every_row_once_and_are_no_larger_than_allowed(
    inputs: int, outputs: int, rows: int
) -> None:
    spans = StripUpsampler(torch.zeros(1, 1, inputs, 1), (outputs, 1), rows).spans()
    assert [row for s in spans for row in range(s.start, s.stop)] == list(range(outputs))
    assert all(1 <= s.stop - s.start <= rows for s in spans)


@pytest.mark.parametrize(("rows", "touched"), [(5, 2), (8, 2), (16, 2), (32, 3)])
def test_strips_touch_few_input_rows(rows: int, touched: int) -> None:
    upsampler = StripUpsampler(torch.zeros(1, 1, 32, 1), (512, 1), rows)
    sources = [upsampler.weights(span)[1] for span in upsampler.spans()]
    assert max(s.stop - s.start for s in sources) == touched


def test_strips_shrink_with_the_number_of_channels_and_never_vanish() -> None:
    few_channels = rows_per_strip(torch.empty(1, 21, 8, 8), (512, 512))
    many_channels = rows_per_strip(torch.empty(1, 151, 8, 8), (512, 512))
    assert 1 < many_channels < few_channels <= 512
    assert rows_per_strip(torch.empty(1, 10**6, 1, 1), (512, 512)) == 1
    assert rows_per_strip(torch.empty(1, 2, 1, 1), (4, 4)) == 4
