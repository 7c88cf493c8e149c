"""Methods that watch the outputs, against sums over pixels and channels as the equations say."""

from functools import partial

import pytest
import torch

from loss_problems import (
    mean_over_pixels,
    pixel_bce,
    pixel_binary_kd,
    pixel_ce,
    pixel_kd,
    pixel_mixed,
)
from nacre.labels.channels import from_background
from nacre.losses import IGNORE_INDEX, upsample
from nacre.methods import METHODS, Batch
from nacre.methods.ssul import NO_CHANNEL, NOT_COUNTED, unknown_targets
from nacre.models.network import Output, merge_unknown

OLD, NEW = 3, 2  # channels; the background is one of the old ones
FIRST, GROWTH = from_background(0, OLD), from_background(OLD, OLD + NEW)
SIZE = (6, 7)


def output(channels, seed):
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape):
        values = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
        return values.requires_grad_()

    return Output(2 * draw(channels, 3, 4), draw(8, 3, 4), draw(5, 3, 4))


@pytest.fixture
def seen():
    """A batch, and what student and teacher say of it."""
    generator = torch.Generator().manual_seed(3)
    # As in a step: background, new classes, and pixels that do not count
    values = torch.tensor([0, 0, OLD, OLD + 1, 255], dtype=torch.uint8)
    labels = values[torch.randint(0, len(values), (2, *SIZE), generator=generator)]
    return Batch(torch.zeros(2, 3, *SIZE), labels), output(OLD + NEW, 1), output(OLD, 2)


def labeled(term):
    """Mean of a term of (student's logits, label, teacher's) over the pixels that count."""

    def mean(batch, student, teacher):
        logits = [upsample(one.logits, SIZE) for one in (student, teacher)]
        return mean_over_pixels(term, batch.targets, *logits)

    return mean


def everywhere(term):
    """Mean of a term of both logits over all pixels."""

    def mean(_, student, teacher):
        return mean_over_pixels(term, None, *(upsample(x.logits, SIZE) for x in (student, teacher)))

    return mean


def squares(name):
    """Mean square of the distance between both features of a name."""

    def mean(_, student, teacher):
        distances = (getattr(student, name) - getattr(teacher, name)).detach().flatten().tolist()
        return sum(distance**2 for distance in distances) / len(distances)

    return mean


CE, BCE = labeled(lambda x, y, t: pixel_ce(x, y)), labeled(lambda x, y, t: pixel_bce(x, y))
KD, BINARY_KD = everywhere(pixel_kd), everywhere(pixel_binary_kd)


@pytest.mark.parametrize(
    ("method", "values", "terms"),
    [
        ("lwf", {"weight": 7}, {"ce": (1, CE), "kd": (7, KD)}),
        ("lwf", {"weight": 7, "average": "pixels"}, {"ce": (1, CE), "kd": (7 * OLD, KD)}),
        (
            "ilt",
            {"weight": 5, "feature_weight": 3, "layer": "backbone"},
            {"ce": (1, CE), "kd": (5, KD), "features": (3, squares("features"))},
        ),
        (
            "ilt",
            {"weight": 5, "feature_weight": 3, "layer": "decoder"},
            {"ce": (1, CE), "kd": (5, KD), "features": (3, squares("decoder_features"))},
        ),
        ("lwf-mc", {"weight": 4}, {"bce": (1, BCE), "kd": (4, BINARY_KD)}),
        ("lwf-mc-d", {}, {"bce": (1, labeled(pixel_mixed))}),
        ("lwf-mc-c", {}, {"bce": (1, labeled(partial(pixel_mixed, labeled_background=True)))}),
    ],
)
def test_losses_are_weighted_means_over_pixels(seen, method, values, terms):
    kind = METHODS[method]
    found = kind(kind.Config(**values), GROWTH).losses(*seen)
    assert {name: value.item() for name, value in found.items()} == {
        name: pytest.approx(weight * mean(*seen), rel=1e-9)
        for name, (weight, mean) in terms.items()
    }


