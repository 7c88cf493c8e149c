"""Sums over pixels and the head that follows from them, against explicit pixels in float64."""

import pytest
import torch
import torch.nn.functional as F

from nacre.errors import NacreError
from nacre.losses import pixel_sums
from nacre.losses.pixel_sums import PixelSums
from nacre.losses.ridge import Sums, from_products, join, solve

MAPS, ROWS = 5, 3


def draw(seed, count=4, grid=(3, 4), size=(24, 20), labels=(0, 1, 2, 255)):
    """Features of a few images and targets in blocks."""
    g = torch.Generator().manual_seed(seed)
    maps = torch.randn(count, MAPS, *grid, generator=g, dtype=torch.float64) * 2 + 1
    rows = torch.randn(count, ROWS, generator=g, dtype=torch.float64) - 3
    values = torch.tensor(labels, dtype=torch.uint8)
    return maps, rows, values[torch.randint(0, len(labels), (count, *size), generator=g)]


def pixels(maps, rows, targets):
    """The features and targets of all pixels that count, one by one."""
    full = F.interpolate(maps, targets.shape[1:], mode="bilinear", align_corners=False)
    beside = rows[:, :, None, None].expand(-1, -1, *targets.shape[1:])
    x = torch.cat([full, beside], 1).permute(0, 2, 3, 1).reshape(-1, MAPS + ROWS)
    counted = targets.flatten() != 255
    return x[counted], targets.flatten()[counted].long()


def added(*batches):
    sums = PixelSums()
    for batch in batches:
        sums.add(*batch)
    return sums


def explicit_sums(x, y, step=0):
    """The rows of a step, straight from its pixels."""
    columns = []
    for c in y.unique():
        mine = x[y == c]
        around = mine - mine.mean(0)
        rows, cols = torch.tril_indices(x.shape[1], x.shape[1])
        scatter = (around.T @ around)[rows, cols]
        columns.append((torch.tensor(step), c, len(mine), mine.mean(0), scatter))
    step, channel, count, mean, scatter = zip(*columns, strict=True)
    count = torch.tensor(count, dtype=torch.float64)
    return Sums(
        torch.stack(step),
        torch.zeros(len(step), dtype=torch.int64),
        torch.stack(channel),
        count,
        torch.stack(mean),
        torch.stack(scatter),
    )


@pytest.mark.parametrize("block", [2, 100], ids=["in blocks", "at once"])
@pytest.mark.parametrize(
    ("grid", "size"), [((3, 4), (24, 20)), ((1, 1), (7, 5)), ((5, 3), (33, 9))]
)
def test_sums_are_those_of_explicitly_upsampled_features(grid, size, block, monkeypatch):
    monkeypatch.setattr(pixel_sums, "_BLOCK", block)
    batches = [draw(seed, grid=grid, size=size) for seed in range(2)]
    sums = added(*batches)
    x, y = (torch.cat(part) for part in zip(*(pixels(*one) for one in batches), strict=True))
    x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    assert set(sums.products()) == {0, 1, 2}
    for channel, product in sums.products().items():
        wanted = x[y == channel].T @ x[y == channel]
        assert torch.allclose(product, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("grid", "coarse"), [((4, 6), (2, 3)), ((5, 7), (3, 4)), ((3, 4), (1, 1)), ((9, 8), (3, 2))]
)
def test_coarser_maps_are_summed_as_if_they_were_upsampled_first(grid, coarse):
    maps, rows, targets = draw(12, grid=grid, size=(33, 30))
    few = torch.randn(4, 3, *coarse, dtype=torch.float64) - 2
    targets[0] = 1  # an image of one class: of the others not all points count
    sums = PixelSums()
    sums.add(maps[:, :2], rows, targets, few)
    up = F.interpolate(few, grid, mode="bilinear", align_corners=False)
    x, y = pixels(torch.cat([maps[:, :2], up], 1), rows, targets)
    x = torch.cat([x, torch.ones(len(x), 1, dtype=torch.float64)], 1)
    for channel, product in sums.products().items():
        wanted = x[y == channel].T @ x[y == channel]
        assert torch.allclose(product, wanted, rtol=1e-9, atol=1e-9)


