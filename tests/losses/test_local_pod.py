"""Local POD against its definition, window by window, and against autograd of that."""

from __future__ import annotations

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses.distillations import local_pod, merge_new_into_background, pod_loss

few = settings(max_examples=40, deadline=None)


def slow_local_pod(f: Tensor, g: Tensor, scales: tuple[int, ...] = (1, 2, 4)) -> Tensor:
    """All means over bands of windows, one by one."""
    norms = []
    for one, other in zip(f, g, strict=True):
        parts = []
        for scale in scales:
            height, width = one.shape[1] // scale, one.shape[2] // scale
            if 0 in (height, width):
                continue
            for i in range(scale):
                for j in range(scale):
                    window = (
                        slice(None),
                        slice(i * height, (i + 1) * height),
                        slice(j * width, (j + 1) * width),
                    )
                    squares = one[window] ** 2 - other[window] ** 2
                    parts += [squares.mean(2).flatten(), squares.mean(1).flatten()]
        norms.append(torch.cat(parts).norm())
    return torch.stack(norms).mean()


def features(*shape: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(seed)
    student = torch.randn(*shape, generator=g, dtype=torch.float64)
    return student.requires_grad_(), torch.randn(*shape, generator=g, dtype=torch.float64)


@few
@given(
    shape=st.tuples(*(st.integers(1, n) for n in (3, 4, 11, 11))),
    scales=st.sampled_from([(1, 2, 4), (1,), (3, 2)]),
    seed=st.integers(0, 2**31),
)
def test_equals_the_definition_in_value_and_gradient(
    shape: tuple[int, int, int, int], scales: tuple[int, ...], seed: int
) -> None:
    assume(min(scales) <= min(shape[2:]))
    f, g = features(*shape, seed=seed)
    actual, expected = local_pod(f, g, scales=scales), slow_local_pod(f, g, scales)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)
    (gradient,) = torch.autograd.grad(actual, f)
    (by_autograd,) = torch.autograd.grad(expected, f)
    torch.testing.assert_close(gradient, by_autograd, rtol=1e-10, atol=1e-12)


def test_gradient_is_right() -> None:
    f, g = features(2, 3, 4, 5)
    assert torch.autograd.gradcheck(lambda x: local_pod(x, g), f)


def test_equal_features_have_no_distance_and_no_gradient() -> None:
    f, g = features(2, 3, 4, 4)
    g[0] = f[0].detach()
    alone = local_pod(f[:1], g[:1])
    (gradient,) = torch.autograd.grad(alone, f)
    assert alone == 0
    assert (gradient == 0).all()
    (gradient,) = torch.autograd.grad(local_pod(f, g), f)
    assert (gradient[0] == 0).all()
    assert (gradient[1] != 0).any()


def test_the_sign_of_features_does_not_matter() -> None:
    f, g = features(1, 2, 4, 4)
    assert local_pod(f, -f) == 0
    assert local_pod(-f, g) == local_pod(f, g)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_the_order_in_memory_does_not_matter(layout: torch.memory_format) -> None:
    f, g = features(2, 3, 8, 6)
    laid_out = f.detach().contiguous(memory_format=layout).requires_grad_()
    torch.testing.assert_close(local_pod(laid_out, g), local_pod(f, g), rtol=1e-12, atol=0)
    (actual,) = torch.autograd.grad(local_pod(laid_out, g), laid_out)
    (expected,) = torch.autograd.grad(local_pod(f, g), f)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


def test_half_precision_does_not_overflow() -> None:
    f, g = features(2, 3, 8, 8)
    half = (300 * f.detach()).half().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        distance = local_pod(half, (300 * g).half())
    (gradient,) = torch.autograd.grad(distance, half)
    assert (distance.dtype, gradient.dtype) == (torch.float32, torch.float16)
    expected = slow_local_pod(half.double(), (300 * g).half().double())
    torch.testing.assert_close(distance.double(), expected, rtol=1e-5, atol=0)


def test_the_teacher_may_come_from_inference_mode_and_gets_no_gradient() -> None:
    f, g = features(2, 3, 4, 4)
    with torch.inference_mode():
        seen = g * 1.0
    torch.autograd.backward(local_pod(f, seen))
    g.requires_grad_()
    torch.autograd.backward(local_pod(f, g))
    assert g.grad is None


def test_layers_are_weighted_by_their_factors_and_by_the_share_of_new_channels() -> None:
    layers = [(*features(2, 3, 8, 8, seed=1), 0.01), (*features(2, 5, 4, 4, seed=2), 0.0005)]
    actual = pod_loss(layers, num_old=16, num_new=5)
    one, two = (slow_local_pod(f, g) for f, g, _ in layers)
    expected = (21 / 5) ** 0.5 * (0.01 * one + 0.0005 * two) / 2
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


def test_new_logits_are_added_to_the_backgrounds() -> None:
    logits = torch.arange(5.0).view(1, 5, 1, 1)
    assert merge_new_into_background(logits, 3).flatten().tolist() == [0 + 3 + 4, 1, 2]
    assert torch.equal(merge_new_into_background(logits, 5), logits)
