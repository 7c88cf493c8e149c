"""Losses from low-resolution logits, by the kernel and by strips, against upsampling first."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch import Tensor

from loss_problems import SIZES
from loss_problems import LossProblem as Problem
from nacre.losses import (
    IGNORE_INDEX,
    binary_cross_entropy,
    binary_distillation,
    binary_mixed,
    by_strips,
    cross_entropy,
    distillation,
    fused_losses,
    partial_cross_entropy,
    strips,
    unbiased_cross_entropy,
    unbiased_distillation,
)
from nacre.losses.reference import at_least_float32, pixel_count

few = settings(max_examples=25, deadline=None)


Losses = Callable[[Tensor, Problem], dict[str, Tensor]]


def fused(*problem: str, teacher: bool = True, **options: Any) -> Losses:
    """Return the fused losses with these options and what the problem says of some more."""
    return lambda x, a: fused_losses(
        x,
        a.targets,
        a.old if teacher else None,
        **{name: getattr(a, name) for name in problem},
        **options,
    )


PLAIN: dict[str, Callable[..., Tensor]] = {
    "ce": lambda x, a, **k: cross_entropy(x, a.targets, **k),
    "unbiased ce": lambda x, a, **k: unbiased_cross_entropy(x, a.targets, a.num_old, **k),
    "partial ce": lambda x, a, **k: partial_cross_entropy(x, a.targets, a.may_be, **k),
    "kd": lambda x, a: distillation(x, a.full(a.old)),
    "unbiased kd": lambda x, a: unbiased_distillation(x, a.full(a.old)),
    "split kd": lambda x, a: unbiased_distillation(x, a.full(a.old), a.new_origins),
}


def plain(ce: str = "", kd: str = "", *, weighted: bool = False) -> Losses:
    """Return losses of upsampled logits."""

    def losses(x: Tensor, a: Problem) -> dict[str, Tensor]:
        weights = {"weights": a.weights} if weighted else {}
        found = {"ce": PLAIN[ce](a.full(x), a, **weights)} if ce else {}
        return found | ({"kd": PLAIN[kd](a.full(x), a)} if kd else {})

    return losses


# of both logits, targets, what hides, and what a sum over pixels is divided by
TERMS: dict[str, Callable[..., Tensor]] = {
    "bce": lambda x, z, y, hidden, n: binary_cross_entropy(x, y, hidden=hidden, num_pixels=n),
    "new bce": lambda x, z, y, hidden, n: binary_cross_entropy(
        x[:, 1:], y, first=1, positive_weight=35.0, num_pixels=n
    ),
    "mixed": lambda x, z, y, hidden, n: binary_mixed(
        x, y, z, labeled_background=True, hidden=hidden, num_pixels=n
    ),
    "kd": lambda x, z, y, hidden, n: binary_distillation(x, z, num_pixels=n),
}


def sigmoids(*names: str, hides: bool = False, upsampled: bool = False) -> Losses:
    """Return losses of sigmoids, by strips or of upsampled logits."""

    def losses(x: Tensor, a: Problem) -> dict[str, Tensor]:
        count = pixel_count(at_least_float32(x), a.targets)
        divisors = {"kd": a.targets.numel()}

        def terms(x: Tensor, z: Tensor, y: Tensor, hidden: Tensor | None) -> dict[str, Tensor]:
            return {
                name.removeprefix("new "): TERMS[name](x, z, y, hidden, divisors.get(name, count))
                for name in names
            }

        hidden = a.hidden if hides else None
        if upsampled:
            return terms(a.full(x), a.full(a.old), a.targets, hidden)
        return by_strips(terms, x, a.old, a.targets, hidden)

    return losses


def both(*names: str, hides: bool = False) -> tuple[Losses, Losses]:
    return sigmoids(*names, hides=hides), sigmoids(*names, hides=hides, upsampled=True)


# name: (fused, plain); every loss and every combination that a method uses
CASES: dict[str, tuple[Losses, Losses]] = {
    "ft": (fused(teacher=False), plain("ce")),
    "lwf": (fused(kd="plain"), plain("ce", "kd")),
    "lwf + unbiased ce": (fused(ce="unbiased", kd="plain"), plain("unbiased ce", "kd")),
    "mib": (fused(ce="unbiased", kd="unbiased"), plain("unbiased ce", "unbiased kd")),
    "unbiased ce": (fused("num_old", teacher=False, ce="unbiased"), plain("unbiased ce")),
    "partial ce": (fused("may_be", teacher=False, ce="unbiased"), plain("partial ce")),
    "mib, several origins": (
        fused("new_origins", ce="unbiased", kd="unbiased"),
        plain("unbiased ce", "split kd"),
    ),
    "lwf + unbiased kd, several origins": (
        fused("new_origins", kd="unbiased"),
        plain("ce", "split kd"),
    ),
    "mib, partial": (
        fused("may_be", ce="unbiased", kd="unbiased"),
        plain("partial ce", "unbiased kd"),
    ),
    "lwf, partial": (fused("may_be", ce="unbiased", kd="plain"), plain("partial ce", "kd")),
    "kd": (fused(ce=None, kd="plain"), plain(kd="kd")),
    "unbiased kd": (fused(ce=None, kd="unbiased"), plain(kd="unbiased kd")),
    "plop": (fused("weights", teacher=False), plain("ce", weighted=True)),
    "plop, unbiased": (
        fused("weights", "num_old", teacher=False, ce="unbiased"),
        plain("unbiased ce", weighted=True),
    ),
    "plop, partial": (
        fused("weights", "may_be", teacher=False, ce="unbiased"),
        plain("partial ce", weighted=True),
    ),
    "bce, hidden": both("bce", hides=True),
    "lwf-mc": both("bce", "kd"),
    "lwf-mc-c, hidden": both("mixed", hides=True),
    "dkd": both("new bce", "kd"),
}

every_case = pytest.mark.parametrize(("fused", "plain"), CASES.values(), ids=CASES.keys())


def values_and_gradient(losses: Losses, a: Problem) -> tuple[dict[str, float], Tensor]:
    """All losses, and the gradient of their sum with different weights."""
    x = a.logits.clone().requires_grad_()
    result = losses(x, a)
    total = sum(weight * loss for weight, loss in zip((0.7, 13.0), result.values(), strict=False))
    assert isinstance(total, Tensor)
    total.backward()
    assert x.grad is not None
    return {name: float(loss.detach()) for name, loss in result.items()}, x.grad


def assert_same(fused: Losses, plain: Losses, a: Problem, tolerance: float) -> None:
    actual, actual_gradient = values_and_gradient(fused, a)
    expected, expected_gradient = values_and_gradient(plain, a)
    assert actual == pytest.approx(expected, rel=tolerance, abs=tolerance * 1e-2)
    assert list(actual) == list(expected)
    greatest = float(expected_gradient.abs().max())
    torch.testing.assert_close(
        actual_gradient, expected_gradient, rtol=0, atol=tolerance * max(greatest, 1e-5)
    )


# ---------------------------------------------------------------- equal to the plain functions

problems = st.builds(Problem, num_new=st.integers(0, 3), **SIZES)


@pytest.mark.parametrize("name", CASES)
@few
@given(a=problems, strip_bytes=st.sampled_from([1, 2000, 5000, 1 << 20]))
def test_equals_plain_in_float64(name: str, a: Problem, strip_bytes: int) -> None:
    assume(a.logits.shape[1] > 1 or name != "dkd")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strips, "_CPU_STRIP_BYTES", strip_bytes)
        assert_same(*CASES[name], a, 1e-10)


@every_case
@pytest.mark.parametrize(
    ("low", "high"), [((4, 4), (64, 64)), ((5, 3), (71, 50)), ((9, 9), (9, 9)), ((8, 7), (5, 3))]
)
def test_equals_plain_in_float32(
    fused: Losses, plain: Losses, low: tuple[int, int], high: tuple[int, int]
) -> None:
    a = Problem(low, high, num_old=16, num_new=5, dtype=torch.float32)
    assert_same(fused, plain, a, 1e-5)


@every_case
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits(fused: Losses, plain: Losses, dtype: torch.dtype) -> None:
    a = Problem(dtype=dtype)
    a.logits, a.old = a.logits.sign() * 1e4, a.old.sign() * 1e4
    actual, gradient = values_and_gradient(fused, a)
    expected, _ = values_and_gradient(plain, a)
    assert torch.isfinite(gradient).all()
    assert actual == pytest.approx(expected, rel=1e-5)


# ---------------------------------------------------------------- pixels


@every_case
def test_all_ignored_gives_zero(fused: Losses, plain: Losses) -> None:
    a = Problem()
    a.targets = torch.full_like(a.targets, IGNORE_INDEX)
    x = a.logits.requires_grad_()
    losses = fused(x, a)
    for name in {"ce", "bce", "mixed"} & losses.keys():
        (gradient,) = torch.autograd.grad(losses[name], x, retain_graph=True)
        assert losses[name] == 0
        assert (gradient == 0).all()


PARTS: dict[str, Callable[..., Tensor]] = {
    "ce": lambda x, y, w, n: fused_losses(x, y, num_pixels=n)["ce"],
    "weighted": lambda x, y, w, n: fused_losses(x, y, weights=w, num_pixels=n)["ce"],
}


@pytest.mark.parametrize("loss", PARTS.values(), ids=PARTS)
def test_parts_of_a_batch_add_up_to_the_whole(loss: Callable[..., Tensor]) -> None:
    a = Problem(images=5)
    num_pixels = (a.targets != IGNORE_INDEX).sum()
    parts = [
        loss(a.logits[s], a.targets[s], a.weights[s], num_pixels)
        for s in (slice(0, 1), slice(1, 5))
    ]
    whole = loss(a.logits, a.targets, a.weights, None)
    torch.testing.assert_close(parts[0] + parts[1], whole, rtol=1e-12, atol=0)


def test_another_value_can_be_the_ignored_one() -> None:
    a = Problem()
    targets = torch.where(a.targets == IGNORE_INDEX, -1, a.targets.int())
    actual = fused_losses(a.logits, targets, ignore_index=-1)
    assert actual == fused_losses(a.logits, a.targets)


# ---------------------------------------------------------------- how autograd sees them


@every_case
def test_each_loss_has_its_own_gradient(fused: Losses, plain: Losses) -> None:
    a = Problem()
    x = a.logits.requires_grad_()
    for name in fused(x, a):
        (actual,) = torch.autograd.grad(fused(x, a)[name], x)
        (expected,) = torch.autograd.grad(plain(x, a)[name], x)
        torch.testing.assert_close(actual, expected, rtol=0, atol=1e-12)


def test_no_gradient_reaches_the_teacher() -> None:
    a = Problem()
    a.old.requires_grad_()
    sum(CASES["mib"][0](a.logits.requires_grad_(), a).values()).backward()  # type: ignore[union-attr]
    assert a.old.grad is None


@every_case
def test_without_gradients_the_values_are_the_same(fused: Losses, plain: Losses) -> None:
    a = Problem()
    with torch.no_grad():
        values = fused(a.logits, a)
    assert not any(value.requires_grad for value in values.values())
    assert values == fused(a.logits.requires_grad_(), a)


@every_case
def test_arguments_are_left_alone(fused: Losses, plain: Losses) -> None:
    a, same = Problem((4, 4), (4, 4)), Problem((4, 4), (4, 4))
    values_and_gradient(fused, a)
    assert torch.equal(a.logits, same.logits)
    assert torch.equal(a.old, same.old)
    assert torch.equal(a.targets, same.targets)


def test_second_derivative_is_refused() -> None:
    a = Problem()
    x = a.logits.requires_grad_()
    loss = fused_losses(x, a.targets)["ce"]
    with pytest.raises(
        RuntimeError, match=r"cannot be differentiated twice.*nacre\.losses\.reference"
    ):
        torch.autograd.grad(loss, x, create_graph=True)


@every_case
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_logits_are_computed_in_float32(
    fused: Losses, plain: Losses, dtype: torch.dtype
) -> None:
    a = Problem(dtype=dtype)
    values, gradient = values_and_gradient(fused, a)
    assert gradient.dtype == dtype
    a.logits, a.old = a.logits.float(), a.old.float()
    assert values == values_and_gradient(fused, a)[0]


@every_case
def test_autocast_changes_nothing(fused: Losses, plain: Losses) -> None:
    a = Problem(dtype=torch.float32)
    values, gradient = values_and_gradient(fused, a)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        values_in_autocast, gradient_in_autocast = values_and_gradient(fused, a)
    assert values_in_autocast == values
    assert torch.equal(gradient_in_autocast, gradient)


@every_case
def test_teacher_may_come_from_inference_mode(fused: Losses, plain: Losses) -> None:
    a = Problem()
    with torch.inference_mode():
        a.old = a.old * 1.0
    assert a.old.is_inference()
    assert_same(fused, plain, a, 1e-10)


def test_teacher_may_have_another_resolution() -> None:
    a = Problem()
    a.old = torch.randn(2, 3, 5, 2, dtype=torch.float64)
    assert_same(*CASES["mib"], a, 1e-10)


def test_hidden_channels_far_below_the_others_are_still_told_apart() -> None:
    # The channel that hides lies 400 below another one: its share would vanish beside it.
    x = torch.tensor([0.0, -400.0, 0.0]).view(1, 3, 1, 1) + torch.tensor([-500.0, 0, 0]).view(
        1, 3, 1, 1
    )
    x.requires_grad_()
    rows = torch.tensor([[[True, True, False], [False, True, False], [False, False, True]]])
    loss = fused_losses(x, torch.zeros(1, 1, 1, dtype=torch.uint8), ce="unbiased", may_be=rows)
    assert float(loss["ce"].detach()) == pytest.approx(400, rel=1e-5)
    (gradient,) = torch.autograd.grad(loss["ce"], x)
    torch.testing.assert_close(gradient.flatten(), torch.tensor([0.0, -1.0, 1.0]))
