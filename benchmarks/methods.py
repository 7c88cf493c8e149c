"""Time of an update with each method against fine-tuning's, as ratios in one run.

    python benchmarks/methods.py                   # ResNet-18, 8 x 3 x 160 x 160
    python benchmarks/methods.py --threads 1       # processor time: steadier on a busy machine

An update is everything from images to changed parameters, in the first incremental step of 21
classes, 16 of them old. MiB is measured with ResNet-50 and 4 pictures of 256 pixels, too.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial

import torch

from measuring import Row, apart, command, take_turns
from nacre.data.dataset import Sample
from nacre.methods import METHODS, Step
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.training.config import TrainConfig
from nacre.training.trainer import Trainer
from nacre.utils.device import Precision
from nacre.utils.distributed import Distributed
from nacre.utils.malloc import keep_freed_memory

OLD, NEW = 16, 5


def trainer_of(
    name: str,
    model: DeepLabConfig,
    crop: int,
    batch: int,
    old: list[int] | None = None,
    new: int = 5,
) -> Trainer:
    """Return the beginning of an incremental step of a method."""
    torch.manual_seed(0)
    old = old or [OLD]
    network = build_network(model, old, crop, load=False)
    names = tuple(f"class {at}" for at in range(sum(old) + new))
    dist = Distributed(0, 1, torch.device("cpu"))
    base = Step(0, names[: sum(old)], 0, network, None, dist, iterations=1000)
    kind = METHODS[name]
    before = kind(kind.Config(), 0)
    before.begin_step(base)
    before.end_step(base)
    method = kind(kind.Config(), sum(old))
    method.load_state(before.state())
    teacher = None
    if kind.uses_teacher:
        teacher = copy.deepcopy(network).eval().requires_grad_(False)
    method.grow(network, new)
    step = replace(base, index=len(old), class_names=names, num_old=sum(old), teacher=teacher)
    precision = Precision(torch.float32, "a benchmark")
    trainer = Trainer(step, method, TrainConfig(batch_size=batch), 1e-4, precision)
    method.begin_step(step)
    return trainer


def make_batch(crop: int, batch: int, classes: int = OLD + NEW, old: int = OLD) -> list[Sample]:
    """Pictures of noise, half of each background and half new classes."""
    g = torch.Generator().manual_seed(0)
    images = torch.randint(0, 256, (batch, 3, crop, crop), dtype=torch.uint8, generator=g)
    targets = torch.randint(old, classes, (batch, crop, crop), dtype=torch.int16, generator=g)
    targets[torch.rand(targets.shape, generator=g) < 0.5] = 0
    return [(images, targets.to(torch.uint8) if classes <= 255 else targets)]


def times(names: list[str], case: tuple[str, int, int], rounds: int) -> dict[str, float]:
    """Return the time of an update by each of some methods."""
    backbone, crop, batch = case
    keep_freed_memory()
    model = DeepLabConfig(backbone=backbone, norm="iabn")
    micro_batches = make_batch(crop, batch)
    trainers = {name: trainer_of(name, model, crop, batch) for name in names}
    for trainer in trainers.values():
        trainer.update(micro_batches)  # warm-up
    updates = {name: partial(one.update, micro_batches) for name, one in trainers.items()}
    return take_turns(updates, rounds)


def compare(
    names: list[str], case: tuple[str, int, int], rounds: int, goal: float | None = None
) -> list[Row]:
    backbone, crop, batch = case
    seconds = apart(times, ["ft", *names], case, rounds)
    return [
        Row(
            f"update of {name}, {backbone}, {batch} x {crop} x {crop}: time against fine-tuning",
            seconds[name] / seconds["ft"],
            goal,
            "most",
            {f"{one} s": seconds[one] for one in ("ft", name)},
        )
        for name in names
    ]


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the cost of every method."""
    large, small = (("resnet50", 256, 4), ("resnet18", 160, 8))
    if tiny:
        large = small = ("tiny", 32, 2)
    others = [name for name, kind in METHODS.items() if name != "ft" and not kind.is_joint]
    return [*compare(["mib"], large, rounds, 1.45), *compare(others, small, rounds)]


if __name__ == "__main__":
    command(measure, __doc__)
