"""Feature statistics and the terms of STAR against loops over pixels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.losses.statistics import (
    FeatureStatistics,
    direction_sums,
    directions,
    draw_features,
    feature_moments,
    feature_statistics,
    grid_targets,
    masked_feature_distance,
    prototype_contrast,
)

few = settings(max_examples=30, deadline=None)


class Problem:
    """Features, targets on their grid with classes 0 to 4, and prototypes of two old classes."""

    def __init__(self, images: int = 2, depth: int = 4, side: int = 4, seed: int = 0) -> None:
        g = torch.Generator().manual_seed(seed)
        shape = (images, depth, side, side + 1)
        self.features = torch.randn(shape, generator=g, dtype=torch.float64)
        self.old_features = torch.randn(shape, generator=g, dtype=torch.float64)
        self.targets = torch.randint(0, 5, (images, side, side + 1), generator=g)
        self.mask = torch.rand(images, side, side + 1, generator=g, dtype=torch.float64)
        self.prototypes = F.normalize(torch.randn(2, depth, generator=g, dtype=torch.float64))

    def num_pixels(self, target: int) -> list[Tensor]:
        """The features of a class, one by one."""
        found = []
        for n, row, column in (self.targets == target).nonzero().tolist():
            found.append(self.features[n, :, row, column])
        return found


problems = st.builds(
    Problem,
    images=st.integers(1, 3),
    depth=st.integers(2, 5),
    side=st.integers(1, 5),
    seed=st.integers(0, 2**31),
)


# ---------------------------------------------------------------- statistics


@few
@given(a=problems)
def test_statistics_are_those_of_the_pixels_of_each_class(a: Problem) -> None:
    found = feature_statistics(feature_moments(a.features, a.targets, 3, 2))
    for i, target in enumerate((3, 4)):
        num_pixels = a.num_pixels(target)
        assert int(found.count[i]) == len(num_pixels)
        if not num_pixels:
            assert not any(x[i].any() for x in (found.prototype, found.noise, found.length_mean))
            continue
        f = torch.stack(num_pixels)
        u = f / f.norm(dim=1, keepdim=True)
        m = u.sum(0) / u.sum(0).norm()
        assert_near(found.prototype[i], m)
        assert_near(found.noise[i], (u - m).square().mean(0).sqrt())
        assert_near(found.length_mean[i], f.norm(dim=1).mean())
        assert_near(found.length_std[i], f.norm(dim=1).std(correction=0))


def assert_near(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected.float(), rtol=1e-5, atol=1e-6)


def test_a_feature_without_length_has_no_direction_and_a_finite_gradient() -> None:
    x = torch.zeros(2, 3, requires_grad=True)
    u = directions(x)
    assert (u == 0).all()
    assert torch.isfinite(torch.autograd.grad(u.sum(), x)[0]).all()


def test_moments_of_batches_add_up() -> None:
    a = Problem(images=5)
    whole = feature_statistics(feature_moments(a.features, a.targets, 1, 3))
    first, second = (
        feature_moments(a.features[s], a.targets[s], 1, 3) for s in (slice(0, 2), slice(2, 5))
    )
    both = feature_statistics(first + second)
    for name in ("prototype", "noise", "length_mean", "length_std", "count"):
        torch.testing.assert_close(getattr(both, name), getattr(whole, name))


def statistics(depth: int = 3) -> FeatureStatistics:
    g = torch.Generator().manual_seed(0)
    prototype = F.normalize(torch.rand(2, depth, generator=g) + 0.2)
    noise = 0.05 + 0.1 * torch.rand(2, depth, generator=g)
    return FeatureStatistics(
        prototype, noise, torch.tensor([5.0, 9.0]), torch.tensor([0.5, 0.2]), torch.ones(2)
    )


def test_drawn_features_have_the_statistics_they_were_drawn_with() -> None:
    kept = statistics()
    torch.manual_seed(1)
    x = draw_features(kept, torch.tensor([20000, 10000]), non_negative=False)
    for i, drawn in enumerate((x[:20000], x[20000:])):
        mean, std = kept.length_mean[i], kept.length_std[i]
        torch.testing.assert_close(drawn.mean(0) / mean, kept.prototype[i], rtol=0, atol=0.01)
        # Var(ab) of independent a and b
        m, noise = kept.prototype[i], kept.noise[i]
        variance = (m.square() + noise.square()) * (mean**2 + std**2) - (m * mean).square()
        torch.testing.assert_close(drawn.std(0), variance.sqrt(), rtol=0.03, atol=0)


def scaled(noise: float, length_std: float) -> FeatureStatistics:
    kept = statistics()
    noise_of, std_of = noise * kept.noise, length_std * kept.length_std
    return FeatureStatistics(kept.prototype, noise_of, kept.length_mean, std_of, kept.count)


def test_a_drawn_vector_has_one_length_that_never_turns_it_around() -> None:
    prototypes = statistics().prototype.repeat_interleave(200, 0)
    x = draw_features(scaled(0, 20), torch.tensor([200, 200]), non_negative=False)
    length = (x * prototypes).sum(1)
    torch.testing.assert_close(x, prototypes * length.unsqueeze(1))
    assert (length >= 0).all()
    assert (length == 0).any(), "some lengths are drawn below 0"
    assert length.std() > 0.1


def test_features_of_a_relu_are_drawn_without_negative_ones() -> None:
    loud = scaled(10, 20)
    assert (draw_features(loud, torch.tensor([99, 9]), non_negative=True) >= 0).all()
    assert (draw_features(loud, torch.tensor([99, 9]), non_negative=False) < 0).any()
    assert draw_features(loud, torch.tensor([0, 0]), non_negative=True).shape == (0, 3)


def test_grid_targets_are_in_the_middle_or_the_corner_of_cells() -> None:
    targets = torch.arange(64 * 48).view(1, 64, 48)
    assert torch.equal(grid_targets(targets, (4, 3)), targets[:, 8::16, 8::16])
    for size in ((5, 7), (64, 48), (1, 1)):
        for mode, corner in (("nearest-exact", False), ("nearest", True)):
            expected = F.interpolate(targets[:, None].double(), size, mode=mode)
            found = grid_targets(targets, size, corner=corner)
            assert torch.equal(found, expected.squeeze(1).long())


def slow_distance(a: Problem) -> Tensor:
    total = weight = a.features.new_zeros(())
    for n, row, column in (a.mask >= 0).nonzero().tolist():
        m = a.mask[n, row, column]
        difference = a.features[n, :, row, column] - a.old_features[n, :, row, column]
        total = total + m * (difference**2).sum()
        weight = weight + m
    return total / (weight * a.features.shape[1])


@few
@given(a=problems)
def test_features_are_held_where_the_mask_says(a: Problem) -> None:
    a.features.requires_grad_()
    actual = masked_feature_distance(a.features, a.old_features, a.mask)
    torch.testing.assert_close(actual, slow_distance(a), rtol=1e-10, atol=0)
    gradients = [torch.autograd.grad(x, a.features)[0] for x in (actual, slow_distance(a))]
    torch.testing.assert_close(*gradients, rtol=1e-9, atol=1e-12)


def test_without_old_pixels_no_feature_is_held() -> None:
    a = Problem()
    a.features.requires_grad_()
    loss = masked_feature_distance(a.features, a.old_features, torch.zeros_like(a.mask))
    assert loss == 0
    assert (torch.autograd.grad(loss, a.features)[0] == 0).all()


def slow_contrast(a: Problem) -> Tensor:
    total = a.features.new_zeros(())
    for target in (3, 4):
        num_pixels = a.num_pixels(target)
        if num_pixels:
            summed = sum(f / f.norm() for f in num_pixels)
            assert isinstance(summed, Tensor)
            v = summed / summed.norm()
            total = total + 1 / min((v - m).norm() for m in a.prototypes)
    return total / 2


@few
@given(a=problems)
def test_contrast_is_the_inverse_distance_to_the_nearest_prototype(a: Problem) -> None:
    a.features.requires_grad_()
    actual, expected = (
        prototype_contrast(direction_sums(a.features, a.targets, 3, 2), a.prototypes),
        slow_contrast(a),
    )
    torch.testing.assert_close(actual, expected, rtol=1e-9, atol=0)
    if expected.requires_grad:
        gradients = [torch.autograd.grad(x, a.features)[0] for x in (actual, expected)]
        torch.testing.assert_close(*gradients, rtol=1e-7, atol=1e-9)


def test_a_prototype_of_a_class_that_nobody_saw_is_near_to_nothing() -> None:
    a = Problem()
    a.features.requires_grad_()
    sums = direction_sums(a.features, a.targets, 3, 2)
    nobody = torch.zeros_like(a.prototypes[:1])
    with_it = prototype_contrast(sums, torch.cat([a.prototypes, nobody]))
    torch.testing.assert_close(with_it, prototype_contrast(sums, a.prototypes))
    alone = prototype_contrast(sums, nobody)
    assert alone == 0
    assert torch.isfinite(torch.autograd.grad(alone, a.features)[0]).all()
