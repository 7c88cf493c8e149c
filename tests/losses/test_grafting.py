"""Grafts against slow references, and what they promise."""

import pytest
import torch
from torch import Tensor

from nacre.losses.grafting import (
    Drift,
    cell_shares,
    count_nearest,
    draw_means,
    find_prototypes,
    folded_distillation,
    give_up,
    graft,
    mean_features,
    old_share,
)
from nacre.losses.reference import unbiased_distillation


def seeded(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator)


def test_shares_are_what_a_mask_covers_of_each_cell() -> None:
    mask = seeded(2, 12, 8) > 0.3
    shares = cell_shares(mask, (3, 2))
    for n in range(2):
        for i in range(3):
            for j in range(2):
                cell = mask[n, 4 * i : 4 * i + 4, 4 * j : 4 * j + 4]
                assert shares[n, i, j] == pytest.approx(float(cell.float().mean()))


@pytest.mark.parametrize("size", [(3, 3), (5, 4), (33, 33)])
def test_sizes_that_do_not_divide_are_covered_too(size: tuple[int, int]) -> None:
    assert torch.equal(
        cell_shares(torch.ones(1, 37, 41, dtype=torch.bool), size), torch.ones(1, *size)
    )
    half = torch.zeros(1, 37, 41, dtype=torch.bool)
    half[:, :18] = True
    assert float(cell_shares(half, size).mean()) == pytest.approx(18 / 37, abs=0.05)


def test_a_graft_has_the_means_that_it_was_given_and_all_else_of_the_picture() -> None:
    features, objects, background = seeded(2, 5, 4, 6), seeded(2, 5, seed=1), seeded(2, 5, seed=2)
    shares = (seeded(2, 4, 6, seed=3) > 0).double()
    grafted = graft(features, shares, objects, background)
    torch.testing.assert_close(mean_features(grafted, shares), objects)
    torch.testing.assert_close(mean_features(grafted, 1 - shares), background)
    for n in range(2):
        for part in (shares[n] > 0, shares[n] == 0):
            before, after = features[n, :, part], grafted[n, :, part]
            torch.testing.assert_close(
                before - before.mean(1, keepdim=True), after - after.mean(1, keepdim=True)
            )


def test_a_picture_without_an_object_only_changes_its_background() -> None:
    features = seeded(1, 3, 4, 4)
    grafted = graft(features, torch.zeros(1, 4, 4), seeded(1, 3, seed=1), seeded(1, 3, seed=2))
    shift = (grafted - features).flatten(2)
    torch.testing.assert_close(shift, shift[..., :1].expand_as(shift))


def test_drawn_means_have_mean_and_covariance_of_those_kept() -> None:
    kept = torch.zeros(2, 6, 3, dtype=torch.float64)
    kept[0], kept[1, :4] = seeded(6, 3), 2 + seeded(4, 3, seed=1)
    counts = torch.tensor([6, 4])
    for k, count in enumerate((6, 4)):
        classes = torch.full((200_000,), k)
        drawn = draw_means(kept, counts, classes, seeded(200_000, 6, seed=2))
        vectors = kept[k, :count]
        torch.testing.assert_close(drawn.mean(0), vectors.mean(0), rtol=0, atol=0.02)
        wanted = torch.cov(vectors.t(), correction=0)
        torch.testing.assert_close(torch.cov(drawn.t()), wanted, rtol=0.05, atol=0.02)


def test_a_class_that_was_seen_once_comes_back_as_it_was() -> None:
    kept = torch.zeros(1, 4, 3, dtype=torch.float64)
    kept[0, 0] = torch.tensor([1.0, 2.0, 3.0])
    drawn = draw_means(kept, torch.tensor([1]), torch.zeros(5, dtype=torch.long), seeded(5, 4))
    torch.testing.assert_close(drawn, kept[0, :1].expand(5, 3))


def test_the_distillation_is_mibs_where_all_cells_weigh_one() -> None:
    logits, old = seeded(2, 6, 3, 4).requires_grad_(), seeded(2, 4, 3, 4, seed=1)
    ours = folded_distillation(logits, old, torch.ones(2, 3, 4))
    theirs = unbiased_distillation(logits, old)
    torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-6, check_dtype=False)
    (mine,) = torch.autograd.grad(ours, logits)
    (wanted,) = torch.autograd.grad(theirs, logits)
    torch.testing.assert_close(mine, wanted, rtol=1e-5, atol=1e-7)


