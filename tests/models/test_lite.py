"""EfficientNet-Lite: sizes, padding, dilation, and the classes that its weights predict."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.models.lite import Lite, SameConv2d, dilate
from nacre.models.weights import find_weights, load_backbone, read_weights

SIZES = (0, 1, 2)


def trained(size: int) -> tuple[Lite, dict[str, Tensor]]:
    """A backbone with the weights of its package, and all that the file holds."""
    try:
        path = find_weights(f"lite{size}", "imagenet")
    except NacreError as error:
        pytest.skip(str(error))
    backbone = Lite(size, stride=32).eval()
    load_backbone(backbone, f"lite{size}", "imagenet")
    return backbone, read_weights(path)


def test_same_padding_is_more_at_the_end() -> None:
    conv = SameConv2d(1, 1, 3, 2, bias=False)
    torch.nn.init.ones_(conv.weight)
    even, odd = torch.ones(1, 1, 4, 4), torch.ones(1, 1, 5, 5)
    assert conv(even)[0, 0].tolist() == [[9, 6], [6, 4]]
    assert conv(odd)[0, 0].tolist() == [[4, 6, 4], [6, 9, 6], [4, 6, 4]]


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("dilation", [1, 2])
def test_constant_padding_is_that_of_even_sizes(kernel: int, dilation: int) -> None:
    conv = SameConv2d(2, 3, kernel, 2, dilation=dilation)
    x = torch.randn(1, 2, 12, 18)
    wanted = conv(x)
    conv.aligned = True
    assert torch.equal(conv(x), wanted)


@pytest.mark.parametrize(
    ("stride", "expected"),
    [
        (32, [(2, 1), (2, 1), (1, 1), (2, 1), (2, 1), (2, 1), (1, 1)]),
        (16, [(2, 1), (2, 1), (1, 1), (2, 1), (2, 1), (1, 1), (1, 2)]),
        (8, [(2, 1), (2, 1), (1, 1), (2, 1), (1, 1), (1, 2), (1, 4)]),
    ],
)
def test_strides_that_are_given_up_become_dilation(
    stride: int, expected: list[tuple[int, int]]
) -> None:
    assert dilate([2, 2, 1, 2, 2, 2, 1], stride) == expected


def test_dilation_keeps_the_features_of_the_trained_network() -> None:
    """At every second pixel, the first of which 'SAME' padding puts at 1 in even sizes."""
    coarse, fine = Lite(0, stride=32).eval(), Lite(0, stride=16).eval()
    fine.load_state_dict(coarse.state_dict())
    dilations = {part.dilation for part in fine.modules() if isinstance(part, nn.Conv2d)}
    assert (2, 2) in dilations
    x = torch.randn(1, 3, 512, 512, generator=torch.Generator().manual_seed(0))
    # Padding differs at the border: compare the middle of what only the last stages see.
    with torch.no_grad():
        dense, sparse = fine(x)[..., 1::2, 1::2], coarse(x)
    scale = sparse.std()
    torch.testing.assert_close(dense[..., 7:9, 7:9] / scale, sparse[..., 7:9, 7:9] / scale)


# ImageNet's Egyptian cat, Siamese cat, redbone (a dog) and ram
PICTURES = {"2007_000549": 285, "2007_002445": 284, "2007_001239": 168, "2007_000925": 348}


def classify(features: Tensor, w: dict[str, Tensor]) -> Tensor:
    """The classifier of the file on the backbone's features."""
    keys = ("running_mean", "running_var", "weight", "bias")
    mean, var, weight, bias = (w[f"_bn1.{key}"] for key in keys)
    y = F.conv2d(features, w["_conv_head.weight"])
    y = F.relu6(F.batch_norm(y, mean, var, weight, bias, eps=1e-3))
    return F.linear(y.mean((2, 3)), w["_fc.weight"], w["_fc.bias"])


@pytest.mark.parametrize("size", SIZES)
def test_animals_are_recognized(size: int, voc_part: Path) -> None:
    """Top-1 of 1,000 ImageNet classes, through the features of the backbone."""
    backbone, state = trained(size)
    mean, std = (torch.tensor(c).view(3, 1, 1) for c in (backbone.mean, backbone.std))
    for image, expected in PICTURES.items():
        path = voc_part / f"VOC2012/JPEGImages/{image}.jpg"
        image = Image.open(path).convert("RGB").resize((224, 224))
        pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
        with torch.no_grad():
            scores = classify(backbone((pixels - mean) / std), state)
        assert int(scores.argmax()) == expected, image
