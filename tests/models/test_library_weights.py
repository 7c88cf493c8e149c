"""Weights that timm and smp know by name, from a hub on loopback: whole, wrong, absent."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from safetensors.torch import save
from torch import Tensor, nn

from models.file_server import Site
from nacre.errors import NacreError
from nacre.models.build import build_network, read_model_config

pytestmark = pytest.mark.usefixtures("foreign_libraries")


@dataclass(frozen=True)
class Library:
    """How a library's weights are asked for, where they lie, and what is in them."""

    config: dict[str, Any]
    place: Callable[[], str]
    state: Callable[[], dict[str, Tensor]]
    part: Callable[[Any], nn.Module]


def timm_state() -> dict[str, Tensor]:
    import timm

    return dict(timm.create_model("test_resnet").state_dict())


def smp_encoder() -> dict[str, Any]:
    import segmentation_models_pytorch as smp

    return dict(smp.encoders.encoders["mobilenet_v2"])


def smp_place() -> str:
    where = smp_encoder()["pretrained_settings"]["imagenet"]
    return f"/{where['repo_id']}/resolve/{where['revision']}/model.safetensors"


def smp_state() -> dict[str, Tensor]:
    about = smp_encoder()
    return dict(about["encoder"](**about["params"], depth=5).state_dict())


LIBRARIES = {
    "timm": Library(
        {"backbone": "timm/test_resnet", "decoder_channels": 8, "weights": "imagenet"},
        lambda: "/timm/test_resnet.r160_in1k/resolve/main/model.safetensors",
        timm_state,
        lambda network: network.backbone.model,
    ),
    "smp": Library(
        {"kind": "external", "library": "smp", "name": "Unet/mobilenet_v2"},
        smp_place,
        smp_state,
        lambda network: network.model.encoder,
    ),
}


@pytest.fixture(params=LIBRARIES)
def library(request: pytest.FixtureRequest) -> Library:
    return LIBRARIES[request.param]


@pytest.fixture
def published(library: Library, site: Site) -> dict[str, Tensor]:
    """The weights that the hub has, with what it says of them."""
    torch.manual_seed(3)
    state = {
        name: torch.rand_like(one) if one.is_floating_point() else one
        for name, one in library.state().items()
    }
    site.files[library.place()] = save(state)
    return state


def build(library: Library) -> nn.Module:
    return library.part(build_network(read_model_config(library.config), [3], crop=64))


def assert_loaded(part: nn.Module, state: dict[str, Tensor]) -> None:
    found = part.state_dict()
    common = [name for name in found if name in state and found[name].ndim == 4]
    assert len(common) > 5
    for name in common:
        assert torch.equal(found[name], state[name]), name


def test_they_are_downloaded_once_and_loaded(library: Library, published: Any, site: Site) -> None:
    assert_loaded(build(library), published)
    asked = len(site.asked)
    assert_loaded(build(library), published)
    assert len(site.asked) == asked


def test_weights_that_smp_does_not_have_are_named() -> None:
    config = LIBRARIES["smp"].config | {"weights": "ssl"}
    with pytest.raises(NacreError, match=r"smp has no such weights of 'mobilenet_v2'; it has imag"):
        build_network(read_model_config(config), [3], crop=64)
