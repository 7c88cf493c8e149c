"""The second step of a method on a tiny network and a few noisy pictures, without data or files."""

from dataclasses import replace

import torch

from nacre.labels.channels import from_background
from nacre.methods import METHODS, Batch, Step
from nacre.methods.components import shared_part
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.training.config import TrainConfig
from nacre.training.loop import begin, finish, survey
from nacre.training.step import make_teacher
from nacre.utils.device import Precision
from nacre.utils.distributed import Distributed

OLD, NEW, SIDE = 3, 2, 32
FIRST, GROWTH = from_background(0, OLD), from_background(OLD, OLD + NEW)
ALONE = Distributed(0, 1, torch.device("cpu"))


def pictures(targets, seed, count=4):
    """A batch whose targets are drawn from a list."""
    g = torch.Generator().manual_seed(seed)
    images = torch.randint(0, 256, (count, 3, SIDE, SIDE), generator=g, dtype=torch.uint8)
    values = torch.tensor(targets, dtype=torch.uint8)
    blocks = values[torch.randint(0, len(targets), (count, 4, 4), generator=g)]
    return images, blocks.repeat_interleave(8, 1).repeat_interleave(8, 2)


def second_step(name, norm="bn", lr=0.01, *, dist=ALONE, train=(), count=3, held=(), **values):
    """Return the trainer of a method's second step and the network as step 0 left it.

    `dist` says where, `train` are keys of the config; step 0 has `count` updates; before step 1 a
    user freezes parameters whose names begin with one of `held`.
    """
    torch.manual_seed(5)
    kind = METHODS[name]
    config = kind.Config(name=name, **values)
    before = kind(config, FIRST)
    model = DeepLabConfig(backbone="tiny", decoder_channels=8, norm=norm)
    network = build_network(before.network_config(model), OLD, SIDE).to(dist.device)
    first = [pictures([0, 0, 1, 2], seed) for seed in range(count)]
    places = [[x.to(dist.device) for x in sample] for sample in first]
    base = Step(0, FIRST, network, None, dist, 3, None, 3, lambda: passes(places))
    base = replace(base, open_images=lambda: passes(places))
    learner = trainer_of(base, before, lr, train)
    for sample in first:
        learner.update([sample])
    finish(learner)
    method = kind(config, GROWTH)
    if before.state():
        method.load_state(before.state())
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and not name.startswith(tuple(held)))
    teacher = make_teacher(network, shared_part(method)) if method.needs_teacher else None
    state = {key: value.clone() for key, value in network.state_dict().items()}
    method.grow(network, NEW)
    second = [pictures([0, 0, 3, 4, 255], 10 + seed) for seed in range(3)]
    later = [[x.to(dist.device) for x in sample] for sample in second[:count]]
    step = replace(
        base,
        index=1,
        growth=GROWTH,
        teacher=teacher,
        open_batches=lambda: passes(later),
        weights_before=state if method.config.fusion != "off" else {},
    )
    trainer = trainer_of(step, method, lr, train)
    survey(method, step)
    return trainer, state, second


def may_be(hidden):
    """N,C,C: background may be itself and what hides, every other target itself alone."""
    rows = torch.eye(hidden.shape[1], dtype=torch.bool).repeat(len(hidden), 1, 1)
    rows[:, 0] |= hidden
    return rows


def passes(samples):
    for images, targets in samples:
        yield Batch(images, targets)


def trainer_of(step, method, lr, train=()):
    config = TrainConfig(**{"batch_size": 4, "lr": lr, "precision": "float32", **dict(train)})
    precision = Precision(getattr(torch, config.precision), "a test")
    return begin(method, step, config, lr, precision)
