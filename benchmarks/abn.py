"""Memory and time of in-place ABN, as ratios in one run.

    python benchmarks/abn.py                       # ResNet-50 with head, 2 x 3 x 256 x 256

In-place ABN is compared with batch norm + leaky ReLU, which works in place. Memory is what autograd
keeps for the backward pass: the distinct storages of its saved tensors, without the parameters. The
networks take turns, and the shortest time of each counts.
"""

from __future__ import annotations

from functools import partial

import torch

from measuring import Row, command, take_turns
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab

SETTINGS: dict[str, dict[str, object]] = {
    "BN + leaky ReLU": {"norm": "abn"},
    "in-place ABN": {"norm": "iabn"},
}


def kept_bytes(network: torch.nn.Module, images: torch.Tensor) -> int:
    """Return what a training step keeps for its backward pass; shared memory counts once."""
    own = {storage(value) for value in (*network.parameters(), *network.buffers())}
    kept: dict[int, torch.Tensor] = {}  # held, so that no address is given to another tensor

    def keep(value: torch.Tensor) -> torch.Tensor:
        if storage(value) not in own:
            kept[storage(value)] = value
        return value

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda value: value):
        network.train()(images)
    return sum(value.untyped_storage().nbytes() for value in kept.values())


def storage(value: torch.Tensor) -> int:
    address: int = value.untyped_storage()._cdata
    return address


def build(depth: int, **values: object) -> DeepLab:
    torch.manual_seed(0)
    config = DeepLabConfig.model_validate({"backbone": f"resnet{depth}", **values})
    return build_network(config, 21, crop=256)


def step(network: DeepLab, images: torch.Tensor) -> None:
    network(images).logits.square().mean().backward()
    network.zero_grad(set_to_none=True)


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return memory and time against batch norm and leaky ReLU."""
    size, depths = (64, [18]) if tiny else (256, [50])
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    return [row for depth in depths for row in compare(depth, images, rounds)]


def compare(depth: int, images: torch.Tensor, rounds: int) -> list[Row]:
    networks = {name: build(depth, **values) for name, values in SETTINGS.items()}
    kept = {name: kept_bytes(network, images) / 2**20 for name, network in networks.items()}
    for network in networks.values():
        step(network, images)  # warm-up
    jobs = {name: partial(step, network, images) for name, network in networks.items()}
    seconds = take_turns(jobs, rounds)
    base, *others = SETTINGS
    rows = []
    for name in others:
        what = f"ResNet-{depth} with head, {name}: "
        mib = {f"{one} MiB": kept[one] for one in (base, name)}
        rows.append(Row(f"{what}memory kept", kept[name] / kept[base], behind=mib))
        times = {f"{one} s": seconds[one] for one in (base, name)}
        rows.append(Row(f"{what}time of a step", seconds[name] / seconds[base], behind=times))
    return rows


if __name__ == "__main__":
    command(measure, __doc__, rounds=5)
