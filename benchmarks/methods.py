"""Time and memory of an update with each method against fine-tuning's, as ratios in one run.

    python benchmarks/methods.py                   # ResNet-18, 8 x 3 x 160 x 160
    python benchmarks/methods.py --threads 1       # processor time: steadier on a busy machine

An update is everything from images to changed parameters, in the first incremental step of 21
classes, 16 of them old. MiB is measured with ResNet-50 and 4 images of 256 pixels, too, and so
are parts that freeze: fine-tuning and MiB with a frozen backbone. Memory is that of the tensors on
the device which the backward pass keeps, by torch's own count of saved tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any, cast

import torch

from measuring import Row, apart, command, take_turns
from nacre.data.dataset import Sample, StepSampler
from nacre.data.transforms import ImagesConfig
from nacre.labels.channels import Growth, first_channels, from_background
from nacre.methods import METHODS, Batch, Step
from nacre.methods.components import find_thresholds, shared_modules_of
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig, ModelConfig
from nacre.models.network import Network
from nacre.training.config import TrainConfig
from nacre.training.loop import begin, make_teacher, update
from nacre.training.trainer import Trainer
from nacre.utils.distributed import Distributed
from nacre.utils.system import keep_freed_memory

OLD, NEW = 16, 5

FROZEN = {
    "with a frozen backbone": ["backbone", "batch_norm"],
    "with frozen batch norm": ["batch_norm"],
}
"""What is measured, too."""


class GivenStep(Step):
    """A step whose batches are given.

    Args:
        growth: What it adds.
        network: The student.
        given: Opens a pass over its images.
        number: Its number.
        train: How it is learned.
    """

    def __init__(
        self,
        growth: Growth,
        network: Network,
        given: Callable[[], Iterator[Batch]],
        number: int = 0,
        train: TrainConfig | None = None,
    ) -> None:
        names = tuple(f"class {i}" for i in range(1, len(growth.origins)))
        super().__init__(
            number=number,
            channels=first_channels(names, {}),
            growth=growth,
            data=cast(Any, None),
            sampler=StepSampler(num_images=4, batch_size=4, epochs=1, seed=0, total=1000),
            config=SimpleNamespace(train=train or TrainConfig(), images=ImagesConfig()),
            dist=Distributed(0, 1, torch.device("cpu")),
            network=network,
        )
        self.given = given

    def batches(self) -> Iterator[Batch]:
        """Open a pass."""
        return self.given()

    images = batches


def trainer_of(
    name: str,
    model: ModelConfig,
    crop: int,
    batch: int,
    old: list[int] | None = None,
    new: int = 5,
) -> Trainer:
    """Return the beginning of an incremental step of a method."""
    torch.manual_seed(0)
    old = old or [OLD]
    network = build_network(model, old, crop, load=False)
    first, growth = from_background(0, sum(old)), from_background(sum(old), sum(old) + new)
    images = partial(_noise, crop, sum(old))
    train = TrainConfig(batch_size=batch, lr=1e-4, incremental_lr=1e-4, precision="float32")
    base = GivenStep(first, network, lambda: images(1, sum(old)), train=train)
    kind, frozen = METHODS[name.partition(" ")[0]], FROZEN.get(name.partition(" ")[2])
    config = kind.Config(name=kind.name, **({"freeze": frozen} if frozen else {}))
    before = kind(config, first)
    begin(before, base)
    before.end_step(base)
    method = kind(config, growth)
    method.load_state(before.state())
    kept = network.state_dict() if config.fusion != "off" else {}
    weights_before = {key: value.clone() for key, value in kept.items()}
    teacher = make_teacher(network, shared_modules_of(method)) if method.needs_teacher else None
    method.grow(network, new)
    step = GivenStep(growth, network, lambda: images(sum(old), sum(old) + new), len(old), train)
    step.teacher, step.weights_before = teacher, weights_before
    trainer = begin(method, step)
    find_thresholds(method, step)
    return trainer


def _noise(crop: int, old: int, first: int, end: int) -> Iterator[Batch]:
    (images, targets, *_), *_ = make_batch(crop, 2, end, first)
    yield Batch(images, targets)


def make_batch(crop: int, batch: int, classes: int = OLD + NEW, old: int = OLD) -> list[Sample]:
    """Images of noise, half of each background and half new classes."""
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
        update(trainer, micro_batches)  # warm-up
    updates = {name: partial(update, one, micro_batches) for name, one in trainers.items()}
    return take_turns(updates, rounds)


def kept_by(name: str, case: tuple[str, int, int]) -> float:
    """Return how many MiB the student's forward pass keeps for the backward pass."""
    backbone, crop, batch = case
    trainer = trainer_of(name, DeepLabConfig(backbone=backbone, norm="iabn"), crop, batch)
    images = make_batch(crop, batch)[0][0]
    kept: dict[int, tuple[int, torch.Tensor]] = {}
    state = (*trainer.network.parameters(), *trainer.network.buffers())
    own = {value.untyped_storage()._cdata for value in state}

    def keep(value: torch.Tensor) -> torch.Tensor:
        storage = value.untyped_storage()
        if storage._cdata not in own:
            # held, so that its address is not given to another one
            kept[storage._cdata] = (storage.nbytes(), value)
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        trainer.student(images, with_stages=trainer.method.uses_stages)
    return sum(size for size, _ in kept.values()) / 2**20


def compare(
    names: list[str], case: tuple[str, int, int], rounds: int, goal: float | None = None
) -> list[Row]:
    backbone, crop, batch = case
    seconds = apart(times, ["ft", *names], case, rounds)
    kept = {name: kept_by(name, case) for name in ["ft", *names]}
    memory = [
        Row(
            f"update of {name}, {backbone}, {batch} x {crop} x {crop}: kept against fine-tuning",
            kept[name] / kept["ft"],
            None,
            "most",
            {f"{one} MiB": kept[one] for one in ("ft", name)},
        )
        for name in names
    ]
    return memory + [
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
    """Return the cost of an update of every method that makes updates."""
    large, small = (("resnet50", 256, 4), ("resnet18", 160, 8))
    if tiny:
        large = small = ("tiny", 32, 2)
    # The updates of duo are those of mib.
    updating = {
        name for name, kind in METHODS.items() if kind.learns_by_gradient and kind.name != "duo"
    }
    others = [name for name in METHODS if name in updating - {"ft"} and not METHODS[name].is_joint]
    frozen = [f"{name} {parts}" for name in ("ft", "mib") for parts in FROZEN]
    return [*compare(["mib"], large, rounds, 1.45), *compare(others + frozen, small, rounds)]


if __name__ == "__main__":
    command(measure, __doc__)
