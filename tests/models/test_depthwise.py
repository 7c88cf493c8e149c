"""Dilated depthwise convolutions against torch's own, forward and backward."""

import pytest
import torch
from torch import nn

from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.lite import DilatedDepthwiseConv2d


def both(kernel: int, dilation: int) -> tuple[nn.Conv2d, nn.Conv2d]:
    torch.manual_seed(0)
    ours = DilatedDepthwiseConv2d(6, kernel, dilation).double()
    theirs = nn.Conv2d(6, 6, kernel, 1, kernel // 2 * dilation, dilation, groups=6, bias=False)
    theirs.double().load_state_dict(ours.state_dict())
    return ours, theirs


@pytest.mark.parametrize(("kernel", "dilation"), [(3, 2), (5, 2), (5, 4), (1, 2)])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last])
def test_maps_and_gradients_are_those_of_torch(
    kernel: int, dilation: int, layout: torch.memory_format
) -> None:
    results = []
    for conv in both(kernel, dilation):
        x = torch.randn(
            2, 6, 9, 12, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        )
        x = x.contiguous(memory_format=layout).requires_grad_()
        y = conv(x)
        (y * torch.arange(y.numel()).view(y.shape).sin()).sum().backward()
        assert x.grad is not None
        assert conv.weight.grad is not None
        results.append((y.detach(), x.grad, conv.weight.grad))
    for ours, theirs in zip(*results, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12)


def test_a_frozen_kernel_gets_no_gradient() -> None:
    conv, _ = both(3, 2)
    conv.requires_grad_(False)
    x = torch.ones(1, 6, 8, 8, dtype=torch.float64, requires_grad=True)
    conv(x).sum().backward()
    assert x.grad is not None
    assert conv.weight.grad is None


def test_mixed_precision_works() -> None:
    conv = DilatedDepthwiseConv2d(4, 3, 2)
    x = torch.ones(1, 4, 8, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        y = conv(x)
    y.float().sum().backward()
    assert y.dtype == torch.bfloat16
    assert x.grad is not None
    assert x.grad.dtype == torch.float32


def test_dilated_backbones_have_them() -> None:
    network = build_network(DeepLabConfig(backbone="lite0", weights="none", output_stride=16), 3)
    assert any(isinstance(part, DilatedDepthwiseConv2d) for part in network.modules())
