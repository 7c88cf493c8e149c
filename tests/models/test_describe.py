"""What `describe` says is what a network on a real device does."""

from __future__ import annotations

import io

import pytest
import torch
from rich.console import Console
from torch import nn

from nacre.errors import NacreError
from nacre.models.abn import ABN
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.describe import describe, kept_bytes
from nacre.models.inplace_abn import InPlaceABN
from nacre.terminal.model import table


@pytest.mark.parametrize("norm", ["bn", "abn", "iabn"])
def test_memory_is_that_of_a_real_network(norm: str) -> None:
    config = DeepLabConfig.model_validate(
        {"backbone": "resnet18", "norm": norm, "decoder_channels": 8}
    )
    network = build_network(config, 5, crop=64)
    images = torch.zeros(2, 3, 64, 64)
    described = describe(config, 5, crop=64, batch=2)
    assert described.kept == kept_bytes(network, images)
    assert sum(described.parameters.values()) == sum(p.numel() for p in network.parameters())


# In half precision in-place ABN keeps the normalised branch of a block beside its sum.
@pytest.mark.parametrize(("norm", "most"), [("abn", 0.75), ("iabn", 0.95)])
def test_memory_in_half_precision_is_that_of_a_real_network(norm: str, most: float) -> None:
    config = DeepLabConfig.model_validate({"backbone": "tiny", "norm": norm, "decoder_channels": 8})
    network, images = build_network(config, 5, crop=64), torch.zeros(4, 3, 64, 64)
    described = describe(config, 5, crop=64, batch=4, precision=torch.bfloat16)
    with torch.autocast("cpu", torch.bfloat16):
        # The vectors of statistics are thought to be of half precision too.
        assert described.kept == pytest.approx(kept_bytes(network, images), rel=0.01)
    assert described.kept < most * describe(config, 5, crop=64, batch=4).kept


@pytest.mark.parametrize(("norm", "more"), [(ABN, 64 + 2 * 2), (InPlaceABN, 2)])
def test_kept_bytes_counted_by_hand(norm: type[ABN], more: int) -> None:
    """The convolutions keep their inputs of 32 and 64 floats.

    Batch norm adds its own input of 64, a mean and 1 / std of 2 channels; in-place ABN adds
    1 / std only.
    """
    layers = nn.Sequential(nn.Conv2d(1, 2, 1), norm(2), nn.Conv2d(2, 1, 1))
    assert kept_bytes(layers, torch.ones(2, 1, 4, 4)) == 4 * (32 + 64 + more)


def test_in_place_keeps_less_in_a_whole_network() -> None:
    described = describe(
        DeepLabConfig(backbone="resnet50", decoder_channels=8), 5, crop=64, batch=2
    )
    assert described.kept_inplace is not None
    assert described.kept == described.kept_plain
    assert described.kept_inplace < 0.65 * described.kept_plain


def test_the_papers_network() -> None:
    described = describe(DeepLabConfig(norm="iabn"), 21, crop=512, batch=2)
    assert described.parameters["backbone"] == 42_500_160
    assert described.parameters["classifier"] == 21 * 257
    # a 1x1 and three 3x3 convolutions of 2048 to 256 channels, and three 1x1 of them
    head = 28 * 2048 * 256 + (1024 + 2048 + 256) * 256 + 2 * (1024 + 256 + 256)
    assert described.parameters["head"] == head
    assert described.stride == 16
    assert described.logits == 2 * 21 * 512 * 512 * 4


def test_flops_of_a_convolution_count_two_a_multiplication() -> None:
    few, many = (
        describe(DeepLabConfig(backbone="resnet18", decoder_channels=8), classes, crop=64, batch=2)
        for classes in (3, 4)
    )
    assert many.flops - few.flops == 2 * 8 * (64 // 16) ** 2  # one more 1x1 filter of 8 channels


def test_table_names_all_costs() -> None:
    screen = io.StringIO()
    described = describe(DeepLabConfig(backbone="lite0"), 21, crop=128, batch=2)
    Console(width=100, file=screen).print(table(described))
    text = screen.getvalue()
    for part in ("lite0", "parameters of the backbone", "GFLOP", "GiB", "teacher"):
        assert part in text
    assert "in-place" not in text


@pytest.mark.parametrize("values", [{"batch": 1}, {"crop": 0}])
def test_impossible_sizes(values: dict[str, int]) -> None:
    with pytest.raises(NacreError, match="cannot describe"):
        describe(DeepLabConfig(backbone="resnet18"), 3, **values)
