"""Label-guided distillation at its extremes; its values and gradients are in test_reference."""

from __future__ import annotations

import torch

from loss_problems import LossProblem as Problem
from nacre.losses import IGNORE_INDEX, cross_entropy, distillation
from nacre.losses.distillations import (
    guided_probabilities,
    label_guided_distillation,
    nearest_targets,
)


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


def test_nearest_targets_are_those_of_pytorch() -> None:
    a = Problem(high=(37, 50))
    for size in ((3, 4), (37, 50), (1, 1), (5, 7)):
        expected = torch.nn.functional.interpolate(a.targets.unsqueeze(1), size, mode="nearest")
        assert torch.equal(nearest_targets(a.targets, size), expected.squeeze(1))
