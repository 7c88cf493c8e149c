"""The plain losses against slow, obvious per-pixel references."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from loss_problems import (
    SIZES,
    LossProblem,
    mean_over_pixels,
    pixel_bce,
    pixel_binary_kd,
    pixel_ce,
    pixel_guided,
    pixel_kd,
    pixel_mixed,
    pixel_new_bce,
    pixel_partial_ce,
    pixel_unbiased_ce,
    pixel_unbiased_kd,
)
from nacre.labels.channels import ignore_value
from nacre.losses import (
    IGNORE_INDEX,
    binary_cross_entropy,
    binary_distillation,
    binary_mixed,
    cross_entropy,
    distillation,
    partial_cross_entropy,
    unbiased_cross_entropy,
    unbiased_distillation,
    upsample,
)
from nacre.losses.distillations import label_guided_distillation

few = settings(max_examples=40, deadline=None)


class Problem(LossProblem):
    """Logits and labels of the same size."""

    def __init__(self, high: tuple[int, int] = (3, 4), **sizes: float) -> None:
        super().__init__(high, high, **sizes)  # type: ignore[arg-type]

    def hidden_map(self) -> Tensor:
        """Which channels may hide, for every pixel."""
        return self.hidden[:, :, None, None].expand(self.logits.shape)

    def may_be_map(self) -> Tensor:
        """What a pixel of each target may be, for every pixel."""
        rows = self.may_be.flatten(1)[:, :, None, None]
        return rows.expand(-1, -1, *self.logits.shape[2:])


problems = st.builds(
    Problem,
    high=st.tuples(st.integers(1, 4), st.integers(1, 5)),
    num_new=st.integers(0, 3),
    scale=st.sampled_from([0.1, 3.0, 5.0]),
    **{key: SIZES[key] for key in ("num_old", "images", "seed")},
)


def close(actual: Tensor, expected: float, tolerance: float = 1e-10) -> None:
    assert actual.shape == ()
    assert float(actual) == pytest.approx(expected, rel=tolerance, abs=tolerance)


# ---------------------------------------------------------------- all losses, one by one

Loss = Callable[..., Tensor]
SPLIT = {"first": 1, "positive_weight": 35.0}
GUIDED = {"old_weight": 5.0, "new_weight": 0.5}


# name: (loss, the same of one pixel, of which maps)
LABELED: dict[str, tuple[Loss, Callable[[Problem], float]]] = {
    "ce": (
        lambda x, a, **k: cross_entropy(x, a.targets, **k),
        lambda a: mean_over_pixels(pixel_ce, a.targets, a.logits),
    ),
    "unbiased ce": (
        lambda x, a, **k: unbiased_cross_entropy(x, a.targets, a.num_old, **k),
        lambda a: mean_over_pixels(
            partial(pixel_unbiased_ce, num_old=a.num_old), a.targets, a.logits
        ),
    ),
    "partial ce": (
        lambda x, a, **k: partial_cross_entropy(x, a.targets, a.may_be, **k),
        lambda a: mean_over_pixels(pixel_partial_ce, a.targets, a.logits, a.may_be_map()),
    ),
    "bce": (
        lambda x, a, **k: binary_cross_entropy(x, a.targets, **k),
        lambda a: mean_over_pixels(pixel_bce, a.targets, a.logits),
    ),
    "hidden bce": (
        lambda x, a, **k: binary_cross_entropy(x, a.targets, hidden=a.hidden, **k),
        lambda a: mean_over_pixels(pixel_bce, a.targets, a.logits, a.hidden_map()),
    ),
    "mixed c": (
        lambda x, a, **k: binary_mixed(x, a.targets, a.old, labeled_background=True, **k),
        lambda a: mean_over_pixels(
            partial(pixel_mixed, labeled_background=True), a.targets, a.logits, a.old
        ),
    ),
    "mixed d": (
        lambda x, a, **k: binary_mixed(x, a.targets, a.old, labeled_background=False, **k),
        lambda a: mean_over_pixels(pixel_mixed, a.targets, a.logits, a.old),
    ),
    "new bce": (
        lambda x, a, **k: binary_cross_entropy(x, a.targets, **SPLIT, **k),
        lambda a: mean_over_pixels(
            partial(pixel_new_bce, first_new=1, positive_weight=35.0), a.targets, a.logits
        ),
    ),
    "guided kd": (
        lambda x, a, **k: label_guided_distillation(x, a.old, a.targets, **GUIDED, **k),
        lambda a: mean_over_pixels(partial(pixel_guided, **GUIDED), a.targets, a.logits, a.old),
    ),
}
DISTILLING: dict[str, tuple[Loss, Callable[[Problem], float]]] = {
    "kd": (
        lambda x, a: distillation(x, a.old),
        lambda a: mean_over_pixels(pixel_kd, None, a.logits, a.old),
    ),
    "unbiased kd": (
        lambda x, a: unbiased_distillation(x, a.old),
        lambda a: mean_over_pixels(pixel_unbiased_kd, None, a.logits, a.old),
    ),
    "unbiased kd, several origins": (
        lambda x, a: unbiased_distillation(x, a.old, a.new_origins),
        lambda a: mean_over_pixels(
            partial(pixel_unbiased_kd, new_origins=a.new_origins), None, a.logits, a.old
        ),
    ),
    "binary kd": (
        lambda x, a: binary_distillation(x, a.old),
        lambda a: mean_over_pixels(pixel_binary_kd, None, a.logits, a.old),
    ),
}
EVERY = LABELED | DISTILLING
LOSSES = {name: loss for name, (loss, _) in EVERY.items()}

every_loss = pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
labeled_loss = pytest.mark.parametrize("loss", [LOSSES[name] for name in LABELED], ids=LABELED)
of_teacher = ("mixed c", "mixed d", "guided kd", *DISTILLING)


@pytest.mark.parametrize("name", EVERY)
@few
@given(a=problems)
def test_every_loss_is_the_mean_over_the_pixels(name: str, a: Problem) -> None:
    loss, expected = EVERY[name]
    close(loss(a.logits, a), expected(a), 1e-8)


@every_loss
def test_gradients_are_right(loss: Loss) -> None:
    a = Problem(seed=5)
    assert torch.autograd.gradcheck(lambda x: loss(x, a), a.logits.requires_grad_())


@every_loss
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(loss: Loss, dtype: torch.dtype) -> None:
    a = Problem(seed=3)
    a.old = (a.old.sign() * 1e4).to(dtype)
    x = (a.logits.sign() * 1e4).to(dtype).requires_grad_()
    value = loss(x, a)
    value.backward()
    assert torch.isfinite(value)
    assert x.grad is not None
    assert torch.isfinite(x.grad).all()


def test_extreme_logits_have_the_exact_loss() -> None:
    logits = torch.tensor([1e4, -1e4, 0.0]).view(1, 3, 1, 1)
    label = torch.ones(1, 1, 1, dtype=torch.long)
    assert cross_entropy(logits, label) == 2e4
    assert unbiased_cross_entropy(-logits, label * 0, num_old=1) == 2e4
    assert unbiased_cross_entropy(-logits, label * 0, num_old=2) == 0
    assert unbiased_distillation(logits, torch.tensor([-1e4, 1e4]).view(1, 2, 1, 1)) == 1e4


@every_loss
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_computed_in_float32(loss: Loss, dtype: torch.dtype) -> None:
    a = Problem(seed=8)
    a.old = a.old.to(dtype)
    x = a.logits.to(dtype)
    value = loss(x, a)
    a.old = a.old.float()
    assert value.dtype == torch.float32
    assert value == loss(x.float(), a)


@labeled_loss
def test_labels_may_have_any_integer_type(loss: Loss) -> None:
    a = Problem(seed=8)
    targets, expected = a.targets, loss(a.logits, a)
    for dtype in (torch.uint8, torch.int16, torch.int32):
        a.targets = targets.to(dtype)
        a.targets[targets == IGNORE_INDEX] = ignore_value(a.targets)
        assert loss(a.logits, a) == expected


@labeled_loss
def test_ignored_pixels_change_nothing(loss: Loss) -> None:
    a = Problem(seed=8)
    assert (a.targets == IGNORE_INDEX).any()
    before = loss(a.logits, a)
    x = a.logits.clone()
    x.movedim(1, -1)[a.targets == IGNORE_INDEX] = 50.0
    x.requires_grad_()
    after = loss(x, a)
    after.backward()
    assert x.grad is not None
    close(after.detach(), float(before), 1e-12)
    assert (x.grad.movedim(1, -1)[a.targets == IGNORE_INDEX] == 0).all()


@pytest.mark.parametrize("name", [name for name in LABELED if name != "guided kd"])
def test_another_value_can_be_the_ignored_one(name: str) -> None:
    a, loss = Problem(seed=8), LOSSES[name]
    expected = loss(a.logits, a)
    a.targets = torch.where(a.targets == IGNORE_INDEX, -1, a.targets.long())
    assert loss(a.logits, a, ignore_index=-1) == expected


@labeled_loss
@pytest.mark.parametrize("num_pixels", [None, 0, 7.5])
def test_all_ignored_gives_zero_and_no_gradient(loss: Loss, num_pixels: float | None) -> None:
    a = Problem(seed=8)
    a.targets = torch.full_like(a.targets, IGNORE_INDEX)
    x = a.logits.requires_grad_()
    value = loss(x, a, num_pixels=num_pixels)
    value.backward()
    assert value == 0
    assert x.grad is not None
    assert (x.grad == 0).all()


@labeled_loss
@pytest.mark.parametrize("as_tensor", [False, True])
def test_parts_of_a_batch_add_up_to_the_whole(loss: Loss, as_tensor: bool) -> None:
    whole = Problem(images=5)
    count = (whole.targets != IGNORE_INDEX).sum()
    num_pixels = count if as_tensor else float(count)
    parts = []
    for rows in (slice(0, 1), slice(1, 5)):
        part = Problem()
        part.old, part.targets, part.hidden, part.may_be = (
            one[rows] for one in (whole.old, whole.targets, whole.hidden, whole.may_be)
        )
        parts.append(loss(whole.logits[rows], part, num_pixels=num_pixels))
    assert float(sum(parts)) == pytest.approx(float(loss(whole.logits, whole)), rel=1e-12)


@pytest.mark.parametrize("name", of_teacher)
def test_no_gradient_reaches_the_teacher(name: str) -> None:
    a = Problem(seed=8)
    a.old.requires_grad_()
    LOSSES[name](a.logits.requires_grad_(), a).backward()
    assert a.old.grad is None


# ---------------------------------------------------------------- some of the channels


@few
@given(
    first=st.integers(0, 4),
    positive_weight=st.sampled_from([1.0, 2.0, 35.0]),
    seed=st.integers(0, 99),
)
def test_what_background_hides_is_left_out_and_nothing_else(
    first: int, positive_weight: float, seed: int
) -> None:
    a = Problem(seed=seed)
    x, hidden = a.logits[:, first:], a.hidden[:, first:]
    num_background = max(1, min(first, 2))
    actual = binary_cross_entropy(
        x,
        a.targets,
        first=first,
        hidden=hidden,
        positive_weight=positive_weight,
        num_background=num_background,
    )

    def pixel(x: list[float], y: int, hides: list[float]) -> float:
        is_background = y < num_background
        return sum(
            pixel_new_bce([v], y - c, first, positive_weight)
            for c, v in enumerate(x)
            if not (hides[c] and is_background and y != c + first)
        )

    hidden_map = hidden[:, :, None, None].expand_as(x)
    close(actual, mean_over_pixels(pixel, a.targets, x, hidden_map), 1e-9)


@pytest.mark.parametrize("name", ["ce", "unbiased ce", "partial ce"])
def test_each_image_has_its_weight(name: str) -> None:
    a = Problem(images=3)
    weights = torch.tensor([0.0, 0.3, 2.0])
    found = LOSSES[name](a.logits, a, weights=weights, num_pixels=100)
    parts = []
    for n in range(3):
        one = Problem()
        one.targets, one.may_be = a.targets[n : n + 1], a.may_be[n : n + 1]
        parts.append(LOSSES[name](a.logits[n : n + 1], one, num_pixels=100))
    torch.testing.assert_close(found, (torch.stack(parts) * weights).sum(), rtol=1e-12, atol=0)


# ---------------------------------------------------------------- upsampling


def test_upsample_keeps_pixel_centres_in_place() -> None:
    row = torch.tensor([0.0, 4.0]).view(1, 1, 1, 2)
    assert upsample(row, (1, 4)).flatten().tolist() == [0.0, 1.0, 3.0, 4.0]
