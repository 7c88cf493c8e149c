"""What both norms promise: small inputs, checkpoints, and that two processes equal one."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.abn import ABN, Activation
from nacre.models.inplace_abn import InPlaceABN

NORMS: dict[str, type[ABN] | type[InPlaceABN]] = {"abn": ABN, "iabn": InPlaceABN}
WEIGHT, BIAS = (1.5, -0.7, -0.4, 0.2), (-0.3, 0.1, 0.5, 0.0)

each_norm = pytest.mark.parametrize("norm", NORMS)


def make(norm: str, activation: Activation = "leaky_relu") -> Any:
    made = NORMS[norm](4, activation=activation)
    with torch.no_grad():
        made.weight.copy_(torch.tensor(WEIGHT))
        made.bias.copy_(torch.tensor(BIAS))
    return made


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return 2 + 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@each_norm
def test_one_value_a_channel_is_refused_with_the_batch_size(norm: str) -> None:
    one = torch.ones(1, 4, 1, 1)
    with pytest.raises(NacreError, match=r"one picture at a time .* 1 x 4 x 1 x 1.* 2 or more"):
        make(norm)(one)
    assert make(norm).eval()(one).shape == (1, 4, 1, 1)
    assert make(norm)(pixels(2, 4, 1, 1)).shape == (2, 4, 1, 1)


@each_norm
def test_empty_batch_changes_nothing(norm: str) -> None:
    own = make(norm)
    before = {name: value.clone() for name, value in own.state_dict().items()}
    x = torch.empty(0, 4, 3, 3, requires_grad=True)
    own(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 4, 3, 3)
    for name, value in own.state_dict().items():
        assert torch.equal(value, before[name])


# ---------------------------------------------------------------- two processes

DIMS = (0, 2, 3)


def _wide(values: Tensor) -> Tensor:
    return values.view(-1, 1, 1)


def _gather(x, means, scales, mean, var, momentum, eps, counts):  # type: ignore[no-untyped-def]
    share = (counts / counts.sum()).unsqueeze(1)
    joined = (share * means).sum(0)
    spread = (share * (scales.pow(-2) - eps + (means - joined).square())).sum(0)
    mean.lerp_(joined, momentum)
    var.lerp_(spread * counts.sum() / (counts.sum() - 1), momentum)
    return joined, (spread + eps).rsqrt()


def _reduce(dy, x, mean, scale, weight, *wanted):  # type: ignore[no-untyped-def]
    total, product = dy.sum(DIMS), (dy * (x - _wide(mean))).sum(DIMS)
    return total, product, product * scale, total


def _backward(dy, x, mean, scale, weight, total, product, counts):  # type: ignore[no-untyped-def]
    xhat = (x - _wide(mean)) * _wide(scale)
    means = _wide(total / counts.sum()) + xhat * _wide(product * scale / counts.sum())
    return (dy - means) * _wide(scale * weight)


KERNELS = {
    "batch_norm_stats": lambda x, eps: (x.mean(DIMS), (x.var(DIMS, correction=0) + eps).rsqrt()),
    "batch_norm_gather_stats_with_counts": _gather,
    "batch_norm_elemt": lambda x, weight, bias, mean, scale, eps: (
        (x - _wide(mean)) * _wide(scale * weight) + _wide(bias)
    ),
    "batch_norm_backward_reduce": _reduce,
    "batch_norm_backward_elemt": _backward,
}
"""Formulas for torch's kernels, which only GPUs have."""


@contextlib.contextmanager
def _as_on_gpus() -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for name, kernel in KERNELS.items():
            stack.enter_context(mock.patch.object(torch, name, kernel))
        stack.enter_context(mock.patch.object(Tensor, "is_cuda", True))
        yield


# Images of each process, activation, whether a shortcut is added
CASES: list[tuple[tuple[int, int], Activation, bool]] = [
    ((1, 3), "leaky_relu", True),
    ((2, 2), "identity", False),
    ((0, 2), "leaky_relu", False),
]
TRIALS = [(norm, *case, "cpu") for norm in NORMS for case in CASES]
TRIALS += [("abn", *case, "as on GPUs") for case in (((2, 2), "relu", True), CASES[1])]
"""Where torch's own function joins the statistics on GPUs."""

FAR_FROM_ZERO = 1000 + torch.linspace(-1e-2, 1e-2, 64).view(2, 1, 4, 8)


