"""The whole network, over the table of backbones."""

from __future__ import annotations

import copy
import subprocess
import sys

import pytest
import torch
import torch.nn.functional as F
from pydantic import ValidationError
from torch import Tensor, nn

from nacre.evaluation.predictor import Predictor
from nacre.export.graph import ImageToClasses
from nacre.models.backbone import Backbone
from nacre.models.build import build_network
from nacre.models.config import BACKBONES, DeepLabConfig
from nacre.models.decoders import StageGrid
from nacre.models.deeplab import DeepLab
from nacre.models.network import Output
from nacre.models.norm import ABN, InPlaceABN

SMALL: list[str] = ["tiny", "resnet18", "lite0"]


def images(*size: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, (2, 3, *size), dtype=torch.uint8, generator=generator)


def small(backbone: str = "resnet18", classes: int = 5) -> DeepLab:
    torch.manual_seed(0)
    return build_network(DeepLabConfig(backbone=backbone, decoder_channels=8), classes, crop=64)


@pytest.mark.parametrize("backbone", SMALL)
def test_sizes_and_types(backbone: str) -> None:
    network, x = small(backbone), images(65, 97)
    output = network(x)
    rows, columns = -(-65 // network.stride), -(-97 // network.stride)
    assert output.logits.shape == (2, 5, rows, columns)
    assert output.logits.dtype == torch.float32
    assert output.features.shape == (2, network.backbone.channels, rows, columns)


def test_pixels_are_normalized_as_the_backbone_expects() -> None:
    network, seen = small(), []
    network.backbone.register_forward_pre_hook(lambda module, args: seen.append(args[0]))
    x = images(32, 32)
    network(x)
    mean, std = (
        torch.tensor(c).view(3, 1, 1) for c in (network.backbone.mean, network.backbone.std)
    )
    torch.testing.assert_close(seen[0], (x / 255 - mean) / std)
    assert not any(name.startswith("pixel") for name in network.state_dict())


@pytest.mark.parametrize("norm", ["abn", "iabn"])
def test_logits_are_float32_under_autocast(norm: str) -> None:
    config = DeepLabConfig.model_validate({"backbone": "tiny", "norm": norm, "decoder_channels": 8})
    network = build_network(config, 5, crop=32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        output = network(images(32, 32))
    assert output.features.dtype == torch.bfloat16
    assert output.logits.dtype == torch.float32
    output.logits.sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in network.parameters())


def test_pooling_window_is_the_crop() -> None:
    config = DeepLabConfig(backbone="resnet18", decoder_channels=8)
    assert build_network(config, 3, crop=512).decoder.pool.window == 32
    assert build_network(config, 3, crop=8).decoder.pool.window == 1
    assert build_network(config, 3).decoder.pool.window is None


@pytest.mark.parametrize("backbone", BACKBONES)
def test_every_row_of_the_table_is_true(backbone: str) -> None:
    row = BACKBONES[backbone]
    for norm in ("bn", "abn") if row.own_norm else ("bn", "abn", "iabn"):
        config = DeepLabConfig(backbone=backbone, norm=norm, decoder_channels=8)
        with torch.device("meta"):
            made = build_network(config, 3, load=False)
        assert isinstance(made.backbone, Backbone)
        assert made.stride == (16 if row.any_stride else 8)
        norms = {type(module) for module in made.backbone.modules() if isinstance(module, ABN)}
        assert norms == {InPlaceABN if norm == "iabn" else ABN}


@pytest.mark.parametrize(
    "values",
    [
        {"backbone": "resnet19"},
        {"stride": 16},
        {"backbone": "tiny", "output_stride": 8},
        {"backbone": "lite0", "norm": "iabn"},
    ],
)
def test_wrong_configs(values: dict[str, object]) -> None:
    with pytest.raises(ValidationError):
        DeepLabConfig.model_validate(values)


def test_config_does_not_import_torch() -> None:
    code = "import sys, nacre.models.config; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NETWORKS = [
    ("tiny", "bn"),
    ("tiny", "iabn"),
    ("resnet18", "bn"),
    ("resnet50", "iabn"),
    ("lite0", "bn"),
]


@pytest.mark.parametrize(("backbone", "norm"), NETWORKS)
def test_stages_are_what_the_features_were_before_their_activation(
    backbone: str, norm: str
) -> None:
    torch.manual_seed(0)
    network = build_network(DeepLabConfig(backbone=backbone, norm=norm, decoder_channels=8), 3)
    pictures = images(64, 64)
    for mode in (True, False):
        network.train(mode)
        output = network(pictures, with_stages=True)
        sizes = [stage.shape[-1] for stage in output.stages]
        assert sizes == sorted(sizes, reverse=True)
        last, features = output.stages[-1], output.features
        activated = {"bn": last.relu(), "iabn": F.leaky_relu(last, 0.01)}[norm]
        expected = last if backbone == "lite0" else activated
        torch.testing.assert_close(features, expected, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(network(pictures).logits, output.logits)


def test_unknown_counts_as_background_in_predictions() -> None:
    logits = torch.tensor([[-2.0, 0.0]]).view(1, 2, 1, 1)
    plain = Output(logits, logits, logits)
    assert plain.scores is logits
    merged = Output(logits, logits, logits, unknown=torch.ones(1, 1, 1, 1))
    assert plain.scores.argmax(1).item() == 1
    assert merged.scores.argmax(1).item() == 0


# Traced for a graph


def random_network(decoder: str, backbone: str, norm: str) -> DeepLab:
    """Return a network with the statistics and scales of either sign that trained ones have."""
    torch.manual_seed(0)
    config = {"backbone": backbone, "norm": norm, "decoder": decoder, "decoder_channels": 8}
    network = build_network(DeepLabConfig.model_validate(config), 4, crop=32)
    for module in network.modules():
        if isinstance(module, ABN):
            nn.init.uniform_(module.weight, -0.5, 1.5)
            nn.init.uniform_(module.bias, -0.5, 0.5)
            nn.init.uniform_(module.running_var, 0.5, 2)
            nn.init.normal_(module.running_mean)
        if isinstance(module, StageGrid):
            nn.init.normal_(module.mean)
            nn.init.uniform_(module.std, 0.5, 2)
    return network.eval()


def assert_near(got: Tensor, expected: Tensor, tolerance: float) -> None:
    """To a part of the largest value: float32 keeps about 1e-5 of it through so many layers."""
    assert (got - expected).abs().max() < tolerance * expected.abs().max()


@pytest.mark.parametrize(
    ("decoder", "backbone", "norm"),
    [
        ("aspp", "tiny", "abn"),
        ("aspp", "resnet18", "bn"),
        ("aspp", "resnet50", "iabn"),
        ("light", "lite0", "abn"),
        ("light", "resnet18", "iabn"),
        ("stages", "lite0", "abn"),
        ("stages", "resnet18", "abn"),
    ],
)
def test_a_traced_network_predicts_the_same(decoder: str, backbone: str, norm: str) -> None:
    network = random_network(decoder, backbone, norm)
    before = {name: value.clone() for name, value in network.state_dict().items()}
    pictures = images(96, 128)
    with torch.no_grad():
        expected = copy.deepcopy(network).double()(pictures)
        # It pools and pads by operations for all sizes.
        traced = ImageToClasses(Predictor(network)).network
    assert_near(traced(pictures).logits, expected.logits, 1e-4)
    for name, value in network.state_dict().items():
        assert torch.equal(value, before[name]), name
