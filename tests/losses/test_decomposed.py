"""Decomposed distillation against sums over features and pixels, one by one."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses.distillations import (
    auxiliary_loss,
    decomposed_distillation,
    decomposed_logits,
)
from nacre.models.classifier import copy_row

few = settings(max_examples=30, deadline=None)


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
def test_the_parts_are_what_speaks_for_a_class_and_against_it(a: Problem) -> None:
    positive, negative = decomposed_logits(a.features, a.weight)
    torch.testing.assert_close((positive, negative), slow_parts(a.features, a.weight))
    whole = F.conv2d(a.features, a.weight[:, :, None, None])
    torch.testing.assert_close(positive + negative, whole)


def test_after_a_relu_they_are_products_with_positive_and_negative_weights() -> None:
    a = Problem()
    f = a.features.relu()
    expected = tuple(
        F.conv2d(f, w[:, :, None, None]) for w in (a.weight.clamp(min=0), a.weight.clamp(max=0))
    )
    torch.testing.assert_close(decomposed_logits(f, a.weight), expected)


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


def test_the_teacher_may_come_from_inference_mode_and_gets_no_gradient() -> None:
    a = Problem()
    a.features.requires_grad_()
    a.old_weight.requires_grad_()
    with torch.inference_mode():
        a.old_features = a.old_features * 1.0
    sum(decomposed_distillation(*a.arguments())).backward()  # type: ignore[union-attr]
    assert a.features.grad is not None
    assert a.old_weight.grad is None


def test_it_is_least_where_student_and_teacher_agree() -> None:
    a = Problem()
    a.old_features, a.old_weight = a.features.clone(), a.weight.clone()
    a.features.requires_grad_()
    a.weight.requires_grad_()
    for loss in decomposed_distillation(*a.arguments()):
        gradients = torch.autograd.grad(loss, (a.features, a.weight), retain_graph=True)
        for gradient in gradients:
            torch.testing.assert_close(gradient, torch.zeros_like(gradient), rtol=0, atol=1e-12)


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


def test_new_rows_say_what_the_auxiliary_row_says() -> None:
    a = Problem()
    bias = torch.tensor([0.3], dtype=torch.float64, requires_grad=True)
    weights, biases = copy_row(a.weight[0], bias, 4)
    assert (weights.shape, biases.shape) == ((4, 5), (4,))
    logits = F.conv2d(a.features, weights[:, :, None, None], biases)
    expected = F.conv2d(a.features, a.weight[:1, :, None, None], bias.detach())
    torch.testing.assert_close(logits, expected.expand_as(logits))
    weights.zero_()
    assert (a.weight[0] != 0).all()
    assert not biases.requires_grad
