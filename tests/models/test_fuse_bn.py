"""Folded networks give what the network gives in eval."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from nacre.losses import upsample
from nacre.models.abn import ABN
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.fuse_bn import fuse_conv_bn


def pictures(*size: int) -> Tensor:
    """Noise of different colours: of equal ones, means over a picture would not vary at all."""
    count, height, width = size
    return 255 * torch.rand(count, 3, 1, 1) * torch.rand(count, 3, height, width)


def trained(backbone: str, norm: str) -> DeepLab:
    """A small network whose norms have seen pictures and have scales of either sign."""
    torch.manual_seed(0)
    config = DeepLabConfig.model_validate(
        {"backbone": backbone, "norm": norm, "decoder_channels": 8}
    )
    network = build_network(config, 4, crop=32)
    for module in network.modules():
        if isinstance(module, ABN):
            nn.init.uniform_(module.weight, -0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            module.momentum = 0.5
    for _ in range(4):
        network(pictures(4, 96, 96))
    return network.eval()


def assert_near(got: Tensor, expected: Tensor, tolerance: float = 1e-4) -> None:
    """To a part of the largest value: float32 keeps about 1e-5 of it through so many layers."""
    assert (got - expected).abs().max() < tolerance * expected.abs().max()


class Predict(nn.Module):
    def __init__(self, network: DeepLab) -> None:
        super().__init__()
        self.network = network

    def forward(self, images: Tensor) -> Tensor:
        return upsample(self.network(images).scores, (images.shape[-2], images.shape[-1]))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backbone", "norm"),
    [
        ("tiny", "abn"),
        ("resnet18", "bn"),
        ("resnet18", "iabn"),
        ("resnet50", "iabn"),
        ("lite0", "abn"),
    ],
)
def test_fused_network_is_the_same(backbone: str, norm: str) -> None:
    network = trained(backbone, norm)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    fused = fuse_conv_bn(network)
    assert not any(isinstance(module, ABN) for module in fused.modules())
    images = pictures(2, 65, 97)
    exact = copy.deepcopy(network).double()
    expected = exact(images)
    for got, tolerance in ((fused(images), 1e-4), (fuse_conv_bn(exact)(images), 1e-10)):
        assert_near(got.logits, expected.logits, tolerance)
        assert_near(got.features, expected.features, tolerance)
    assert not any(p.requires_grad for p in fused.parameters())
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_growing_goes_on_after_fusing() -> None:
    network = trained("resnet18", "iabn")
    fused = fuse_conv_bn(network)
    for each in (network, fused):
        each.classifier.grow_from_origins([0, 0])
    images = pictures(1, 32, 32)
    assert_near(fused(images).logits, network(images).logits)


def test_fused_network_exports() -> None:
    fused = fuse_conv_bn(trained("resnet18", "iabn"))
    images = pictures(1, 64, 64)
    program = torch.export.export(Predict(fused), (images,))
    assert "batch_norm" not in str(program.graph)
    torch.testing.assert_close(program.module()(images), Predict(fused)(images))
