"""Right after the initialisation the student says what the teacher said."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.losses import unbiased_cross_entropy, unbiased_distillation
from nacre.losses.reference import fold_new
from nacre.models.classifier import Classifier, split_rows


def grown(weight: Tensor, bias: Tensor, new: int) -> tuple[Tensor, Tensor]:
    """A 1x1 classifier with the new channels appended."""
    new_weight, new_bias, shared = split_rows(weight, bias, [0] * new)
    return torch.cat([weight, new_weight]), torch.cat([shared, new_bias])


@pytest.mark.parametrize(("old", "new"), [(1, 1), (4, 1), (16, 5), (101, 50)])
def test_background_splits_evenly_and_old_classes_stay(old: int, new: int) -> None:
    torch.manual_seed(old)
    features = torch.randn(2, 8, 3, 5, dtype=torch.float64)
    weight, bias = torch.randn(old, 8, 1, 1).double(), torch.randn(old).double()
    p = F.conv2d(features, weight, bias).softmax(1)
    q = F.conv2d(features, *grown(weight, bias, new)).softmax(1)

    torch.testing.assert_close(q[:, 1:old], p[:, 1:], rtol=0, atol=1e-6)
    share = p[:, :1] / (new + 1)
    torch.testing.assert_close(q[:, :1], share, rtol=0, atol=1e-6)
    torch.testing.assert_close(q[:, old:], share.expand(-1, new, -1, -1), rtol=0, atol=1e-6)


@pytest.mark.parametrize("new_origins", [(0, 0), (2, 2, 0), (3, 1, 4, 3)])
def test_folded_into_what_they_split_from_new_classes_change_nothing(
    new_origins: tuple[int, ...],
) -> None:
    torch.manual_seed(1)
    classifier = Classifier(8, [3, 2]).double()
    features = torch.randn(2, 8, 3, 5, dtype=torch.float64)
    before = classifier(features).log_softmax(1)
    classifier.grow_from_origins(new_origins)
    after = classifier(features).log_softmax(1)
    torch.testing.assert_close(fold_new(after, new_origins), before, rtol=0, atol=1e-14)
    for i, origin in enumerate(new_origins):
        torch.testing.assert_close(after[:, 5 + i], after[:, origin], rtol=0, atol=1e-14)


def test_distillation_starts_at_the_teachers_entropy() -> None:
    torch.manual_seed(0)
    features = torch.randn(2, 8, 3, 5)
    weight, bias = torch.randn(4, 8, 1, 1), torch.randn(4)
    old_logits = F.conv2d(features, weight, bias)
    logits = F.conv2d(features, *grown(weight, bias, 3))
    entropy = torch.distributions.Categorical(logits=old_logits.movedim(1, -1)).entropy()
    torch.testing.assert_close(unbiased_distillation(logits, old_logits), entropy.mean() / 4)


def test_background_label_is_likely_where_the_teacher_was_sure_of_an_old_class() -> None:
    old_logits = torch.tensor([0.0, 20.0]).view(1, 2, 1, 1)
    weight, bias = old_logits.view(2, 1, 1, 1), torch.zeros(2)
    logits = F.conv2d(torch.ones(1, 1, 1, 1), *grown(weight, bias, 1))
    label = torch.zeros(1, 1, 1, dtype=torch.uint8)
    assert unbiased_cross_entropy(logits, label, num_old=2) < 1e-6


def test_results_share_nothing_with_the_teacher() -> None:
    weight, bias = torch.zeros(1, 3, requires_grad=True), torch.zeros(1, requires_grad=True)
    new_weight, new_bias, shared = split_rows(weight, bias, [0, 0])
    for result in (new_weight, new_bias, shared):
        assert not result.requires_grad
        result.add_(1.0)
    assert (weight == 0).all()
    assert bias == 0
    assert torch.equal(new_weight, torch.ones(2, 3))
    assert new_bias.tolist() == pytest.approx([1 - torch.log(torch.tensor(3.0)).item()] * 2)
