"""The small backbone: sizes, and that every part of it learns."""

import pytest
import torch

from nacre.models.backbone import Tiny


@pytest.mark.parametrize("chosen", [{}, {"widths": (4, 6, 10)}], ids=["its own", "chosen"])
@pytest.mark.parametrize(("height", "width"), [(64, 64), (32, 48), (33, 64), (100, 70)])
def test_features_have_the_stated_size(chosen: dict, height: int, width: int) -> None:
    backbone = Tiny(**chosen)
    assert not chosen or backbone.channels == 10
    features = backbone(torch.randn(2, 3, height, width))
    expected = [-(-side // backbone.stride) for side in (height, width)]
    assert list(features.shape) == [2, backbone.channels, *expected]


def test_every_parameter_gets_a_gradient() -> None:
    backbone = Tiny(widths=(4, 6, 10))
    backbone(torch.randn(2, 3, 32, 32)).square().sum().backward()
    for name, parameter in backbone.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.abs().sum() > 0, name


def test_normalization_fits_the_scenes() -> None:
    from nacre.data.sources.scenes import render

    drawn = torch.stack([torch.from_numpy(render(0, index, 32)[0]) for index in range(60)])
    pixels = drawn.flatten(0, 2).float() / 255
    normalize = (pixels - torch.tensor(Tiny.mean)) / torch.tensor(Tiny.std)
    assert normalize.mean(0).abs().max() < 0.25
    assert (normalize.std(0) - 1).abs().max() < 0.35