def test_cells_of_a_new_class_are_not_distilled() -> None:
    logits, old = seeded(1, 4, 2, 2).requires_grad_(), seeded(1, 3, 2, 2, seed=1)
    weights = torch.ones(1, 2, 2)
    weights[0, 0, 1] = 0
    (gradient,) = torch.autograd.grad(folded_distillation(logits, old, weights), logits)
    assert not gradient[0, :, 0, 1].any()
    assert gradient[0, :, 0, 0].any()


def test_prototypes_are_those_of_the_set_whatever_its_order() -> None:
    centers = torch.tensor([[0.0, 0.0], [9.0, 0.0], [0.0, 9.0]], dtype=torch.float64)
    features = torch.cat([center + 0.1 * seeded(30, 2, seed=i) for i, center in enumerate(centers)])
    found, weights = find_prototypes(features, 3)
    again, _ = find_prototypes(features.flip(0), 3)
    torch.testing.assert_close(found, again)
    torch.testing.assert_close(weights, torch.full((3,), 1 / 3, dtype=torch.float64))
    assert all((found - center).norm(dim=1).min() < 0.2 for center in centers)
    assert sorted(count_nearest(centers, found, torch.arange(3)).tolist()) == [0, 1, 2]


def test_fewer_features_than_prototypes() -> None:
    found, weights = find_prototypes(seeded(2, 3), 5)
    assert found.shape == (2, 3)
    assert float(weights.sum()) == pytest.approx(1)


def test_background_gives_up_what_a_new_class_explains() -> None:
    weights = torch.tensor([0.5, 0.25, 0.25])
    explained = torch.tensor([[0.0, 0.0, 100.0], [0.0, 0.0, 0.0]])
    kept = give_up(weights, explained)
    assert float(kept.sum()) == pytest.approx(1)
    assert kept[0] / kept[1] == pytest.approx(2), "what no class explains stays"
    assert kept[2] / kept[1] == pytest.approx((0.25 / 1.25) ** 2)


def test_an_object_is_old_by_as_much_as_the_teacher_takes_it_for_old_classes() -> None:
    logits, shares = seeded(2, 3, 4, 5), seeded(2, 4, 5, seed=1).abs().clamp(max=1)
    found = old_share(logits, shares)
    for n in range(2):
        weighed = total = 0.0
        for i in range(4):
            for j in range(5):
                share = float(shares[n, i, j])
                weighed += share * float(logits[n, :, i, j].softmax(0)[1:].sum())
                total += share
        assert float(found[n]) == pytest.approx(weighed / total)


def test_what_is_kept_is_carried_by_the_map_that_the_cells_show() -> None:
    turn, shift = torch.eye(4) + 0.3 * seeded(4, 4).float(), seeded(4, seed=1).float()
    before = seeded(8, 4, 6, 6, seed=2).float() + 2
    after = torch.einsum("nkhw,kl->nlhw", before, turn) + shift[:, None, None]
    drift = Drift(4)
    drift.add(before[:3], after[:3])
    drift.add(before[3:], after[3:])
    vectors = seeded(2, 5, 4, seed=3).float()
    torch.testing.assert_close(
        drift.solve(lambda t: t)(vectors), vectors @ turn + shift, atol=0.02, rtol=0
    )


def test_features_that_stay_leave_what_is_kept_and_unknown_directions_do_not_move() -> None:
    before = seeded(2, 3, 4, 4).float()
    before[:, 2] = 0
    still, moved = Drift(3), Drift(3)
    still.add(before, before)
    moved.add(before, before * torch.tensor([2.0, 2.0, 1.0]).view(1, 3, 1, 1))
    vectors = seeded(5, 3, seed=1).float()
    torch.testing.assert_close(still.solve(lambda t: t)(vectors), vectors)
    carried = moved.solve(lambda t: t)(vectors)
    torch.testing.assert_close(carried[:, 2], vectors[:, 2])
    torch.testing.assert_close(carried[:, :2], 2 * vectors[:, :2], atol=0.02, rtol=0.01)