def train(
    norm: str, sizes: tuple[int, int], activation: Activation, add: bool, part: slice
) -> dict[str, Any]:
    """Two training steps; the loss is a sum, so that its gradient needs no weighting."""
    own = make(norm, activation)
    x = pixels(sum(sizes), 4, 5, 6)[part].requires_grad_()
    shortcut = pixels(sum(sizes), 4, 5, 6, seed=1)[part].requires_grad_() if add else None
    # Weights that differ by position keep the gradient of the statistics from vanishing.
    factors = torch.linspace(-1, 2, 30).view(5, 6)
    for _ in range(2):
        y = own(x, shortcut)
        (y * factors).sum().backward()
    values = {"y": y, "dx": x.grad, "dweight": own.weight.grad, "dbias": own.bias.grad}
    values |= {} if shortcut is None else {"dshortcut": shortcut.grad}
    values |= own.state_dict()
    return {name: value.detach().numpy().copy() for name, value in values.items()}


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.conv1, self.conv2 = nn.Conv2d(4, 4, 3, padding=1), nn.Conv2d(4, 4, 1)
        self.norm1, self.norm2 = make("iabn"), make("iabn")

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.norm2(self.conv2(self.norm1(self.conv1(x))), x)
        return y


def train_block(block: nn.Module, x: Tensor) -> dict[str, Any]:
    """The loss is the mean over the images, as a trainer's is over its pixels."""
    for _ in range(2):
        (block(x) * torch.linspace(-1, 2, 30).view(5, 6)).mean().backward()
    return {
        name.removeprefix("module."): p.grad.numpy().copy()
        for name, p in block.named_parameters()
        if p.grad is not None
    }


def share(rank: int) -> dict[str, Any]:
    """Everything that is to be tried in two processes: starting them takes the time."""
    trials = []
    for norm, sizes, activation, add, where in TRIALS:
        part = slice(0, sizes[0]) if rank == 0 else slice(sizes[0], None)
        with _as_on_gpus() if where != "cpu" else contextlib.nullcontext():
            trials.append(train(norm, sizes, activation, add, part))
    far = ABN(1, activation="identity")
    far(FAR_FROM_ZERO[rank : rank + 1])
    one_each = ABN(2)(torch.full((1, 2, 1, 1), float(rank)))
    with pytest.raises(NacreError) as refused:
        ABN(2)(torch.ones(1 - rank, 2, 1, 1))
    parallel = nn.parallel.DistributedDataParallel(Block())
    return {
        "trials": trials,
        "far": far.running_var.item(),
        "one each": one_each[0, 0, 0, 0].item(),
        "one in all": str(refused.value),
        "block": train_block(parallel, pixels(4, 4, 5, 6)[2 * rank : 2 * rank + 2]),
    }


@pytest.fixture(scope="module")
def shares(in_two_processes: Callable[..., Any]) -> Any:
    return in_two_processes(share)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(TRIALS)))
def test_two_processes_equal_one(shares: list[dict[str, Any]], number: int) -> None:
    norm, sizes, activation, add, _ = TRIALS[number]
    whole = train(norm, sizes, activation, add, slice(None))
    first, second = (share["trials"][number] for share in shares)
    for key, expected in whole.items():
        if key in ("y", "dx", "dshortcut"):
            got = np.concatenate([first[key], second[key]])
        elif key in ("dweight", "dbias"):
            got = first[key] + second[key]
        else:
            got = first[key]
            np.testing.assert_array_equal(first[key], second[key])
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5, err_msg=key)


@pytest.mark.slow
def test_data_parallel_training_equals_one_process(shares: list[dict[str, Any]]) -> None:
    whole = train_block(Block(), pixels(4, 4, 5, 6))
    assert len(whole) == 8
    for one in shares:
        for name, expected in whole.items():
            got = one["block"][name]
            np.testing.assert_allclose(got, expected, rtol=1e-4, atol=1e-5, err_msg=name)


@pytest.mark.slow
def test_variance_survives_a_mean_far_from_zero(shares: list[dict[str, Any]]) -> None:
    expected = 0.9 + 0.1 * FAR_FROM_ZERO.double().var().item()
    for one in shares:
        assert one["far"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_one_value_in_each_of_two_processes_is_enough(shares: list[dict[str, Any]]) -> None:
    assert [one["one each"] for one in shares] == pytest.approx([-0.01, 1], abs=1e-3)
    for one in shares:
        assert one["one in all"].startswith("one picture at a time ")
