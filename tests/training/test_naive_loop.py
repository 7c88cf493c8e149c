"""Twelve updates by the trainer against a loop written from the paper, in float64.

The loop upsamples all logits, takes the equations as sums of probabilities, and updates parameters
by hand: Nesterov momentum 0.9, weight decay 1e-4 and a learning rate that falls by the poly policy.
"""

import copy

import pytest
import torch
import torch.nn.functional as F

from nacre.methods import METHODS
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.training.loop import begin, make_teacher, update
from small_steps import GROWTH, NEW, OLD, SIDE, GivenStep, random_images, recipe, updates

UPDATES = 12
LR = 0.001
MOMENTUM, DECAY, POWER = 0.9, 1e-4, 0.9
NEAR = 1e-9
TINY_NORM = 1e-6
"""The smallest norm that differences are compared with: some tensors stay close to 0."""

BATCHES = [random_images([0, 0, 3, 4, 255], 10 + seed) for seed in range(UPDATES)]


def cross_entropy(q, targets):
    """Eq. 2 and 3: the mean over labeled pixels of -log of the probability of the label."""
    labeled = targets != 255
    chosen = q.gather(1, targets.where(labeled, torch.zeros_like(targets))[:, None])[:, 0]
    return -chosen.log()[labeled].sum() / labeled.sum()


def unbiased(q):
    """Eq. 4: the background is the sum of all that is old; old classes themselves have no label."""
    return torch.cat([q[:, :OLD].sum(1, keepdim=True), q[:, 1:]], 1)


def distill(p, q_old):
    """Eq. 5 with the mean over old channels, as the released code has it."""
    return -(p * q_old.log()).sum(1).mean() / OLD


def losses_ft(x, _, targets):
    return cross_entropy(x.softmax(1), targets)


def losses_lwf(x, old, targets):
    kd = distill(old.softmax(1), x[:, :OLD].softmax(1))  # eq. 6
    return cross_entropy(x.softmax(1), targets) + 100 * kd


def losses_mib(x, old, targets):
    q = x.softmax(1)
    background = q[:, :1] + q[:, OLD:].sum(1, keepdim=True)  # eq. 7
    kd = distill(old.softmax(1), torch.cat([background, q[:, 1:OLD]], 1))
    return cross_entropy(unbiased(q), targets) + 10 * kd


NAIVE = {"ft": losses_ft, "lwf": losses_lwf, "mib": losses_mib}


def full_size(output):
    return F.interpolate(output.logits, (SIDE, SIDE), mode="bilinear", align_corners=False)


def learn_naively(student, teacher, loss):
    """Make the updates by hand."""
    student.train()
    velocity = {}
    for iteration, (images, targets) in enumerate(BATCHES):
        lr = LR * (1 - iteration / UPDATES) ** POWER
        with torch.no_grad():
            old = full_size(teacher(images))
        student.zero_grad()
        loss(full_size(student(images)), old, targets.long()).backward()
        with torch.no_grad():
            for name, parameter in student.named_parameters():
                gradient = parameter.grad + DECAY * parameter
                velocity[name] = MOMENTUM * velocity.get(name, 0) + gradient
                parameter -= lr * (gradient + MOMENTUM * velocity[name])


def step_of(name, norm):
    """Return a method's second step in float64 and its teacher, before the first update."""
    torch.manual_seed(5)
    model = DeepLabConfig(backbone="tiny", decoder_channels=8, norm=norm)
    network = build_network(model, OLD, SIDE).double()
    for parameter in network.parameters():  # a teacher that is sure of something
        parameter.data *= 1.5
    before = copy.deepcopy(network).eval()
    method = METHODS[name](METHODS[name].Config(name=name), GROWTH)
    teacher = make_teacher(network, "nothing") if method.needs_teacher else None
    method.grow(network, NEW)
    step = GivenStep(
        number=1,
        growth=GROWTH,
        network=network.double(),
        teacher=teacher,
        sampler=updates(UPDATES),
        config=recipe(batch_size=4, incremental_lr=LR, precision="float32"),
    )
    return method, step, before


@pytest.mark.parametrize("norm", ["bn", "iabn"])
@pytest.mark.parametrize("name", NAIVE)
def test_the_trainer_learns_what_a_naive_loop_does(name, norm):
    method, step, before = step_of(name, norm)
    naive = copy.deepcopy(step.network)
    untouched = copy.deepcopy(naive)
    trainer = begin(method, step)
    for batch in BATCHES:
        update(trainer, [batch])
    learn_naively(naive, before, NAIVE[name])
    ours = step.network.state_dict()
    for key, expected in naive.state_dict().items():
        size = max(float(expected.double().norm()), TINY_NORM)
        assert ours[key].dtype == expected.dtype
        assert float((ours[key] - expected).double().norm()) <= NEAR * size, key
    pairs = zip(naive.parameters(), untouched.parameters(), strict=True)
    learned = [((after - first).norm() / first.norm()).item() for after, first in pairs]
    assert max(learned) > 1e-2, "something was learned"
