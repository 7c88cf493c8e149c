"""Fusion of weights against mixing them by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from nacre.errors import NacreError
from nacre.methods.components import check_fusible, fuse_, fusion_factor
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.network import Network


def grown() -> tuple[Network, Network]:
    """A network, and another that was grown from it and is different everywhere."""
    torch.manual_seed(0)
    old = build_network(DeepLabConfig(backbone="tiny"), 4, load=False)
    new = copy.deepcopy(old)
    new.classifier.grow(2)
    with torch.no_grad():
        for tensor in new.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(torch.rand_like(tensor) + 0.1)
    return old, new


@pytest.mark.parametrize("factor", [0.0, 0.3, 1.0])
def test_everything_the_old_network_had_is_mixed_and_the_rest_stays(factor: float) -> None:
    old, new = grown()
    before = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    fuse_(new, old.state_dict(), factor)
    known = old.state_dict()
    assert before.keys() - known.keys(), "the network has grown"
    for name, tensor in new.state_dict().items():
        if name in known and tensor.is_floating_point():
            expected = (1 - factor) * known[name].double() + factor * before[name].double()
            torch.testing.assert_close(tensor.double(), expected, rtol=1e-6, atol=1e-6)
        else:
            assert torch.equal(tensor, before[name]), name


@pytest.mark.parametrize(
    ("num_old", "num_new", "factor"),
    [(16, 1, 0.243), (20, 1, 0.218), (16, 5, 0.488), (101, 50, 0.575), (51, 50, 0.70)],
)
def test_the_rule_gives_the_published_factors(num_old: int, num_new: int, factor: float) -> None:
    assert fusion_factor(num_old, num_new) == pytest.approx(factor, abs=5e-3)


@pytest.mark.parametrize(
    ("old", "new", "dim"),
    [
        (nn.Linear(3, 2), nn.Linear(3, 3), 0),
        (nn.ConvTranspose2d(8, 2, 2), nn.ConvTranspose2d(8, 3, 2), 1),
    ],
)
def test_new_rows_stay_whatever_the_dimension_of_the_classes(
    old: nn.Module, new: nn.Module, dim: int
) -> None:
    with torch.no_grad():
        for module, value in ((old, 0.0), (new, 1.0)):
            for one in module.parameters():
                one.fill_(value)
    fuse_(new, old.state_dict(), 0.5)
    assert new.weight.movedim(dim, 0).flatten(1)[:, 0].tolist() == [0.5, 0.5, 1.0]


def test_a_tied_tensor_is_fused_once() -> None:
    def tied(value: float) -> nn.ModuleList:
        layers = nn.ModuleList([nn.Linear(2, 2, bias=False) for _ in range(2)])
        nn.init.constant_(layers[0].weight, value)
        layers[1].weight = layers[0].weight
        return layers

    new = tied(1.0)
    fuse_(new, tied(0.0).state_dict(), 0.5)
    assert new[0].weight.unique().tolist() == [0.5]


@pytest.mark.parametrize(
    ("new", "reason"),
    [
        (nn.Linear(3, 2), "weight was 2 x 4 and is now 2 x 3"),
        (nn.Linear(5, 3), "weight was 2 x 4 and is now 3 x 5"),
        (nn.Conv2d(4, 2, 1), "weight was 2 x 4 and is now 2 x 4 x 1 x 1"),
        (nn.Linear(4, 2, bias=False), "bias was 2 and is gone"),
    ],
)
def test_another_network_is_refused_before_anything_is_mixed(new: nn.Module, reason: str) -> None:
    before = {name: tensor.clone() for name, tensor in new.state_dict().items()}
    old = nn.Linear(4, 2).state_dict()
    for refuse in (lambda: check_fusible(new, old), lambda: fuse_(new, old, 0.5)):
        with pytest.raises(NacreError, match=reason):
            refuse()
    assert all(torch.equal(tensor, before[name]) for name, tensor in new.state_dict().items())
