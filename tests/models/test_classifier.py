"""The classifier: what grows, and what stays."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from nacre.models.classifier import Classifier


def features() -> Tensor:
    return torch.randn(2, 4, 3, 3, generator=torch.Generator().manual_seed(0))


def test_channels_stand_in_the_order_of_the_steps() -> None:
    classifier, x = Classifier(4, [3]), features()
    before = classifier(x)
    classifier.grow(2)
    classifier.grow(1)
    after = classifier(x)
    assert classifier.classes_per_step == [3, 2, 1]
    assert classifier.num_classes == after.shape[1] == 6
    assert torch.equal(after[:, :3], before)


def test_new_channels_are_random_and_trained() -> None:
    torch.manual_seed(0)
    classifier = Classifier(4, [3])
    classifier.grow(2)
    classifier(features()).sum().backward()
    weight = dict(classifier.named_parameters())["rows.1.weight"]
    assert weight.std() > 0
    assert weight.grad is not None
    assert weight.grad.abs().sum() > 0


def test_growing_keeps_precision_and_device() -> None:
    classifier = Classifier(4, [3]).double()
    classifier.grow(2)
    classifier.grow_from_origins([0])
    assert {p.dtype for p in classifier.parameters()} == {torch.float64}


def test_from_background_shares_its_probability_evenly() -> None:
    classifier, x = Classifier(4, [3]), features()
    classifier.grow(2)
    old = classifier(x).softmax(1)
    classifier.grow_from_origins([0] * 4)
    new = classifier(x).softmax(1)
    torch.testing.assert_close(new[:, 1:5], old[:, 1:], rtol=0, atol=1e-6)
    for channel in (0, 5, 6, 7, 8):
        torch.testing.assert_close(new[:, channel], old[:, 0] / 5, rtol=0, atol=1e-6)


def test_state_of_several_steps_loads() -> None:
    grown = Classifier(4, [3])
    grown.grow(2)
    fresh = Classifier(4, grown.classes_per_step)
    fresh.load_state_dict(grown.state_dict())
    assert torch.equal(fresh(features()), grown(features()))


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
def test_new_channels_can_start_as_a_row_that_is_no_class(
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
def test_a_classifier_takes_the_form_of_a_saved_one(branches: bool) -> None:
    saved = with_row("unknown", branches)
    saved.grow_from("unknown", 2)
    fresh = Classifier(4, saved.classes_per_step)
    fresh.fit(saved.state_dict())
    fresh.load_state_dict(saved.state_dict())
    assert torch.equal(fresh.eval()(features()), saved.eval()(features()))
