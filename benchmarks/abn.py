"""Memory and time of in-place ABN against batch norm + leaky ReLU, as ratios in one run.

    python benchmarks/abn.py                       # ResNet-50 and 101 with head, 2 x 3 x 256 x 256
    python benchmarks/abn.py --depth 50 --rounds 3

Memory is what autograd keeps for the backward pass: the distinct storages among its saved
tensors, without the parameters. The other side is as lean as torch allows: its leaky ReLU works
in place. The two networks take turns, and times are medians.
"""

from __future__ import annotations

import argparse
import statistics
import time

import torch

from nacre.models.config import ModelConfig
from nacre.models.describe import kept_bytes
from nacre.models.network import Network, build_network

SETTINGS: dict[str, dict[str, object]] = {
    "BN + leaky ReLU": {"norm": "abn"},
    "in-place ABN": {"norm": "iabn"},
    "in-place ABN + checkpointing": {"norm": "iabn", "checkpointing": True},
}


def build(depth: int, **values: object) -> Network:
    torch.manual_seed(0)
    config = ModelConfig.model_validate({"backbone": f"resnet{depth}", **values})
    return build_network(config, 21, crop=256)


def step_time(network: Network, images: torch.Tensor) -> float:
    start = time.perf_counter()
    network(images).logits.square().mean().backward()
    network.zero_grad(set_to_none=True)
    return time.perf_counter() - start


def compare(depth: int, images: torch.Tensor, rounds: int) -> None:
    networks = {name: build(depth, **values) for name, values in SETTINGS.items()}
    kept = {name: kept_bytes(network, images) for name, network in networks.items()}
    times: dict[str, list[float]] = {name: [] for name in networks}
    for turn in range(rounds + 1):
        for name, network in networks.items():
            seconds = step_time(network, images)
            if turn:  # the first is a warm-up
                times[name].append(seconds)
    base = next(iter(SETTINGS))
    print(f"ResNet-{depth} + head, {' x '.join(str(n) for n in images.shape)}")
    for name in networks:
        seconds = statistics.median(times[name])
        print(
            f"  {name:30} {kept[name] / 2**20:8.1f} MiB kept ({kept[name] / kept[base]:.2f})"
            f"  {seconds:6.2f} s a step ({seconds / statistics.median(times[base]):.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--depth", type=int, nargs="+", default=[50, 101])
    parser.add_argument("--batch", type=int, default=2)
    parser.add_argument("--size", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    images = torch.randint(0, 256, (args.batch, 3, args.size, args.size), dtype=torch.uint8)
    for depth in args.depth:
        compare(depth, images, args.rounds)


if __name__ == "__main__":
    main()
