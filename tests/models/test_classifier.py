"""The classifier: growing, and that new channels change no old probability."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nacre.losses.reference import fold_new
from nacre.models.classifier import Classifier, split_rows


def features() -> Tensor:
    return torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))


def test_channels_have_the_order_of_the_steps() -> None:
    classifier, x = Classifier(4, [3]), features()
    before = classifier(x)
    classifier.grow(2)
    classifier.grow(1)
    after = classifier(x)
    assert classifier.classes_per_step == [3, 2, 1]
    assert classifier.num_classes == after.shape[1] == 6
    assert torch.equal(after[:, :3], before)


def test_growing_keeps_precision_and_device() -> None:
    classifier = Classifier(4, [3]).double()
    classifier.grow(2)
    classifier.grow_from_origins([0])
    assert {p.dtype for p in classifier.parameters()} == {torch.float64}


def with_row(name: str, branches: bool) -> Classifier:
    torch.manual_seed(1)
    classifier = Classifier(4, [3])
    if branches:
        classifier.add_branches()
    classifier.add_row(name)
    return classifier.eval()


@pytest.mark.parametrize("num_new", [1, 2])
@pytest.mark.parametrize("branches", [False, True])
@pytest.mark.parametrize("name", ["unknown", "auxiliary"])
def test_new_channels_can_start_as_copies_of_an_extra_row(
    name: str, branches: bool, num_new: int
) -> None:
    classifier, x = with_row(name, branches), features()
    before = classifier(x)
    classifier.grow_from(name, num_new)
    after, row = classifier.eval()(x), classifier.score_extra(x)[name]
    assert torch.equal(after[:, :3], before)
    torch.testing.assert_close(after[:, 3:], row.expand(-1, num_new, -1, -1))
    classifier.weight(slice(3, None)).sum().backward()
    assert getattr(classifier, name).state_dict().keys()
    grads = [value.grad for value in getattr(classifier, name).parameters()]
    assert all(grad is None for grad in grads), "copies share nothing with the row"


def test_the_auxiliary_row_leaves_the_features_alone_and_the_unknown_one_does_not() -> None:
    for name, leaves in (("auxiliary", True), ("unknown", False)):
        x = features().requires_grad_()
        with_row(name, branches=False).score_extra(x)[name].sum().backward()
        assert (x.grad is None) == leaves


@pytest.mark.parametrize("branches", [False, True])
def test_a_saved_classifier_loads_after_match_state(branches: bool) -> None:
    saved = with_row("unknown", branches)
    saved.grow_from("unknown", 2)
    fresh = Classifier(4, saved.classes_per_step)
    fresh.match_state(saved.state_dict())
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(fresh.eval()(features()), saved.eval()(features()))


# How new channels start (eq. 8, 9)


@pytest.mark.parametrize("new_origins", [(0,), (0,) * 50, (2, 2, 0), (3, 1, 4, 3)])
def test_new_classes_folded_into_their_origins_change_no_probability(
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
