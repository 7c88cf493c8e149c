"""The second step of a method on a tiny network and a few noisy images, without data or files."""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from nacre.data.dataset import StepSampler
from nacre.data.transforms import ImagesConfig
from nacre.labels.channels import from_background
from nacre.methods import METHODS, Batch, Step
from nacre.methods.components import find_thresholds, shared_modules_of
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.training.config import TrainConfig
from nacre.training.loop import begin, finish, make_teacher, update
from nacre.utils.distributed import Distributed

OLD, NEW, SIDE = 3, 2, 32
FIRST, GROWTH = from_background(0, OLD), from_background(OLD, OLD + NEW)
ALONE = Distributed(0, 1, torch.device("cpu"))


def updates(count, per_epoch=1):
    """So many updates of 4 images."""
    return StepSampler(num_images=4 * per_epoch, batch_size=4, epochs=1, seed=0, total=count)


def recipe(**train):
    """What a trainer reads of a config."""
    return SimpleNamespace(train=TrainConfig(**train), images=ImagesConfig())


@dataclass(kw_only=True)
class GivenStep(Step):
    """A step whose batches are given."""

    number: int = 0
    channels: Any = None
    data: Any = None
    sampler: StepSampler = field(default_factory=lambda: updates(1))
    config: Any = None
    dist: Distributed = ALONE
    given: Any = ()
    held: Any = ()

    def batches(self):
        return self.given() if callable(self.given) else iter(self.given)

    images = batches

    def held_out(self):
        return self.held() if callable(self.held) else iter(self.held)


def random_images(targets, seed, count=4):
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
    first = [random_images([0, 0, 1, 2], seed) for seed in range(count)]
    places = [[x.to(dist.device) for x in sample] for sample in first]
    config_of_training = recipe(
        **{"batch_size": 4, "lr": lr, "incremental_lr": lr, "precision": "float32", **dict(train)}
    )
    base = GivenStep(
        growth=FIRST,
        network=network,
        sampler=updates(3, 3),
        config=config_of_training,
        dist=dist,
        given=lambda: passes(places),
    )
    learner = begin(before, base)
    for sample in first:
        update(learner, [sample])
    finish(learner)
    method = kind(config, GROWTH)
    if before.state():
        method.load_state(before.state())
    for name, parameter in network.named_parameters():
        parameter.requires_grad_(parameter.requires_grad and not name.startswith(tuple(held)))
    teacher = make_teacher(network, shared_modules_of(method)) if method.needs_teacher else None
    state = {key: value.clone() for key, value in network.state_dict().items()}
    method.grow(network, NEW)
    second = [random_images([0, 0, 3, 4, 255], 10 + seed) for seed in range(3)]
    later = [[x.to(dist.device) for x in sample] for sample in second[:count]]
    step = GivenStep(
        number=1,
        growth=GROWTH,
        network=network,
        teacher=teacher,
        sampler=updates(3, 3),
        config=config_of_training,
        dist=dist,
        given=lambda: passes(later),
        weights_before=state if method.config.fusion != "off" else {},
    )
    trainer = begin(method, step)
    find_thresholds(method, step)
    return trainer, state, second


def may_be(hidden):
    """N,C,C: background may be itself and what hides, every other target itself alone."""
    rows = torch.eye(hidden.shape[1], dtype=torch.bool).repeat(len(hidden), 1, 1)
    rows[:, 0] |= hidden
    return rows


def passes(samples):
    for images, targets in samples:
        yield Batch(images, targets)
