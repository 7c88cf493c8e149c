"""What the ledger's sums cost beside the forward pass, and how a step grows with those before it.

    python benchmarks/ledger.py --threads 1

Sums: EfficientNet-Lite0 with random weights on 16 generated scenes of 160 pixels with four labeled
classes, without masks, against the forward pass of the same images. Growth: 100 steps of one class
each on a tiny network, masks included; the time of the last ten steps against that of the first ten
after step 0, and the size of what is kept for each class.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from functools import partial

import torch
from torch import Tensor

from measuring import Row, command, take_turns
from methods import GivenStep
from nacre.data.scenes import render
from nacre.labels.channels import from_background
from nacre.losses.pixel_sums import PixelSums
from nacre.methods import METHODS, Batch
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.utils.system import keep_freed_memory

LEDGER = METHODS["ledger"]
LABELED = 4


def scenes(count: int, size: int) -> tuple[Tensor, Tensor]:
    """Return scenes with targets, of which the first few kinds are labeled."""
    pairs = [render(1, i, size) for i in range(count)]
    images = torch.stack([torch.from_numpy(image).permute(2, 0, 1) for image, _ in pairs])
    targets = torch.stack([torch.from_numpy(mask) for _, mask in pairs])
    return images, targets.masked_fill(targets > LABELED, 0)


def cost_of_sums(stride: int, backbone: str, size: int, count: int, rounds: int) -> Row:
    """Return the time of joining the stages and adding up, over that of the forward pass."""
    method = LEDGER(LEDGER.Config(grid_stride=stride), from_background(0, 1))
    model = method.network_config(DeepLabConfig(backbone=backbone))
    network = build_network(model, LABELED + 1, size, load=False).eval()
    network.to(memory_format=torch.channels_last)
    images, targets = scenes(count, size)
    head = network.decoder
    with torch.no_grad():
        stages, sums = network.read_maps(images), PixelSums()

        def add() -> None:
            maps, rows, coarse = head.parts(stages)
            sums.add(maps, rows, targets, coarse)

        jobs = {"forward": partial(network.read_maps, images), "sums": add}
        seconds = take_turns(jobs, rounds, often=("sums",))
    return Row(
        f"sums of the ledger, stride {stride}: time over the forward pass",
        seconds["sums"] / seconds["forward"],
        {16: 0.15, 8: 0.5}[stride],
        "most",
        {f"{name} ms per image": 1e3 * value / count for name, value in seconds.items()},
    )


def one_class(channel: int) -> Iterator[Batch]:
    """Yield a batch of noise with one labeled class."""
    g = torch.Generator().manual_seed(channel)
    images = torch.randint(0, 256, (8, 3, 64, 64), generator=g, dtype=torch.uint8)
    targets = torch.zeros(8, 64, 64, dtype=torch.uint8)
    targets[:, 16:48, 16:48] = channel
    yield Batch(images, targets)


def growth(steps: int) -> list[Row]:
    """Learn steps of one class; return how the last ones compare with the first."""
    method = LEDGER(LEDGER.Config(), from_background(0, 1))
    model = method.network_config(DeepLabConfig(backbone="tiny"))
    network: DeepLab = build_network(model, 2, 64, load=False).eval()
    seconds = []
    for k in range(steps + 1):
        began = time.process_time()
        if k:
            state, method = method.state(), LEDGER(LEDGER.Config(), from_background(k + 1, k + 2))
            method.load_state(state)
            method.grow(network, 1)
        images = partial(one_class, k + 1)
        added = from_background(k and k + 1, k + 2)
        step = GivenStep(added, network, images, k)
        method.fit(step)
        seconds.append(time.process_time() - began)
    few = min(10, steps)
    first, last = sum(seconds[1 : few + 1]), sum(seconds[-few:])
    size = sum(value.nbytes for value in method.state().values())
    return [
        Row(
            f"{steps} steps of one class by the ledger: time of the last {few} over the first",
            last / first,
            None,
            "most",
            {"first s": first / few, "last s": last / few},
        ),
        Row(
            "kB kept per class and background of a step, tiny network",
            size / 1e3 / (2 * steps + 2),
            None,
            "most",
            {"rows": 2 * steps + 2, "kB": size / 1e3},
        ),
    ]


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the costs of the sums, and how steps grow."""
    keep_freed_memory()
    case = ("tiny", 64, 2) if tiny else ("lite0", 160, 16)
    sums = [cost_of_sums(stride, *case, rounds) for stride in (16, 8)]
    return [*sums, *growth(4 if tiny else 100)]


if __name__ == "__main__":
    command(measure, __doc__)
