"""The split sigmoid losses beyond what all losses share; SSUL's unknown."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from loss_problems import SIZES, LossProblem, Size, mean_over_pixels, pixel_new_bce
from nacre.losses import IGNORE_INDEX, binary_cross_entropy
from nacre.losses.sigmoid import (
    NO_CHANNEL,
    NOT_COUNTED,
    fused_split_binary_losses,
    merge_unknown,
    new_binary_cross_entropy,
    unknown_targets,
)

few = settings(max_examples=30, deadline=None)


class Problem(LossProblem):
    """Targets of old and new classes, some of no channel, some ignored."""

    def __init__(
        self,
        low: Size = (3, 4),
        high: Size = (11, 9),
        num_new: int = 2,
        first_new: int = 4,
        **sizes: int,
    ) -> None:
        self.first_new = first_new
        values = [*range(first_new + num_new), first_new, NO_CHANNEL, IGNORE_INDEX]
        more = {"values": values, "target_dtype": torch.int64, **sizes}
        super().__init__(low, high, num_new=num_new, **more)  # type: ignore[arg-type]


problems = st.builds(Problem, num_new=st.integers(1, 3), first_new=st.integers(0, 5), **SIZES)
positive_weights = st.sampled_from([1.0, 2.0, 35.0])


@few
@given(a=problems, positive_weight=positive_weights)
def test_without_an_ignored_value_every_pixel_counts(a: Problem, positive_weight: float) -> None:
    options = {"positive_weight": positive_weight, "ignore_index": None}
    actual = new_binary_cross_entropy(a.full(a.logits), a.targets, a.first_new, **options)  # type: ignore[arg-type]

    def pixel(x: list[float], y: int) -> float:
        return pixel_new_bce(x, y, a.first_new, positive_weight)

    expected = mean_over_pixels(pixel, a.targets, a.full(a.logits), ignore_index=None)
    assert float(actual) == pytest.approx(expected, rel=1e-10)
    fused = fused_split_binary_losses(a.logits, a.targets, first_new=a.first_new, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(fused["bce"], actual, rtol=1e-10, atol=1e-12)


@few
@given(a=problems, positive_weight=positive_weights, seed=st.integers(0, 99))
def test_what_background_hides_is_left_out_and_nothing_else(
    a: Problem, positive_weight: float, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    hidden = torch.rand(a.logits.shape[:2], generator=generator) < 0.5
    num_background = max(1, min(a.first_new, 2))
    if a.first_new == 0:
        hidden[:, 0] = False  # background is a channel of its own here
    options = {"positive_weight": positive_weight, "num_background": num_background}
    x = a.logits.requires_grad_()
    actual = fused_split_binary_losses(
        x,
        a.targets,
        first_new=a.first_new,
        hidden=hidden,
        **options,  # type: ignore[arg-type]
    )["bce"]
    expected = new_binary_cross_entropy(a.full(x), a.targets, a.first_new, hidden=hidden, **options)  # type: ignore[arg-type]
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    gradients = [torch.autograd.grad(loss, x)[0] for loss in (actual, expected)]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)

    def pixel(x: list[float], y: int, hides: list[float]) -> float:
        is_background = 0 <= y < num_background
        return sum(
            pixel_new_bce([v], y - c, a.first_new, positive_weight)
            for c, v in enumerate(x)
            if not (hides[c] and is_background)
        )

    full = a.full(x)
    mean = mean_over_pixels(pixel, a.targets, full, hidden[:, :, None, None].expand_as(full))
    assert float(expected.detach()) == pytest.approx(mean, rel=1e-9)


def test_with_all_channels_new_it_is_the_binary_cross_entropy() -> None:
    a = Problem(first_new=0)
    a.targets = torch.where(a.targets == NO_CHANNEL, 0, a.targets)
    actual = fused_split_binary_losses(a.logits[:, :2], a.targets, first_new=0)["bce"]
    expected = binary_cross_entropy(a.full(a.logits[:, :2]), a.targets)
    torch.testing.assert_close(actual, expected, rtol=1e-12, atol=0)


def test_frozen_channels_may_be_left_out() -> None:
    a = Problem(first_new=3)
    x = a.logits.requires_grad_()
    whole = new_binary_cross_entropy(a.full(a.logits), a.targets, 0)
    part = fused_split_binary_losses(x[:, 3:], a.targets, first_new=3)["bce"]
    gradients = [torch.autograd.grad(loss, x)[0][:, 3:] for loss in (whole, part)]
    torch.testing.assert_close(*gradients, rtol=1e-10, atol=1e-12)


# ---------------------------------------------------------------- the unknown class


def slow_unknown(y: int, num_old: int, salient: bool) -> int:
    if y == IGNORE_INDEX:
        return NOT_COUNTED
    if y == 0:
        return 1 if salient else 0
    return NO_CHANNEL if y < num_old else 2 + y - num_old


@pytest.mark.parametrize("num_old", [1, 4])
@pytest.mark.parametrize("with_saliency", [False, True])
def test_background_becomes_unknown(num_old: int, with_saliency: bool) -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.tensor([0, *range(num_old + 2), IGNORE_INDEX], dtype=torch.uint8)
    targets = values[torch.randint(0, len(values), (2, 6, 7), generator=g)]
    salient = torch.rand(2, 6, 7, generator=g) < 0.5 if with_saliency else None
    found = unknown_targets(targets, num_old, salient=salient)
    is_salient = torch.ones_like(targets, dtype=torch.bool) if salient is None else salient
    expected = [
        slow_unknown(y, num_old, s)
        for y, s in zip(targets.flatten().tolist(), is_salient.flatten().tolist(), strict=True)
    ]
    assert found.flatten().tolist() == expected


def test_background_and_unknown_count_as_one() -> None:
    g = torch.Generator().manual_seed(0)
    logits, unknown = (torch.randn(2, c, 8, 8, generator=g).double() * 3 for c in (4, 1))
    probabilities = logits.sigmoid()
    probabilities[:, :1] += unknown.sigmoid()
    merged = merge_unknown(logits, unknown)
    sum_is_possible = probabilities[:, 0] < 1 - 1e-6
    torch.testing.assert_close(
        merged.sigmoid().amax(1)[sum_is_possible], probabilities.amax(1)[sum_is_possible]
    )
    # Beyond a sum of 1 a class wins only if it is all but sure
    sure = probabilities[:, 1:].amax(1) > 1 - 1e-6
    assert torch.equal(merged.argmax(1)[~sure], probabilities.argmax(1)[~sure])
