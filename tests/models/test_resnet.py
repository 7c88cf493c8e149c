"""ResNets: public names and shapes, output sizes, dilation."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

from nacre.models.resnet import Depth, ResNet

NAMES = Path(__file__).parent / "resnet101_names.txt"

# Of the published networks, without their classifiers of 1000 classes
PARAMETERS: dict[Depth, int] = {18: 11_176_512, 34: 21_284_672}


def on_meta(depth: Depth) -> ResNet:
    with torch.device("meta"):
        return ResNet(depth)


def expected(depth: Depth) -> dict[str, str]:
    """Names and shapes from the list for ResNet-101, whose first blocks ResNet-50 shares."""
    names = dict(line.split() for line in NAMES.read_text().splitlines())
    if depth == 50:
        return {k: v for k, v in names.items() if not k.startswith(tuple(_EXTRA_BLOCKS))}
    assert depth == 101
    return names


_EXTRA_BLOCKS = [f"layer3.{index}." for index in range(6, 23)]


@pytest.mark.parametrize("depth", [50, 101])
def test_names_and_shapes_are_the_published_ones(depth: Depth) -> None:
    own = {
        name: "x".join(str(n) for n in value.shape) or "-"
        for name, value in on_meta(depth).state_dict().items()
    }
    assert list(own.items()) == list(expected(depth).items())


@pytest.mark.parametrize("depth", list(PARAMETERS))
def test_parameter_counts_are_the_published_ones(depth: Depth) -> None:
    assert sum(p.numel() for p in on_meta(depth).parameters()) == PARAMETERS[depth]


def test_dilated_stages_of_the_paper() -> None:
    def middle(stage: str) -> list[tuple[int, int]]:
        convs = [backbone.get_submodule(f"{stage}.{block}.conv2") for block in (0, 1)]
        assert all(isinstance(conv, nn.Conv2d) for conv in convs)
        return [(conv.stride[0], conv.dilation[0]) for conv in convs]  # type: ignore

    backbone = ResNet(50, stride=16, width=4)
    assert middle("layer3") == [(2, 1), (1, 1)]
    assert middle("layer4") == [(1, 2), (1, 2)]
    backbone = ResNet(50, stride=8, width=4)
    assert middle("layer3") == [(1, 2), (1, 2)]
    assert middle("layer4") == [(1, 4), (1, 4)]
