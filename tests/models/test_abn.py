"""Norm against torch's batch norm, alone and in two processes."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.abn import ABN, Activation

ACTIVATIONS = {
    "leaky_relu": lambda y: F.leaky_relu(y, 0.01),
    "relu": F.relu,
    "relu6": F.relu6,
    "identity": lambda y: y,
}


def make(channels: int = 3, activation: Activation = "leaky_relu") -> ABN:
    norm = ABN(channels, activation=activation)
    with torch.no_grad():
        norm.weight.uniform_(-1, 2, generator=torch.Generator().manual_seed(1))
        norm.bias.uniform_(-1, 1, generator=torch.Generator().manual_seed(2))
    return norm


def pixels(*shape: int, seed: int = 0) -> Tensor:
    return 5 + 3 * torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("activation", list(ACTIVATIONS))
def test_equals_batch_norm_and_activation(activation: Activation) -> None:
    norm = make(activation=activation)
    plain = nn.BatchNorm2d(3)
    plain.load_state_dict(norm.state_dict())
    for training in (True, True, False):
        norm.train(training)
        plain.train(training)
        x = pixels(2, 3, 4, 5, seed=int(training))
        shortcut = pixels(2, 3, 4, 5, seed=9)
        torch.testing.assert_close(norm(x), ACTIVATIONS[activation](plain(x)))
        torch.testing.assert_close(norm(x, shortcut), ACTIVATIONS[activation](plain(x) + shortcut))
    for name, value in plain.state_dict().items():
        torch.testing.assert_close(norm.state_dict()[name], value)


def test_names_are_those_of_batch_norm() -> None:
    assert list(ABN(3).state_dict()) == list(nn.BatchNorm2d(3).state_dict())


def test_one_value_a_channel_is_refused_with_the_batch_size() -> None:
    with pytest.raises(NacreError, match=r"one picture at a time .* 1 x 3 x 1 x 1.* 2 or more"):
        ABN(3)(torch.ones(1, 3, 1, 1))
    assert ABN(3).eval()(torch.ones(1, 3, 1, 1)).shape == (1, 3, 1, 1)


def test_empty_batch_changes_nothing() -> None:
    norm = make()
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    x = torch.empty(0, 3, 4, 4, requires_grad=True)
    norm(x).sum().backward()
    assert x.grad is not None
    assert x.grad.shape == (0, 3, 4, 4)
    for name, value in norm.state_dict().items():
        assert torch.equal(value, before[name])


def _train(norm: ABN, x: Tensor, shortcut: Tensor | None) -> dict[str, Any]:
    """Two training steps; the loss is a sum, so that its gradient needs no weighting."""
    x = x.clone().requires_grad_()
    # Weights that differ by position keep the gradient of the statistics from vanishing.
    factors = torch.linspace(-1, 2, 20).view(4, 5)
    for _ in range(2):
        y = norm(x, shortcut)
        (y * factors).sum().backward()
    assert x.grad is not None
    values = {
        "y": y.detach(),
        "dx": x.grad,
        "dweight": norm.weight.grad,
        "dbias": norm.bias.grad,
        **norm.state_dict(),
    }
    return {name: value.detach().numpy().copy() for name, value in values.items()}


CASES: list[tuple[tuple[int, int], Activation, bool]] = [
    ((1, 3), "leaky_relu", False),
    ((2, 2), "relu", True),
    ((0, 2), "identity", False),
]


def _case(sizes: tuple[int, int], activation: Activation, add: bool, part: slice) -> Any:
    shortcut = pixels(sum(sizes), 3, 4, 5, seed=9)[part] if add else None
    return _train(make(activation=activation), pixels(sum(sizes), 3, 4, 5)[part], shortcut)


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


FAR_FROM_ZERO = 1000 + torch.linspace(-1e-2, 1e-2, 64).view(2, 1, 4, 8)


def _share(rank: int) -> dict[str, Any]:
    """Everything that is to be tried in two processes: starting them takes the time."""

    def part(case: tuple[tuple[int, int], Activation, bool]) -> Any:
        return _case(*case, slice(0, case[0][0]) if rank == 0 else slice(case[0][0], None))

    cases = [part(case) for case in CASES]
    with _as_on_gpus():
        cases += [part(case) for case in CASES[:2]]
    far = ABN(1, activation="identity")
    far(FAR_FROM_ZERO[rank : rank + 1])
    one_each = ABN(2)(torch.full((1, 2, 1, 1), float(rank)))
    try:
        ABN(2)(torch.ones(1 - rank, 2, 1, 1))
        message = "no error"
    except NacreError as error:
        message = str(error)
    return {
        "cases": cases,
        "far": far.running_var.item(),
        "one each": one_each[0, 0, 0, 0].item(),
        "one in all": message,
    }


@pytest.fixture(scope="module")
def shares(in_two_processes: Callable[..., Any]) -> Any:
    return in_two_processes(_share)


@pytest.mark.slow
@pytest.mark.parametrize("number", range(len(CASES) + 2))
def test_two_processes_equal_one(shares: list[dict[str, Any]], number: int) -> None:
    """On CPUs, and as on GPUs, where torch's own function joins them."""
    whole = _case(*CASES[number % len(CASES)], slice(None))
    first, second = (share["cases"][number] for share in shares)
    joined = {key: np.concatenate([first[key], second[key]]) for key in ("y", "dx")}
    joined |= {key: first[key] + second[key] for key in ("dweight", "dbias")}
    for key, value in joined.items():
        np.testing.assert_allclose(value, whole[key], rtol=1e-5, atol=1e-5, err_msg=key)
    for key in ("running_mean", "running_var", "num_batches_tracked"):
        for share in (first, second):
            np.testing.assert_allclose(share[key], whole[key], rtol=1e-5, err_msg=key)


@pytest.mark.slow
def test_variance_survives_a_mean_far_from_zero(shares: list[dict[str, Any]]) -> None:
    expected = 0.9 + 0.1 * FAR_FROM_ZERO.double().var().item()
    for share in shares:
        assert share["far"] == pytest.approx(expected, rel=1e-6)


@pytest.mark.slow
def test_one_value_in_each_of_two_processes_is_enough(shares: list[dict[str, Any]]) -> None:
    assert [share["one each"] for share in shares] == pytest.approx([-0.01, 1], abs=1e-3)
    for share in shares:
        assert share["one in all"].startswith("one picture at a time ")
