"""Time of an update with each method against fine-tuning's, as ratios in one run.

    python benchmarks/methods.py                          # ResNet-18, 8 x 3 x 160 x 160, one thread
    python benchmarks/methods.py --backbone resnet101 --crop 512 --batch 2 --rounds 3

An update is everything from images to changed parameters, in the first incremental step. Each
method takes turns with fine-tuning; times are the shortest, in processor time with one thread.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch

from nacre.data.loading import BatchOrder, Sample
from nacre.methods import METHODS
from nacre.models.config import ModelConfig
from nacre.models.network import build_network
from nacre.training.config import TrainConfig
from nacre.training.learn import Learner
from nacre.training.processes import Precision, Processes

OLD, NEW = 16, 5


def learner_of(name: str, backbone: str, crop: int, batch: int) -> Learner:
    """Return the beginning of the first incremental step of a method."""
    torch.manual_seed(0)
    network = build_network(ModelConfig(backbone=backbone, norm="iabn"), OLD, crop, load=False)
    kind = METHODS[name]
    before = kind(kind.Config(), 0)
    before.begin_step(network)
    before.end_step(network)
    method = kind(kind.Config(), OLD)
    method.load_state(before.state())
    teacher = copy.deepcopy(network).eval() if kind.uses_teacher else None
    method.grow(network.classifier, NEW)
    learner = Learner(
        step=1,
        network=network,
        teacher=teacher,
        method=method,
        config=TrainConfig(batch=batch),
        lr=1e-4,
        order=BatchOrder(images=batch, batch=batch, epochs=1000, seed=1),
        processes=Processes(0, 1, torch.device("cpu")),
        precision=Precision(torch.float32, "a benchmark"),
    )
    method.begin_step(network)
    return learner


def shortest(one: Learner, other: Learner, parts: list[Sample], rounds: int) -> tuple[float, float]:
    """Return the shortest time of an update with each of two methods that take turns."""
    clock = time.process_time if torch.get_num_threads() == 1 else time.perf_counter
    times: tuple[list[float], list[float]] = ([], [])
    for _ in range(rounds):
        for learner, spent in zip((one, other), times, strict=True):
            start = clock()
            learner.update(parts)
            spent.append(clock() - start)
            learner.iteration += 1
    return min(times[0]), min(times[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--backbone", default="resnet18")
    parser.add_argument("--crop", type=int, default=160)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    size = (given.batch, given.crop, given.crop)
    images = torch.randint(0, 256, (given.batch, 3, *size[1:]), dtype=torch.uint8)
    labels = OLD * torch.randint(0, 2, size, dtype=torch.uint8)
    case = (given.backbone, given.crop, given.batch)
    print(f"{given.backbone}, {' x '.join(str(n) for n in images.shape)}")
    base = learner_of("ft", *case)
    for name, kind in METHODS.items():
        if name == "ft" or kind.merges_steps:
            continue
        learner = learner_of(name, *case)
        alone, seconds = shortest(base, learner, [(images, labels)], given.rounds)
        print(
            f"  {name:10} {seconds:7.3f} s an update, fine-tuning {alone:7.3f} s"
            f" ({seconds / alone:.2f})"
        )


if __name__ == "__main__":
    main()
