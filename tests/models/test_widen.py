"""A widened network keeps its old probabilities, for all forms of outputs and layers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm

from models.small_networks import CLASSES, NETWORKS, Fcn, Logits, Small, conv, make
from nacre.errors import NacreError
from nacre.models.probe import auxiliary_scores, scores_of
from nacre.models.widen import Teacher, widen

IMAGES = torch.randn(2, 3, 16, 16, generator=torch.Generator().manual_seed(3))


def scores(network: nn.Module) -> Tensor:
    with torch.no_grad():
        return scores_of(network.eval()(IMAGES))


def state_of(network: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in network.state_dict().items()}


def assert_equal(one: dict[str, Tensor], other: dict[str, Tensor]) -> None:
    assert one.keys() == other.keys()
    for name, value in one.items():
        assert torch.equal(value, other[name]), name


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("new", [1, 3])
def test_background_splits_evenly_and_old_classes_stay(name: str, new: int) -> None:
    network = make(name).eval()
    with torch.no_grad():
        before = network(IMAGES)
        widened = widen(network, new, images=IMAGES)
        after = network(IMAGES)
    assert scores_of(before).softmax(1).std() > 0.05  # there is something to keep
    pairs = zip(
        [scores_of(before), *auxiliary_scores(before)],
        [scores_of(after), *auxiliary_scores(after)],
        strict=True,
    )
    for p, q in ((one.softmax(1), other.softmax(1)) for one, other in pairs):
        old = p.shape[1]
        torch.testing.assert_close(q[:, 1:old], p[:, 1:], rtol=0, atol=1e-6)
        share = p[:, :1] / (new + 1)
        torch.testing.assert_close(q[:, :1], share, rtol=0, atol=1e-6)
        torch.testing.assert_close(q[:, old:], share.expand(-1, new, -1, -1), rtol=0, atol=1e-6)
        assert widened.num_classes == q.shape[1] == old + new
    assert widened.deviation < 1e-5
    _, main, auxiliary = NETWORKS[name]
    assert widened.layers.main == pytest.approx(main)
    assert [list(one) for one in widened.layers.auxiliary] == [[one] for one in auxiliary]


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.parametrize("new", [1, 3])
def test_without_background_the_new_classes_start_as_one_average_class(name: str, new: int) -> None:
    network = make(name)
    before = scores(network)
    widen(network, new, background=None, images=IMAGES)
    after = scores(network)
    old = before.shape[1]
    torch.testing.assert_close(
        after[:, :old].softmax(1), before.softmax(1), rtol=0, atol=1e-6
    )  # given that a pixel is of an old class
    together = after.softmax(1)[:, old:].sum(1)
    assert together.max() <= 1 / (old + 1) + 1e-6
    # compared up to what is equal for all classes, which log-probabilities show
    mean = before.mean(1) - before.logsumexp(1)
    new_score = after[:, old:].logsumexp(1) - after[:, :old].logsumexp(1)
    torch.testing.assert_close(new_score, mean, rtol=0, atol=1e-5)
    if new > 1:  # one class of average score can tie, if all are equal
        assert torch.equal(after.argmax(1), before.argmax(1))


@pytest.mark.parametrize("background", [0, 2, None])
def test_classes_can_be_added_again_and_again(background: int | None) -> None:
    network = make("sum")
    p = scores(network).softmax(1)
    for new in (2, 1, 3):
        widen(network, new, background=background, images=IMAGES)
    q = scores(network).softmax(1)
    assert q.shape[1] == CLASSES + 6
    kept = [c for c in range(CLASSES) if c != background]
    if background is None:
        q = q[:, :CLASSES] / q[:, :CLASSES].sum(1, keepdim=True)
    torch.testing.assert_close(q[:, kept], p[:, kept], rtol=0, atol=1e-6)


def test_a_networks_own_loss_accepts_the_new_classes() -> None:
    network = make("logits")
    labels = torch.full((2, 16, 16), CLASSES + 1)
    with pytest.raises(IndexError):
        network(IMAGES, labels)
    widen(network, 2)
    loss = network(IMAGES, labels).loss
    loss.backward()
    assert loss.isfinite()
    assert network.auxiliary_head.weight.grad[CLASSES + 1].abs().sum() > 0  # type: ignore[index]


def test_random_rows_leave_the_old_scores_alone() -> None:
    network = make("sum")
    before = scores(network)
    torch.manual_seed(0)
    widen(network, 2, init="random")
    after = scores(network)
    torch.testing.assert_close(after[:, :CLASSES], before)
    assert (after[:, CLASSES] - after[:, CLASSES + 1]).abs().min() > 0


def test_modes_statistics_and_random_numbers_are_left_alone() -> None:
    network = make("tensor").train()
    network.body[1].eval()  # type: ignore[index]
    before = state_of(network)
    random = torch.get_rng_state()
    widen(network, 2)
    assert torch.equal(torch.get_rng_state(), random)
    assert [one.training for one in network.modules()].count(False) == 1
    after = state_of(network)
    for name in before:
        if not name.startswith("score"):
            assert torch.equal(after[name], before[name]), name


def test_parameters_that_take_no_gradient_stay_so() -> None:
    network = make("tensor").requires_grad_(False)
    widen(network, 2)
    assert not any(one.requires_grad for one in network.parameters())


def test_half_precision() -> None:
    network = make("tensor").to(torch.bfloat16)
    widened = widen(network, 2, images=IMAGES.bfloat16())
    assert widened.deviation < 0.1
    assert {one.dtype for one in network.parameters()} == {torch.bfloat16}


def test_a_config_gets_the_names() -> None:
    network = make("tensor")
    config = SimpleNamespace(id2label=dict(enumerate("abcde")), label2id={})
    network.config = config  # type: ignore[assignment]
    widen(network, ["crack", "rust"])
    widen(network, 1)
    assert config.id2label == dict(enumerate(["a", "b", "c", "d", "e", "crack", "rust", "LABEL_7"]))
    assert config.label2id["rust"] == 6


class Chain(Logits):
    """An auxiliary head whose inner layer has as many outputs as there are classes."""

    def __init__(self) -> None:
        super().__init__()
        layers = [nn.Conv2d(6, CLASSES, 1), nn.ReLU(), nn.Conv2d(CLASSES, CLASSES, 1)]
        self.auxiliary_head = nn.Sequential(*layers)  # type: ignore[assignment]


def test_names_help_if_the_wrong_layers_are_found() -> None:
    network = Chain()
    message = r"does not run .* auxiliary_head\.0, .*layers that score the classes, scoring_layers="
    with pytest.raises(NacreError, match=message):
        widen(network, 1)
    layers = widen(network, 1, scoring_layers=["score", "auxiliary_head.2"]).layers
    assert layers.main == {"score": 1}
    assert layers.auxiliary == ({"auxiliary_head.2": 1},)
    assert network(IMAGES, torch.full((2, 16, 16), CLASSES)).loss.isfinite()


def test_a_border_that_no_layer_scores_breaks_the_invariant() -> None:
    class Padded(Small):
        def forward(self, images: Tensor) -> Any:
            return nn.functional.pad(self.scores(images), (1, 1, 1, 1))

    network = Padded(conv())
    with pytest.raises(NacreError, match=r"'...' \(layers with as many outputs: score\)"):
        widen(network, 1)
    # of 5 equal classes in the border there are 6 now, and two are the background: 2/6 for 1/5
    with pytest.raises(NacreError, match=r"probabilities changed by a factor of up to 1\.67"):
        widen(network, 1, scoring_layers="score")


def test_a_named_layer_must_be_there() -> None:
    with pytest.raises(NacreError, match=r"='scor' does not exist \(did you mean 'score'\?\)"):
        widen(make("tensor"), 1, scoring_layers="scor")
    with pytest.raises(NacreError, match="scoring_layers='body' is Sequential"):
        widen(make("tensor"), 1, scoring_layers="body")


def test_a_wrong_layer_is_refused_and_the_network_is_restored() -> None:
    network = make("inner layers of as many outputs")
    network.num_classes = CLASSES  # type: ignore[assignment]
    before, parameters = state_of(network), list(network.parameters())
    with pytest.raises(NacreError, match=r"does not run with more classes.*between"):
        widen(network, 2, scoring_layers="between")
    assert_equal(state_of(network), before)
    assert all(one is other for one, other in zip(network.parameters(), parameters, strict=True))
    assert network.between.out_channels == network.num_classes == CLASSES
    assert widen(network, 2).num_classes == network.num_classes == CLASSES + 2


def test_an_added_bias_is_removed_after_an_error() -> None:
    class Once(Small):
        def forward(self, images: Tensor) -> Any:
            scores = self.scores(images)
            return scores if self.score.bias is None else scores.view(-1, CLASSES, 16, 16)

    network = Once(conv(bias=False))
    with pytest.raises(NacreError, match="does not run with more classes"):
        widen(network, 2)
    assert network.score.bias is None


def query_network(images: Tensor) -> Any:
    return SimpleNamespace(class_queries_logits=torch.ones(2, 9, 5), masks_queries_logits=images)


class Answers(Small):
    """A network that puts out something else."""

    def __init__(self, answer: Any) -> None:
        super().__init__(conv())
        self.answer = answer

    def forward(self, images: Tensor) -> Any:
        return self.answer(self.scores(images))


@pytest.mark.parametrize(
    ("network", "message"),
    [
        (lambda: Answers(query_network), "scores queries .* so it cannot be widened"),
        (lambda: Answers(lambda x: {"pred_masks": x, "pred_logits": x}), "scores queries"),
        (lambda: Answers(lambda x: x.softmax(1)), "outputs probabilities"),
        (lambda: Answers(lambda x: x[:, :1]), "one channel of scores, a sigmoid"),
        (lambda: Answers(lambda x: x.mean((2, 3))), "are a tensor of 2 x 5, torch.float32"),
        (lambda: Answers(lambda x: x.argmax(1, keepdim=True)), "2 x 1 x 64 x 64, torch.int64"),
        (
            lambda: Answers(lambda x: {"masks": x, "normals": x}),
            "output is dict of masks, normals: ",
        ),
        (lambda: Answers(lambda x: None), "output is NoneType"),
        (lambda: Answers(lambda x: x / 0), "not finite"),
        (lambda: Answers(lambda x: x.relu()), "found no layer of Answers"),
        (lambda: Small(nn.Conv2d(6, 6, 1, groups=6)), "score is a grouped convolution"),
        (lambda: Small(weight_norm(conv())), "score.weight is computed"),
        (lambda: nn.Conv2d(4, 5, 1), r"Conv2d accepted noise of none .* images=\.\.\."),
    ],
)
def test_what_cannot_be_widened_is_refused_with_a_reason(network: Any, message: str) -> None:
    with pytest.raises(NacreError, match=message):
        widen(network(), 1)


def test_shared_weights_are_refused() -> None:
    network = Fcn()
    network.up.bias = network.score.bias
    with pytest.raises(NacreError, match=r"up\.bias is shared with score\.bias"):
        widen(network, 1)


@pytest.mark.parametrize("new", [0, -1, [], "rust"])
def test_new_classes_need_a_number_or_names(new: Any) -> None:
    with pytest.raises(NacreError, match="give the number of new classes, 1 or more, or their"):
        widen(make("tensor"), new)


@pytest.mark.parametrize("background", [-1, CLASSES])
def test_a_background_that_is_not_a_channel_is_refused(background: int) -> None:
    with pytest.raises(NacreError, match="the network has the channels 0 to 4"):
        widen(make("tensor"), 1, background=background)


def test_the_teacher_does_not_change_with_the_network() -> None:
    network = make("logits")
    before = scores(network)
    teacher = Teacher(network)
    widen(network, 2)
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(1)
    network.train()
    assert torch.equal(teacher(IMAGES), before)
    assert torch.equal(teacher(images=IMAGES), before)
    assert not any(one.requires_grad for one in teacher.model.parameters())


def test_a_teacher_is_not_part_of_a_module_with_it_as_an_attribute() -> None:
    class Loop(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = make("tensor")
            self.teacher = Teacher(self.network)

    assert all(name.startswith("network.") for name in Loop().state_dict())


def test_a_network_that_cannot_be_copied_has_no_teacher() -> None:
    network = make("tensor")
    network.last = network(IMAGES)  # type: ignore[assignment]
    with pytest.raises(NacreError, match="Small cannot be copied"):
        Teacher(network)
