"""Pseudo-labels against per-pixel references; their thresholds against sorting."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses import IGNORE_INDEX, strips, upsample
from nacre.losses.pseudo_labels import (
    Score,
    TeacherPrediction,
    accept_by_entropy,
    acceptance_rate,
    median_thresholds,
    pseudo_targets,
    released_scores,
    released_thresholds,
    score_histogram,
    teacher_predictions,
)

few = settings(max_examples=40, deadline=None)
sides = st.tuples(st.integers(1, 5), st.integers(1, 5))


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


# ---------------------------------------------------------------- what the teacher says


def slow_score(z: list[float], score: Score) -> float:
    if score == "sigmoid":
        return 1 / (1 + math.exp(-max(z)))
    total = sum(math.exp(v) for v in z)
    p = [math.exp(v) / total for v in z]
    if score == "probability":
        return max(p)
    return -sum(v * math.log(v) for v in p) / math.log(len(z)) if len(z) > 1 else 0.0


@few
@given(
    low=sides,
    size=st.tuples(st.integers(1, 20), st.integers(1, 20)),
    channels=st.integers(1, 5),
    images=st.integers(1, 3),
    seed=st.integers(0, 2**31),
    strip_bytes=st.sampled_from([1, 2000, 1 << 20]),
    score=st.sampled_from(["entropy", "probability", "sigmoid"]),
)
def test_the_teachers_view_is_that_of_upsampled_logits(
    low: tuple[int, int],
    size: tuple[int, int],
    channels: int,
    images: int,
    seed: int,
    strip_bytes: int,
    score: Score,
) -> None:
    logits = random(images, channels, *low, seed=seed) * 3
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strips, "_CPU_STRIP_BYTES", strip_bytes)
        view = teacher_predictions(logits, size, score)
    full = upsample(logits, size)
    num_pixels = full.permute(0, 2, 3, 1).flatten(0, 2).tolist()
    expected = torch.tensor([slow_score(z, score) for z in num_pixels], dtype=torch.float64)
    torch.testing.assert_close(view.scores.flatten(), expected, rtol=1e-10, atol=1e-12)
    # Where two are equal but for rounding, either may be the best.
    greatest = full.gather(1, view.channels.long().unsqueeze(1)).squeeze(1)
    torch.testing.assert_close(greatest, full.amax(1), rtol=1e-10, atol=1e-12)


def test_the_first_of_equal_channels_is_the_best() -> None:
    view = teacher_predictions(torch.zeros(1, 3, 2, 2), (4, 4), "entropy")
    assert (view.channels == 0).all()
    torch.testing.assert_close(view.scores, torch.ones(1, 4, 4))


def test_a_teacher_may_be_sure_beyond_all_precision() -> None:
    view = teacher_predictions(torch.tensor([0.0, 1e4]).view(1, 2, 1, 1), (2, 2), "entropy")
    assert (view.scores == 0).all()
    assert (view.channels == 1).all()


def test_half_precision_logits_are_taken_to_float32() -> None:
    logits = random(1, 3, 2, 2).half()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        view = teacher_predictions(logits, (8, 8), "probability")
    assert torch.equal(
        view.scores, teacher_predictions(logits.float(), (8, 8), "probability").scores
    )


# ---------------------------------------------------------------- thresholds


def counts(view: TeacherPrediction, bins: int, channels: int) -> Tensor:
    return score_histogram(
        view, torch.ones_like(view.scores, dtype=torch.bool), channels, bins=bins
    )


def test_a_histogram_counts_what_counts_by_channel_and_score() -> None:
    channels = torch.tensor([[[0, 1, 1, 1, 0]]], dtype=torch.uint8)
    scores = torch.tensor([[[0.05, 0.55, 0.59, 1.0, 0.3]]])
    counted = torch.tensor([[[True, True, True, True, False]]])
    found = score_histogram(TeacherPrediction(channels, scores), counted, 3, bins=10)
    expected = torch.zeros(3, 10, dtype=torch.int64)
    expected[0, 0], expected[1, 5], expected[1, 9] = 1, 2, 1
    assert torch.equal(found, expected)


def test_the_median_is_interpolated_within_its_bin() -> None:
    histogram = torch.tensor([[2, 4, 2], [1, 0, 1], [0, 0, 0], [0, 0, 9]])
    found = median_thresholds(histogram)
    torch.testing.assert_close(found, torch.tensor([0.5, 1 / 3, 0.001, 2.5 / 3]))


def slow_released(histogram: list[int], least: float = 0.001) -> float:
    """The search for a median that adds numbers of bins."""
    bins, half, running = len(histogram), sum(histogram) / 2, 0
    if half == 0:
        return least
    for number, count in enumerate(histogram):
        if running <= half <= running + count:
            found = (number + (half - running) / count) / bins if count else 0.0
            return max(found, least)
        running += number
    assert histogram[-1] == 0
    return math.inf if half > running else least


@few
@given(first=st.lists(st.integers(0, 20000), min_size=1, max_size=4))
def test_released_thresholds_follow_the_released_search(first: list[int]) -> None:
    histogram = first + [0] * (100 - len(first))
    found = float(released_thresholds(torch.tensor([histogram]))[0])
    assert found == pytest.approx(slow_released(histogram), rel=1e-6)


def test_released_scores_are_small() -> None:
    for old, new, about in ((16, 1, 0.022), (101, 10, 0.0021)):
        found = float(released_scores(torch.ones(()), old, new))
        assert found == pytest.approx(1 / (old * math.log(old + new)), rel=1e-6)
        assert found == pytest.approx(about, rel=0.02)


def test_a_certain_pixel_is_below_the_threshold_of_its_channel() -> None:
    view = TeacherPrediction(torch.tensor([[[0, 0, 1, 1]]]), torch.tensor([[[0.1, 0.3, 0.3, 0.6]]]))
    certain = accept_by_entropy(view, torch.tensor([0.2, 0.5]))
    assert certain.tolist() == [[[True, False, True, False]]]


# ---------------------------------------------------------------- targets


def slow_target(y: int, channel: int, certain: bool, unsure: str) -> int:
    if y != 0:
        return y
    if certain:
        return channel
    return IGNORE_INDEX if unsure == "ignored" else 0


@pytest.mark.parametrize("unsure", ["ignored", "kept"])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64])
def test_targets_are_replaced_where_they_are_background_and_the_teacher_is_certain(
    unsure: str, dtype: torch.dtype
) -> None:
    g = torch.Generator().manual_seed(3)
    values = torch.tensor([0, 0, 1, 3, 4, IGNORE_INDEX], dtype=dtype)
    targets = values[torch.randint(0, len(values), (2, 7, 5), generator=g)]
    channels = torch.randint(0, 3, (2, 7, 5), generator=g).to(torch.uint8)
    certain = torch.rand(2, 7, 5, generator=g) < 0.5
    before = targets.clone()
    found = pseudo_targets(targets, channels, certain, unsure=unsure)  # type: ignore[arg-type]
    num_pixels = zip(*(x.flatten().tolist() for x in (targets, channels, certain)), strict=True)
    assert found.flatten().tolist() == [slow_target(*pixel, unsure) for pixel in num_pixels]
    assert found.dtype == dtype
    assert torch.equal(targets, before)


def test_the_factor_of_an_image_is_its_share_of_accepted_pixels() -> None:
    targets = torch.tensor(
        [[[0, 0, 0, 0, 5, IGNORE_INDEX]], [[5, 5, 5, 1, 5, 5]]], dtype=torch.uint8
    )
    certain = torch.tensor([[[True, False, True, True, True, True]], [[True] * 6]])
    assert acceptance_rate(targets, certain).tolist() == pytest.approx([0.75, 0.0], abs=1e-5)
