"""Memory, time and digits of the norms, as ratios in one run.

    python benchmarks/abn.py                       # ResNet-50 with head, 2 x 3 x 256 x 256

In-place ABN stands against batch norm + leaky ReLU. Memory is what autograd keeps for the backward
pass: the distinct storages among its saved tensors, without the parameters. The other side is as
lean as torch allows: its leaky ReLU works in place. The networks take turns, and the shortest time
of each counts.

The digits are those of 1 / std and of all gradients in the fast layout (channels-last) against
float64, beside torch's own kernel in both layouts.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from unittest import mock

import torch
from torch import Tensor

from measuring import Row, command, take_turns
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.norm import ABN

SETTINGS: dict[str, dict[str, object]] = {
    "BN + leaky ReLU": {"norm": "abn"},
    "in-place ABN": {"norm": "iabn"},
}
LAST = torch.channels_last


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
    """Return memory and time against batch norm and leaky ReLU, and digits against float64."""
    size, depths = (64, [18]) if tiny else (256, [50])
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    rows = [row for depth in depths for row in compare(depth, images, rounds)]
    layers = [(2, 8, 32)] if tiny else [(8, 64, 128), (4, 256, 64)]
    for shape in layers:
        rows += digits_of_a_layer(*shape, rounds=rounds)
    return rows + [row for depth in depths for row in digits_of_a_network(depth, images, rounds)]


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


def by_torch() -> AbstractContextManager[object]:
    """Leave every norm to torch's kernel while it lasts."""
    return mock.patch("nacre.models.norm.lies_in_rows", return_value=False)


def digits_of_a_layer(images: int, channels: int, side: int, rounds: int) -> list[Row]:
    """Return the error of 1 / std of one layer, and its time against torch's kernel."""
    torch.manual_seed(0)
    x = torch.randn(images, channels, side, side).mul_(2).add_(1).relu_()
    exact = (x.double().var((0, 2, 3), correction=0) + 1e-5).rsqrt()
    fast = x.to(memory_format=LAST)

    def error(values: Tensor) -> float:
        # A running variance of momentum 1 is the batch's own.
        norm = ABN(channels, momentum=1.0)
        norm(values)
        count = values.numel() / channels
        scale = (norm.running_var.double() * (count - 1) / count + 1e-5).rsqrt()
        return float(((scale - exact) / exact).abs().max())

    def pass_both(values: Tensor) -> Callable[[], None]:
        norm, leaf = ABN(channels), values.detach().requires_grad_()
        dy = torch.randn_like(values)
        return lambda: norm(leaf).backward(dy)

    def torchs(job: Callable[[], None]) -> None:
        with by_torch():
            job()

    ours = error(fast)
    with by_torch():
        theirs, contiguous = error(fast), error(x)
    job = pass_both(fast)
    seconds = take_turns({"nacre": job, "torch": partial(torchs, job)}, rounds)
    name = f"batch norm of {images} x {channels} x {side} x {side}, channels-last: "
    errors = {"nacre": ours, "torch": theirs, "torch, contiguous": contiguous}
    return [
        Row(f"{name}error of 1 / std against contiguous", ours / contiguous, 10, "most", errors),
        Row(
            f"{name}time against torch's kernel",
            seconds["nacre"] / seconds["torch"],
            behind={f"{one} s": value for one, value in seconds.items()},
        ),
    ]


def digits_of_a_network(depth: int, images: Tensor, rounds: int) -> list[Row]:
    """Return the error of a network's whole gradient, and its time against torch's kernels."""
    exact = gradients(build(depth, norm="abn").double(), images)
    fast = build(depth, norm="abn").to(memory_format=LAST)  # type: ignore[call-overload]
    laid = images.to(memory_format=LAST)

    def error(network: DeepLab, values: Tensor) -> float:
        return float((gradients(network, values) - exact).norm() / exact.norm())

    def torchs() -> None:
        with by_torch():
            step(fast, laid)

    ours = error(fast, laid)
    with by_torch():
        theirs, contiguous = error(fast, laid), error(build(depth, norm="abn"), images)
    seconds = take_turns({"nacre": lambda: step(fast, laid), "torch": torchs}, rounds)
    name = f"ResNet-{depth} with head, channels-last: "
    errors = {"nacre": ours, "torch": theirs, "torch, contiguous": contiguous}
    times = {f"{one} s": value for one, value in seconds.items()}
    ratio = seconds["nacre"] / seconds["torch"]
    return [
        Row(f"{name}error of the gradient against torch's", ours / theirs, behind=errors),
        Row(f"{name}time of a step against torch's kernels", ratio, 1.1, "most", times),
    ]


def gradients(network: DeepLab, images: Tensor) -> Tensor:
    """Return the gradients of all parameters as one vector, in float64."""
    network.train()
    network.zero_grad(set_to_none=True)
    network(images).logits.square().mean().backward()
    grads = [one.grad for one in network.parameters() if one.grad is not None]
    return torch.cat([one.double().flatten() for one in grads])


if __name__ == "__main__":
    command(measure, __doc__, rounds=5)
