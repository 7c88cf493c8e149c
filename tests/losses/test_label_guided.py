"""Label-guided distillation against a per-pixel reference."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loss_problems import SIZES, LossProblem, Size
from nacre.losses import (
    IGNORE_INDEX,
    cross_entropy,
    distillation,
)
from nacre.losses.label_guided import (
    guided_probabilities,
    label_guided_distillation,
    nearest_targets,
)

few = settings(max_examples=30, deadline=None)


class Problem(LossProblem):
    """Targets of every channel, more of them background, some ignored."""

    def __init__(
        self, low: Size = (3, 4), high: Size = (11, 9), num_new: int = 2, **sizes: int
    ) -> None:
        channels = range(sizes.get("num_old", 3) + num_new)
        super().__init__([0, 0, *channels, IGNORE_INDEX], low, high, num_new=num_new, **sizes)

    def both(self) -> tuple[Tensor, Tensor]:
        return self.full(self.logits), self.full(self.old)


problems = st.builds(Problem, num_new=st.integers(0, 3), **SIZES)


def softmax(x: list[float]) -> list[float]:
    e = [math.exp(v - max(x)) for v in x]
    return [v / sum(e) for v in e]


def slow_pixel(
    x: list[float], z: list[float], y: int, old_weight: float, new_weight: float
) -> float:
    q, p = softmax(x), softmax(z) + [0.0] * (len(x) - len(z))
    if y >= len(z):
        p[0], p[y] = 0.0, p[0]
    loss = -sum(pc * math.log(qc) for pc, qc in zip(p, q, strict=True))
    return (new_weight if y >= len(z) else old_weight) * loss


@few
@given(a=problems, weights=st.sampled_from([(1.0, 1.0), (5.0, 0.5), (1.0, 0.0)]))
def test_equals_the_mean_over_pixels(a: Problem, weights: tuple[float, float]) -> None:
    full, old = a.both()
    num_pixels = [x.permute(0, 2, 3, 1).flatten(0, 2).tolist() for x in (full, old)]
    values = [
        slow_pixel(x, z, y, *weights)
        for x, z, y in zip(*num_pixels, a.targets.flatten().tolist(), strict=True)
        if y != IGNORE_INDEX
    ]
    old_weight, new_weight = weights
    actual = label_guided_distillation(
        full, old, a.targets, old_weight=old_weight, new_weight=new_weight
    )
    assert float(actual) == pytest.approx(sum(values) / max(len(values), 1), rel=1e-10)


def test_guided_probabilities_sum_to_one_and_never_give_a_new_pixel_to_the_background() -> None:
    a = Problem((11, 9))
    guided = guided_probabilities(a.old, a.targets, 5)
    torch.testing.assert_close(guided.sum(1), torch.ones_like(guided[:, 0]))
    is_new = (a.targets >= 3) & (a.targets != IGNORE_INDEX)
    assert (guided[:, 0][is_new] == 0).all()
    assert (guided[:, 3:].sum(1)[~is_new] == 0).all()


def test_with_a_teacher_sure_of_the_labels_it_is_the_cross_entropy() -> None:
    a = Problem((11, 9))
    old = torch.where(a.targets < 3, a.targets, 0).long()
    sure = 1e3 * torch.nn.functional.one_hot(old, 3).permute(0, 3, 1, 2).double()
    actual = label_guided_distillation(a.logits, sure, a.targets)
    torch.testing.assert_close(actual, cross_entropy(a.logits, a.targets), rtol=1e-12, atol=0)


def test_without_new_classes_it_is_the_plain_distillation_summed_over_channels() -> None:
    a = Problem((11, 9), num_new=0)
    a.targets.zero_()
    actual = label_guided_distillation(a.logits, a.old, a.targets)
    torch.testing.assert_close(actual, 3 * distillation(a.logits, a.old), rtol=1e-12, atol=0)


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    a = Problem(images=3)
    num_pixels = (a.targets != IGNORE_INDEX).sum()
    x, z = a.both()
    parts = [
        label_guided_distillation(x[s], z[s], a.targets[s], num_pixels=num_pixels)
        for s in (slice(0, 1), slice(1, 3))
    ]
    torch.testing.assert_close(parts[0] + parts[1], label_guided_distillation(x, z, a.targets))


def test_all_ignored_gives_zero() -> None:
    a = Problem((11, 9))
    a.targets.fill_(IGNORE_INDEX)
    x = a.logits.requires_grad_()
    loss = label_guided_distillation(x, a.old, a.targets)
    assert loss == 0
    assert (torch.autograd.grad(loss, x)[0] == 0).all()


def test_nearest_targets_are_those_of_pytorch() -> None:
    a = Problem(high=(37, 50))
    for size in ((3, 4), (37, 50), (1, 1), (5, 7)):
        expected = torch.nn.functional.interpolate(a.targets.unsqueeze(1), size, mode="nearest")
        assert torch.equal(nearest_targets(a.targets, size), expected.squeeze(1))