def test_rows_hold_counts_means_and_scatters_of_the_pixels():
    batch = draw(3)
    found = from_products(4, added(batch).products())
    wanted = explicit_sums(*pixels(*batch))
    assert found.step.tolist() == [4, 4, 4]
    assert found.channel.tolist() == [0, 1, 2]
    assert torch.equal(found.count, wanted.count)
    assert torch.allclose(found.mean, wanted.mean, rtol=1e-9)
    assert torch.allclose(found.scatter.double(), wanted.scatter, rtol=1e-6, atol=1e-3)


def test_the_head_is_explicit_weighted_ridge_regression():
    x, y = pixels(*draw(5))
    head = solve(explicit_sums(x, y), 3, ridge=0.05)
    counts = torch.bincount(y, minlength=3).double()
    balance = counts.sqrt() / counts.sqrt().sum()
    weights = (balance / counts)[y]
    mean = weights @ x
    variance = weights @ (x - mean).square()
    # Rows that ask for nothing, one per feature, are the ridge; the constant has none.
    ridge = torch.cat([(0.05 * variance).sqrt().diag(), torch.zeros(len(mean), 1)], 1)
    design = torch.cat([x, torch.ones(len(x), 1)], 1) * weights.sqrt()[:, None]
    wanted = F.one_hot(y, 3).double() * weights.sqrt()[:, None]
    design, wanted = torch.cat([design, ridge]), torch.cat([wanted, torch.zeros(len(mean), 3)])
    solution = torch.linalg.lstsq(design, wanted).solution
    scores = (x - head.mean) / head.std @ head.weight.T + head.bias
    assert torch.allclose(scores, x @ solution[:-1] + solution[-1], rtol=1e-9, atol=1e-9)


def test_a_class_in_several_rows_is_the_class_in_one():
    x, y = pixels(*draw(6))
    half = torch.arange(len(y)) % 2 == 0
    parts = [explicit_sums(x[half], y[half], 0), explicit_sums(x[~half], y[~half], 1)]
    whole = solve(explicit_sums(x, y), 3, 0.01)
    for order in (parts, parts[::-1]):
        apart = solve(join(order), 3, 0.01)
        for one, other in zip(vars(whole).values(), vars(apart).values(), strict=True):
            assert torch.allclose(one, other, rtol=1e-9, atol=1e-9)


def test_the_scale_of_a_feature_does_not_matter():
    x, y = pixels(*draw(7))
    scale = torch.logspace(-4, 4, MAPS + ROWS, dtype=torch.float64)
    one, other = (solve(explicit_sums(v, y), 3, 0.01) for v in (x, x * scale - 5))
    assert torch.allclose(one.weight, other.weight, rtol=1e-6, atol=1e-8)


def test_scores_sum_to_1_and_a_channel_without_pixels_scores_0():
    x, y = pixels(*draw(8))
    head = solve(explicit_sums(x[y != 0], y[y != 0]), 4, 0.01)
    scores = (x - head.mean) / head.std @ head.weight.T + head.bias
    assert torch.allclose(scores.sum(1), torch.ones(len(x), dtype=torch.float64))
    assert not scores[:, [0, 3]].any()


def test_a_constant_feature_gets_no_weight():
    x, y = pixels(*draw(9))
    x[:, 2] = 7.3
    head = solve(explicit_sums(x, y), 3, 0.01)
    assert not head.weight[:, 2].any()
    assert all(part.isfinite().all() for part in vars(head).values())


def test_float32_features_far_from_0_lose_nothing_of_their_spread():
    maps, rows, targets = draw(10)
    maps, rows = maps + 1000, rows + 1000
    sums = PixelSums()
    sums.add(maps.float(), rows.float(), targets)
    head = solve(from_products(0, sums.products()), 3, 0.01)
    wanted = solve(explicit_sums(*pixels(maps, rows, targets)), 3, 0.01)
    assert torch.allclose(head.weight, wanted.weight, atol=2e-4)


def test_sums_that_do_not_fit_together_are_refused():
    good = from_products(0, added(draw(1)).products()).tensors()
    for name, value in (
        ("scatter", good["scatter"][:, 1:]),
        ("count", good["count"][1:]),
        ("count", good["count"] * 0),
        ("channel", good["channel"] - 5),
        ("mean", good["mean"][0]),
    ):
        with pytest.raises(NacreError, match="sums"):
            Sums(**{**good, name: value})


def test_a_step_without_a_labeled_pixel_is_refused():
    maps, rows, targets = draw(2)
    with pytest.raises(NacreError, match="no labeled pixel"):
        from_products(0, added((maps, rows, torch.full_like(targets, 255))).products())
