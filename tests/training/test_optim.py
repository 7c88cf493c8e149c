"""Optimizers and schedules against torch and against formulas by hand."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import nn

from nacre.errors import NacreError
from nacre.models.adapter import Adapter
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.training.optim import (
    OptimConfig,
    load_optimizer_state,
    make_optimizer,
    optimizer_state,
    param_groups,
    set_lr,
)

TINY = DeepLabConfig(backbone="tiny", decoder_channels=8)


def network() -> Any:
    torch.manual_seed(0)
    return build_network(TINY, 3, 32)


def update(net: nn.Module, optimizer: torch.optim.Optimizer, times: int = 3) -> None:
    """Make updates with gradients that depend on the parameters only."""
    for _ in range(times):
        for parameter in net.parameters():
            parameter.grad = parameter.detach().sin()
        optimizer.step()


def lrs(config: OptimConfig, iterations: int, lr: float = 1.0) -> list[float]:
    optimizer = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=lr)
    found = []
    for iteration in range(iterations):
        set_lr(optimizer, config, lr, iteration, iterations)
        found.append(optimizer.param_groups[0]["lr"])
    return found


SGD: Any = {"momentum": 0.9, "weight_decay": 1e-4}


@pytest.mark.parametrize(
    ("config", "kind", "options"),
    [
        (OptimConfig(), torch.optim.SGD, {**SGD, "nesterov": True}),
        (OptimConfig(nesterov=False), torch.optim.SGD, SGD),
        (
            OptimConfig(optimizer="adamw", weight_decay=0.05),
            torch.optim.AdamW,
            {"betas": (0.9, 0.999), "weight_decay": 0.05},
        ),
    ],
    ids=["the paper's released code", "the paper's text", "adamw"],
)
def test_an_optimizer_is_torchs_bit_for_bit(config: OptimConfig, kind: Any, options: Any) -> None:
    one, two = network(), network()
    update(one, make_optimizer(one, config, 0.01))
    update(two, kind(two.parameters(), lr=0.01, **options))
    for a, b in zip(one.parameters(), two.parameters(), strict=True):
        assert torch.equal(a, b)


def test_the_default_schedule_is_the_papers_to_the_last_bit() -> None:
    assert lrs(OptimConfig(), 30, 0.01) == [0.01 * (1 - i / 30) ** 0.9 for i in range(30)]


def test_cosine_falls_from_one_to_nothing_and_warm_up_rises_linearly() -> None:
    found = lrs(OptimConfig(lr_schedule="cosine"), 8)
    assert found[0] == 1
    assert found[4] == pytest.approx(0.5)
    assert found[6] == pytest.approx((1 + math.cos(0.75 * math.pi)) / 2)
    warm, cold = lrs(OptimConfig(warmup_iterations=4), 8), lrs(OptimConfig(), 8)
    shares = [one / other for one, other in zip(warm, cold, strict=True)]
    assert shares == pytest.approx([0.25, 0.5, 0.75, 1, 1, 1, 1, 1])


def test_groups_hold_every_parameter_once_with_its_rate() -> None:
    net = network()
    config = OptimConfig(backbone_lr_scale=0.1)
    groups = param_groups(net, config)
    assert sum(len(group["params"]) for group in groups) == len(list(net.parameters()))
    backbone = {id(one) for one in net.backbone.parameters()}
    for group in groups:
        for parameter in group["params"]:
            assert group["lr_scale"] == (0.1 if id(parameter) in backbone else 1)
    optimizer = make_optimizer(net, config, 1.0)
    set_lr(optimizer, config, 1.0, 0, 10)
    assert {group["lr"] for group in optimizer.param_groups} == {0.1, 1.0}


def test_a_rate_for_an_unknown_backbone_is_refused() -> None:
    plain = Adapter(nn.Sequential(nn.Conv2d(3, 4, 3, padding=1), nn.ReLU(), nn.Conv2d(4, 3, 1)))
    with pytest.raises(NacreError, match=r"backbone_lr_scale=0\.1: nacre does not know which"):
        make_optimizer(plain, OptimConfig(backbone_lr_scale=0.1), 0.1)
    make_optimizer(plain, OptimConfig(), 0.1)


@pytest.mark.parametrize("name", ["sgd", "adamw"])
def test_an_optimizer_resumes_from_its_state(name: str) -> None:
    config = OptimConfig(optimizer=name)  # type: ignore[arg-type]
    whole = network()
    optimizer = make_optimizer(whole, config, 0.01)
    update(whole, optimizer)
    again = copy.deepcopy(whole)
    fresh = make_optimizer(again, config, 0.01)
    state = {key: value.clone() for key, value in optimizer_state(optimizer, whole).items()}
    load_optimizer_state(fresh, again, state)
    update(whole, optimizer)
    update(again, fresh)
    for a, b in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