def test_lwf_mc_c_and_d_differ_exactly_in_the_background_channel(seen):
    _, student, _ = seen
    gradients = []
    for name in ("lwf-mc-c", "lwf-mc-d"):
        (loss,) = METHODS[name](METHODS[name].Config(), GROWTH).losses(*seen).values()
        gradients.append(torch.autograd.grad(loss, student.logits)[0])
    assert torch.equal(gradients[0][:, 1:], gradients[1][:, 1:])
    assert not torch.isclose(gradients[0][:, 0], gradients[1][:, 0]).any()


@pytest.mark.parametrize("name", ["lwf-mc", "lwf-mc-c", "lwf-mc-d"])
def test_step_0_of_lwf_mc_is_the_binary_cross_entropy(seen, name):
    batch, student, teacher = seen
    found = METHODS[name](METHODS[name].Config(), FIRST).losses(batch, student, None)
    wanted = pytest.approx(BCE(batch, student, teacher))
    assert {key: value.item() for key, value in found.items()} == {"bce": wanted}


# Those that look at the classifier's rows as well are in test_later.py.
BY_OUTPUTS = [name for name, kind in METHODS.items() if kind.uses_teacher]
BY_OUTPUTS = [name for name in BY_OUTPUTS if name not in ("dkd", "star")]


@pytest.mark.parametrize("name", BY_OUTPUTS)
def test_no_gradient_reaches_the_teacher(seen, name):
    batch, student, teacher = seen
    losses = METHODS[name](METHODS[name].Config(), GROWTH).losses(batch, student, teacher)
    (gradient,) = torch.autograd.grad(sum(losses.values()), teacher.logits, allow_unused=True)
    assert gradient is None


@pytest.mark.parametrize("name", METHODS)
def test_weights_are_those_of_the_papers(name):
    paper = {
        "ewc": [500],
        "pi": [500],
        "rw": [100],
        "lwf": [100],
        "lwf-mc": [10],
        "ilt": [100, 100],
        "mib": [10],
        "plop": [0.01],
        "ewf": [10],
        "lgkd": [10],
        "dkd": [5, 5],
        "star": [5],
        "duo": [10],
    }
    config = METHODS[name].Config()
    assert [getattr(config, key) for key in METHODS[name].tunable] == paper.get(name, [])


def slow_unknown(y: int, num_old: int) -> int:
    if y == IGNORE_INDEX:
        return NOT_COUNTED
    if y == 0:
        return 1
    return NO_CHANNEL if y < num_old else 2 + y - num_old


@pytest.mark.parametrize("num_old", [1, 4])
def test_background_becomes_unknown(num_old: int) -> None:
    g = torch.Generator().manual_seed(0)
    values = torch.tensor([0, *range(num_old + 2), IGNORE_INDEX], dtype=torch.uint8)
    targets = values[torch.randint(0, len(values), (2, 6, 7), generator=g)]
    expected = [slow_unknown(y, num_old) for y in targets.flatten().tolist()]
    assert unknown_targets(targets, num_old).flatten().tolist() == expected


def test_background_and_unknown_count_as_one() -> None:
    g = torch.Generator().manual_seed(0)
    logits, unknown = (torch.randn(2, c, 8, 8, generator=g).double() * 3 for c in (4, 1))
    probabilities = logits.sigmoid()
    probabilities[:, :1] += unknown.sigmoid()
    merged = merge_unknown(logits, unknown)
    sum_is_possible = probabilities[:, 0] < 1 - 1e-6
    torch.testing.assert_close(
        merged.sigmoid().amax(1)[sum_is_possible], probabilities.amax(1)[sum_is_possible]
    )
    # Beyond a sum of 1 a class wins only if it is all but sure
    sure = probabilities[:, 1:].amax(1) > 1 - 1e-6
    assert torch.equal(merged.argmax(1)[~sure], probabilities.argmax(1)[~sure])
