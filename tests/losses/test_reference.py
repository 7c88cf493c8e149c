"""The plain losses against slow, obvious per-pixel references."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses import (
    IGNORE_INDEX,
    binary_cross_entropy,
    binary_distillation,
    binary_mixed,
    cross_entropy,
    distillation,
    unbiased_cross_entropy,
    unbiased_distillation,
    upsample,
)
from nacre.scenarios.classes import ignore_value

few = settings(max_examples=40, deadline=None)


# ---------------------------------------------------------------- per-pixel references


def softmax(x: list[float]) -> list[float]:
    top = max(x)
    e = [math.exp(v - top) for v in x]
    return [v / sum(e) for v in e]


def sigmoid(v: float) -> float:
    return 1 / (1 + math.exp(-v))


def binary(target: float, v: float) -> float:
    return -target * math.log(sigmoid(v)) - (1 - target) * math.log(1 - sigmoid(v))


def pixel_ce(x: list[float], y: int) -> float:
    return -math.log(softmax(x)[y])


def pixel_unbiased_ce(x: list[float], y: int, num_old: int) -> float:
    q = softmax(x)
    return -math.log(sum(q[:num_old]) if y == 0 else q[y])


def pixel_kd(x: list[float], old: list[float]) -> float:
    p, q = softmax(old), softmax(x[: len(old)])
    return -sum(pc * math.log(qc) for pc, qc in zip(p, q, strict=True)) / len(old)


def pixel_unbiased_kd(x: list[float], old: list[float]) -> float:
    num_old, p, q = len(old), softmax(old), softmax(x)
    hat = [q[0] + sum(q[num_old:]), *q[1:num_old]]
    return -sum(pc * math.log(qc) for pc, qc in zip(p, hat, strict=True)) / num_old


def pixel_bce(x: list[float], y: int) -> float:
    return sum(binary(float(c == y), v) for c, v in enumerate(x))


def pixel_hidden_bce(x: list[float], y: int, hidden: list[float]) -> float:
    terms = [binary(float(c == y), v) for c, v in enumerate(x)]
    if y == 0:
        terms = [term for c, term in enumerate(terms) if c == 0 or not hidden[c]]
    return sum(terms)


def pixel_binary_kd(x: list[float], old: list[float]) -> float:
    return sum(binary(sigmoid(o), v) for o, v in zip(old, x, strict=False))


def pixel_mixed(x: list[float], y: int, old: list[float], labeled_background: bool) -> float:
    total = 0.0
    for c, v in enumerate(x):
        from_teacher = c < len(old) and not (c == 0 and labeled_background)
        total += binary(sigmoid(old[c]) if from_teacher else float(c == y), v)
    return total


def mean_over_pixels(
    per_pixel: Callable[..., float], targets: Tensor | None, *maps: Tensor
) -> float:
    """Mean of a per-pixel function over all pixels, or over those that are not ignored."""
    values = []
    n, _, h, w = maps[0].shape
    for i in range(n):
        for r in range(h):
            for c in range(w):
                vectors = [m[i, :, r, c].tolist() for m in maps]
                if targets is None:
                    values.append(per_pixel(*vectors))
                elif targets[i, r, c] != IGNORE_INDEX:
                    values.append(per_pixel(vectors[0], int(targets[i, r, c]), *vectors[1:]))
    return sum(values) / len(values) if values else 0.0


# ---------------------------------------------------------------- random problems


class Problem:
    """Logits of student and teacher and labels with ignored pixels among them."""

    def __init__(self, seed: int, num_old: int = 3, new: int = 2, scale: float = 3.0) -> None:
        g = torch.Generator().manual_seed(seed)

        def pick(low: int, high: int) -> int:
            return int(torch.randint(low, high, (), generator=g))

        shape = (pick(1, 3), pick(1, 4), pick(1, 5))
        self.num_old = num_old
        self.logits = self._normal(g, shape, num_old + new) * scale
        self.old = self._normal(g, shape, num_old) * scale
        values = torch.tensor([*range(num_old + new), IGNORE_INDEX])
        self.targets = values[torch.randint(0, len(values), shape, generator=g)]
        self.hidden = torch.rand(shape[0], num_old + new, generator=g) < 0.5

    @staticmethod
    def _normal(g: torch.Generator, shape: tuple[int, int, int], channels: int) -> Tensor:
        n, h, w = shape
        return torch.randn(n, channels, h, w, generator=g, dtype=torch.float64)


problems = st.builds(
    Problem,
    seed=st.integers(0, 2**31),
    num_old=st.integers(1, 4),
    new=st.integers(0, 3),
    scale=st.sampled_from([0.1, 3.0, 10.0]),
)


def close(actual: Tensor, expected: float, tolerance: float = 1e-10) -> None:
    assert actual.shape == ()
    assert float(actual) == pytest.approx(expected, rel=tolerance, abs=tolerance)


# ---------------------------------------------------------------- values


@few
@given(problems)
def test_cross_entropy_equals_reference(a: Problem) -> None:
    close(cross_entropy(a.logits, a.targets), mean_over_pixels(pixel_ce, a.targets, a.logits))


@few
@given(problems)
def test_unbiased_cross_entropy_equals_reference(a: Problem) -> None:
    expected = mean_over_pixels(
        lambda x, y: pixel_unbiased_ce(x, y, a.num_old), a.targets, a.logits
    )
    close(unbiased_cross_entropy(a.logits, a.targets, a.num_old), expected)


@few
@given(problems)
def test_hidden_cross_entropy_equals_reference(a: Problem) -> None:
    def hidden_ce(x: list[float], y: int, hidden: list[float]) -> float:
        q = softmax(x)
        may_be = q[0] + sum(qc for qc, h in zip(q[1:], hidden[1:], strict=True) if h)
        return -math.log(may_be if y == 0 else q[y])

    shape = (*a.hidden.shape, *a.logits.shape[2:])
    hidden = a.hidden[:, :, None, None].expand(shape)
    expected = mean_over_pixels(hidden_ce, a.targets, a.logits, hidden)
    close(unbiased_cross_entropy(a.logits, a.targets, 1, hidden=a.hidden), expected)


@few
@given(problems)
def test_distillation_equals_reference(a: Problem) -> None:
    close(distillation(a.logits, a.old), mean_over_pixels(pixel_kd, None, a.logits, a.old))


@few
@given(problems)
def test_unbiased_distillation_equals_reference(a: Problem) -> None:
    expected = mean_over_pixels(pixel_unbiased_kd, None, a.logits, a.old)
    close(unbiased_distillation(a.logits, a.old), expected)


@few
@given(problems)
def test_binary_losses_equal_reference(a: Problem) -> None:
    x, old = a.logits.clamp(-15, 15), a.old.clamp(-15, 15)
    close(binary_cross_entropy(x, a.targets), mean_over_pixels(pixel_bce, a.targets, x), 1e-8)
    close(binary_distillation(x, old), mean_over_pixels(pixel_binary_kd, None, x, old), 1e-8)


@few
@given(problems)
def test_what_background_hides_is_left_out_of_the_binary_cross_entropy(a: Problem) -> None:
    x = a.logits.clamp(-15, 15)
    hidden = a.hidden[:, :, None, None].expand(x.shape)
    expected = mean_over_pixels(pixel_hidden_bce, a.targets, x, hidden)
    close(binary_cross_entropy(x, a.targets, hidden=a.hidden), expected, 1e-8)


@few
@given(problems, st.booleans())
def test_binary_mixed_equals_reference(a: Problem, labeled_background: bool) -> None:
    x, old = a.logits.clamp(-15, 15), a.old.clamp(-15, 15)
    expected = mean_over_pixels(
        lambda x, y, old: pixel_mixed(x, y, old, labeled_background), a.targets, x, old
    )
    actual = binary_mixed(x, a.targets, old, labeled_background=labeled_background)
    close(actual, expected, 1e-8)


# ---------------------------------------------------------------- all losses, one by one

Loss = Callable[[Tensor, "Problem"], Tensor]

LABELED: dict[str, Callable[..., Tensor]] = {
    "ce": lambda x, a, **k: cross_entropy(x, a.targets, **k),
    "unbiased ce": lambda x, a, **k: unbiased_cross_entropy(x, a.targets, a.num_old, **k),
    "hidden ce": lambda x, a, **k: unbiased_cross_entropy(x, a.targets, 1, hidden=a.hidden, **k),
    "bce": lambda x, a, **k: binary_cross_entropy(x, a.targets, **k),
    "hidden bce": lambda x, a, **k: binary_cross_entropy(x, a.targets, hidden=a.hidden, **k),
    "mixed c": lambda x, a, **k: binary_mixed(x, a.targets, a.old, labeled_background=True, **k),
    "mixed d": lambda x, a, **k: binary_mixed(x, a.targets, a.old, labeled_background=False, **k),
}
DISTILLING: dict[str, Loss] = {
    "kd": lambda x, a: distillation(x, a.old),
    "unbiased kd": lambda x, a: unbiased_distillation(x, a.old),
    "binary kd": lambda x, a: binary_distillation(x, a.old),
}
EVERY: dict[str, Callable[..., Tensor]] = LABELED | DISTILLING

every_loss = pytest.mark.parametrize("loss", EVERY.values(), ids=EVERY.keys())
labeled_loss = pytest.mark.parametrize("loss", LABELED.values(), ids=LABELED.keys())
distilling_loss = pytest.mark.parametrize("loss", DISTILLING.values(), ids=DISTILLING.keys())


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


@labeled_loss
def test_another_value_can_be_the_ignored_one(loss: Callable[..., Tensor]) -> None:
    a = Problem(seed=8)
    expected = loss(a.logits, a)
    a.targets = torch.where(a.targets == IGNORE_INDEX, -1, a.targets)
    assert loss(a.logits, a, ignore_index=-1) == expected


@labeled_loss
@pytest.mark.parametrize("num_pixels", [None, 0, 7.5])
def test_all_ignored_gives_zero_and_no_gradient(
    loss: Callable[..., Tensor], num_pixels: float | None
) -> None:
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
def test_parts_of_a_batch_add_up_to_the_whole(loss: Callable[..., Tensor], as_tensor: bool) -> None:
    g = torch.Generator().manual_seed(0)
    whole = Problem(seed=0)
    whole.logits = torch.randn(5, 5, 3, 4, generator=g)
    whole.old = torch.randn(5, 3, 3, 4, generator=g)
    whole.targets = torch.tensor([0, 3, 4, IGNORE_INDEX])[
        torch.randint(0, 4, (5, 3, 4), generator=g)
    ]
    count = (whole.targets != IGNORE_INDEX).sum()
    num_pixels = count if as_tensor else float(count)
    parts = []
    for rows in (slice(0, 1), slice(1, 5)):
        part = Problem(seed=0)
        part.old, part.targets = whole.old[rows], whole.targets[rows]
        parts.append(loss(whole.logits[rows], part, num_pixels=num_pixels))
    assert float(sum(parts)) == pytest.approx(float(loss(whole.logits, whole)), rel=1e-6)


@distilling_loss
def test_no_gradient_reaches_the_teacher(loss: Loss) -> None:
    a = Problem(seed=8)
    a.old.requires_grad_()
    loss(a.logits.requires_grad_(), a).backward()
    assert a.old.grad is None


# ---------------------------------------------------------------- nothing old, nothing new


@few
@given(problems)
def test_unbiased_cross_entropy_is_plain_when_nothing_is_old(a: Problem) -> None:
    plain = cross_entropy(a.logits, a.targets)
    close(unbiased_cross_entropy(a.logits, a.targets, num_old=1), float(plain), 1e-12)


@few
@given(problems)
def test_unbiased_distillation_is_plain_when_nothing_is_new(a: Problem) -> None:
    logits = a.logits[:, : a.num_old]
    close(unbiased_distillation(logits, a.old), float(distillation(logits, a.old)), 1e-12)


@few
@given(problems)
def test_distillations_agree_when_only_background_is_old(a: Problem) -> None:
    close(distillation(a.logits, a.old[:, :1]), 0.0, 1e-12)
    close(unbiased_distillation(a.logits, a.old[:, :1]), 0.0, 1e-12)


# ---------------------------------------------------------------- upsampling


def test_upsample_keeps_pixel_centres_in_place() -> None:
    row = torch.tensor([0.0, 4.0]).view(1, 1, 1, 2)
    assert upsample(row, (1, 4)).flatten().tolist() == [0.0, 1.0, 3.0, 4.0]


def test_upsample_returns_float32_for_half_precision() -> None:
    assert upsample(torch.zeros(1, 2, 3, 3, dtype=torch.float16), (5, 7)).dtype == torch.float32
