"""Local POD, decomposed and label-guided distillation against slow definitions."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses.distillations import (
    auxiliary_loss,
    decomposed_distillation,
    local_pod,
    merge_new_into_background,
    pod_loss,
)

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


class Problem:
    """Features and rows of student and teacher."""

    def __init__(
        self, images: int = 2, depth: int = 5, classes: int = 3, side: int = 3, seed: int = 0
    ) -> None:
        g = torch.Generator().manual_seed(seed)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=g, dtype=torch.float64)

        self.features, self.old_features = (normal(images, depth, side, side + 1) for _ in "ab")
        self.weight, self.old_weight = (normal(classes, depth) for _ in "ab")

    def arguments(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        return self.features, self.weight, self.old_features, self.old_weight


problems = st.builds(
    Problem,
    images=st.integers(1, 2),
    depth=st.integers(1, 6),
    classes=st.integers(1, 3),
    side=st.integers(1, 3),
    seed=st.integers(0, 2**31),
)


def slow_parts(f: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    products = f.unsqueeze(1) * w[:, :, None, None]
    return products.clamp(min=0).sum(2), products.clamp(max=0).sum(2)


def slow_distillation(x: Tensor, z: Tensor) -> Tensor:
    total = x.new_zeros(())
    num_pixels = x.shape[0] * x.shape[2] * x.shape[3]
    for v, teacher in zip(x.flatten(), z.flatten(), strict=True):
        t = 1 / (1 + math.exp(-float(teacher)))
        s = 1 / (1 + torch.exp(-v))
        total = total - t * s.log() - (1 - t) * (1 - s).log()
    return total / num_pixels


@few
@given(a=problems)
def test_the_distillation_equals_the_sum_over_classes_of_means_over_pixels(a: Problem) -> None:
    inputs = (a.features.requires_grad_(), a.weight.requires_grad_())
    actual = decomposed_distillation(*a.arguments())
    student, teacher = slow_parts(*inputs), slow_parts(a.old_features, a.old_weight)
    expected = tuple(slow_distillation(x, z) for x, z in zip(student, teacher, strict=True))
    torch.testing.assert_close(actual, expected)
    for one, other in zip(actual, expected, strict=True):
        gradients = (torch.autograd.grad(loss, inputs, retain_graph=True) for loss in (one, other))
        torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_no_gradient_reaches_the_decomposed_teacher() -> None:
    a = Problem()
    a.features.requires_grad_()
    a.old_weight.requires_grad_()
    with torch.inference_mode():
        a.old_features = a.old_features * 1.0
    sum(decomposed_distillation(*a.arguments())).backward()  # type: ignore[union-attr]
    assert a.features.grad is not None
    assert a.old_weight.grad is None


def test_half_precision_and_autocast_are_taken_to_float32() -> None:
    a = Problem()
    arguments = [x.half() for x in a.arguments()]
    with torch.autocast("cpu", dtype=torch.bfloat16):
        actual = decomposed_distillation(*arguments)
    expected = decomposed_distillation(*(x.float() for x in arguments))
    assert [float(x) for x in actual] == pytest.approx([float(x) for x in expected], rel=1e-6)


def test_the_auxiliary_loss_is_the_mean_of_softplus_over_pixels() -> None:
    logits = Problem().features[:, :1]
    full = F.interpolate(logits, size=(7, 9), mode="bilinear").flatten().tolist()
    expected = sum(math.log(1 + math.exp(v)) for v in full) / len(full)
    assert float(auxiliary_loss(logits, (7, 9))) == pytest.approx(expected, rel=1e-12)
