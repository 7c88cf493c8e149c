"""The split sigmoid losses against per-pixel references, fused against plain; SSUL's unknown."""

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
    binary_cross_entropy,
    binary_distillation,
)
from nacre.losses.sigmoid import (
    NO_CHANNEL,
    NOT_COUNTED,
    fused_split_binary_losses,
    merge_unknown,
    new_binary_cross_entropy,
    unknown_targets,
)
from nacre.ops import strip_upsample as strips

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
        super().__init__(values, low, high, num_new=num_new, dtype=torch.int64, **sizes)


problems = st.builds(Problem, num_new=st.integers(1, 3), first_new=st.integers(0, 5), **SIZES)
positive_weights = st.sampled_from([1.0, 2.0, 35.0])
ignored_or_not = st.sampled_from([IGNORE_INDEX, None])


def slow_bce(x: list[float], y: int, first_new: int, positive_weight: float) -> float:
    total = 0.0
    for c, v in enumerate(x):
        s = 1 / (1 + math.exp(-v))
        total -= positive_weight * math.log(s) if c + first_new == y else math.log(1 - s)
    return total


@few
@given(a=problems, positive_weight=positive_weights, ignore_index=ignored_or_not)
def test_equals_the_mean_over_pixels(
    a: Problem, positive_weight: float, ignore_index: int | None
) -> None:
    num_pixels = a.full(a.logits).permute(0, 2, 3, 1).flatten(0, 2).tolist()
    values = [
        slow_bce(x, y, a.first_new, positive_weight)
        for x, y in zip(num_pixels, a.targets.flatten().tolist(), strict=True)
        if y != ignore_index
    ]
    actual = new_binary_cross_entropy(
        a.full(a.logits),
        a.targets,
        a.first_new,
        positive_weight=positive_weight,
        ignore_index=ignore_index,
    )
    assert float(actual) == pytest.approx(sum(values) / max(len(values), 1), rel=1e-10)


@few
@given(
    a=problems,
    positive_weight=positive_weights,
    ignore_index=ignored_or_not,
    distil=st.booleans(),
    strip_bytes=st.sampled_from([1, 2000, 1 << 20]),
)
def test_the_fused_ones_equal_the_plain_ones(
    a: Problem, positive_weight: float, ignore_index: int | None, distil: bool, strip_bytes: int
) -> None:
    x = a.logits.requires_grad_()
    full, taught = a.full(a.logits), a.num_old if distil else 0
    options = {"positive_weight": positive_weight, "ignore_index": ignore_index}
    expected = {
        "bce": new_binary_cross_entropy(full[:, taught:], a.targets, a.first_new, **options)  # type: ignore[arg-type]
    }
    if distil:
        expected["kd"] = binary_distillation(full, a.full(a.old))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strips, "_CPU_STRIP_BYTES", strip_bytes)
        actual = fused_split_binary_losses(
            x,
            a.targets,
            a.old if distil else None,
            first_new=a.first_new,
            **options,  # type: ignore[arg-type]
        )
    assert list(actual) == list(expected)
    torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-12)
    gradients = [
        torch.autograd.grad(0.7 * losses["bce"] + 5 * losses.get("kd", 0), x)[0]
        for losses in (actual, expected)
    ]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-11)


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

    whole = zip(
        a.full(x).permute(0, 2, 3, 1).flatten(1, 2).tolist(),
        a.targets.flatten(1).tolist(),
        hidden.tolist(),
        strict=True,
    )
    values = [
        sum(
            slow_bce([v], y - c, a.first_new, positive_weight)
            for c, v in enumerate(pixel)
            if not (hides[c] and 0 <= y < num_background)
        )
        for pixels, ys, hides in whole
        for pixel, y in zip(pixels, ys, strict=True)
        if y != IGNORE_INDEX
    ]
    mean = sum(values) / max(len(values), 1)
    assert float(expected.detach()) == pytest.approx(mean, rel=1e-9)


def test_gradients_are_right() -> None:
    a = Problem((2, 2), (4, 3), images=1)

    def losses(x: Tensor) -> Tensor:
        found = fused_split_binary_losses(x, a.targets, a.old, first_new=4, positive_weight=4.0)
        return torch.stack(list(found.values()))

    assert torch.autograd.gradcheck(losses, a.logits.requires_grad_(), check_batched_grad=False)


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


def test_parts_of_a_batch_add_up_to_the_whole() -> None:
    a = Problem(images=3)
    num_pixels = (a.targets != IGNORE_INDEX).sum()
    parts = [
        fused_split_binary_losses(a.logits[s], a.targets[s], first_new=4, num_pixels=num_pixels)[
            "bce"
        ]
        for s in (slice(0, 1), slice(1, 3))
    ]
    whole = fused_split_binary_losses(a.logits, a.targets, first_new=4)["bce"]
    torch.testing.assert_close(parts[0] + parts[1], whole)


def test_all_ignored_gives_zero_and_extreme_logits_stay_finite() -> None:
    a = Problem()
    x = (a.logits.sign() * 1e4).requires_grad_()
    losses = fused_split_binary_losses(
        x, a.targets, a.old.sign() * 1e4, first_new=4, positive_weight=35.0
    )
    (gradient,) = torch.autograd.grad(losses["bce"] + losses["kd"], x)
    assert torch.isfinite(gradient).all()
    assert torch.isfinite(torch.stack(list(losses.values()))).all()
    ignored = torch.full_like(a.targets, IGNORE_INDEX)
    assert fused_split_binary_losses(x, ignored, first_new=4)["bce"] == 0


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
