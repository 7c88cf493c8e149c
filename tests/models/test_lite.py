"""EfficientNet-Lite0: padding, dilation, the weights of the package and what they see."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from nacre.errors import NacreError
from nacre.models.lite import Lite, SameConv2d, from_package_name
from nacre.models.pretrained import imagenet_file
from nacre.models.weight_files import read_weights
from nacre.models.weights import load_backbone

try:
    WEIGHTS: Path | None = imagenet_file("lite0")
except NacreError:
    WEIGHTS = None
needs_weights = pytest.mark.skipif(WEIGHTS is None, reason="the extra lite0 is not installed")


@pytest.mark.parametrize("stride", [8, 16, 32])
def test_output_size_is_rounded_up(stride: int) -> None:
    y = Lite(0, stride=stride).eval()(torch.rand(1, 3, 65, 97))
    assert y.shape == (1, 320, -(-65 // stride), -(-97 // stride))


def test_same_padding_is_more_at_the_end() -> None:
    conv = SameConv2d(1, 1, 3, 2, bias=False)
    torch.nn.init.ones_(conv.weight)
    even, odd = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 5, 5)
    assert conv(even)[0, 0].tolist() == [[9, 6], [6, 4]]
    assert conv(odd)[0, 0].tolist() == [[4, 6, 4], [6, 9, 6], [4, 6, 4]]


def test_dilation_keeps_the_features_of_the_trained_network() -> None:
    """At every second pixel, the first of which 'SAME' padding puts at 1 in even sizes."""
    coarse, fine = Lite(0, stride=32).eval(), Lite(0, stride=16).eval()
    fine.load_state_dict(coarse.state_dict())
    x = torch.randn(1, 3, 512, 512, generator=torch.Generator().manual_seed(0))
    # Padding differs at the border: compare the middle of what only the last stages see.
    with torch.no_grad():
        dense, sparse = fine(x)[..., 1::2, 1::2], coarse(x)
    scale = sparse.std()
    torch.testing.assert_close(dense[..., 7:9, 7:9] / scale, sparse[..., 7:9, 7:9] / scale)


@needs_weights
def test_weights_cover_the_network_exactly() -> None:
    assert WEIGHTS is not None
    backbone = Lite(0)
    load_backbone(backbone, "lite0", "imagenet")
    state = read_weights(WEIGHTS).tensors
    assert torch.equal(backbone.conv_stem.weight, state["_conv_stem.weight"])
    dropped = {name.split(".")[0] for name in state if from_package_name(name) is None}
    assert dropped == {"_conv_head", "_bn1", "_fc"}


@needs_weights
def test_a_cat_is_a_cat(voc_part: Path) -> None:
    assert WEIGHTS is not None
    backbone = Lite(0, stride=32).eval()
    load_backbone(backbone, "lite0", "imagenet")
    image = (
        Image.open(voc_part / "VOC2012/JPEGImages/2007_000528.jpg")
        .convert("RGB")
        .resize((224, 224))
    )
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(c).view(3, 1, 1) for c in (backbone.mean, backbone.std))
    w = read_weights(WEIGHTS).tensors
    with torch.no_grad():
        y = F.conv2d(backbone((pixels - mean) / std), w["_conv_head.weight"])
        mean, var, weight, bias = (
            w[f"_bn1.{key}"] for key in ("running_mean", "running_var", "weight", "bias")
        )
        y = F.relu6(F.batch_norm(y, mean, var, weight, bias, eps=1e-3)).mean((2, 3))
        scores = F.linear(y, w["_fc.weight"], w["_fc.bias"]).softmax(1)[0]
    assert scores.argmax() in range(281, 286)  # ImageNet's five domestic cats


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_constant_padding_is_that_of_even_sizes(kernel: int, dilation: int) -> None:
    conv = SameConv2d(2, 3, kernel, 2, dilation=dilation)
    x = torch.randn(1, 2, 12, 18)
    wanted = conv(x)
    conv.aligned = True
    assert torch.equal(conv(x), wanted)
