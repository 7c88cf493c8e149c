"""Norm against torch's batch norm; in two processes: test_norms.py."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

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
