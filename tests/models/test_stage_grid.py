"""The stages of a backbone on one grid, and networks whose classifier reads them."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from nacre.errors import NacreError
from nacre.evaluation.predictor import Predictor
from nacre.export.graph import ImageToClasses
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.io import ModelInfo, load_model, save_model
from nacre.models.stage_grid import StageGrid


def on_stages(backbone: str = "tiny", crop: int = 64, **values: Any) -> tuple[DeepLab, StageGrid]:
    config = DeepLabConfig(backbone=backbone, decoder="stages", **values)
    network = build_network(config, 3, crop)
    assert isinstance(network, DeepLab)
    grid = network.decoder
    assert isinstance(grid, StageGrid)
    torch.nn.init.normal_(grid.mean)
    torch.nn.init.uniform_(grid.std, 0.5, 2)
    return network.eval(), grid


@pytest.mark.parametrize(("backbone", "stride"), [("tiny", 8), ("lite0", 16), ("resnet18", 8)])
def test_every_stage_lies_on_the_grid(backbone: str, stride: int) -> None:
    network, grid = on_stages(backbone, grid_stride=stride)
    images = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8)
    stages = network.read_maps(images)
    assert [(one.shape[1], 64 // one.shape[2]) for one in stages] == list(network.backbone.stages)
    joined = grid.join(stages)
    size = (64 // stride, 96 // stride)
    assert joined.shape == (2, grid.channels, *size)
    widths = [one.shape[1] for one in stages]
    *parts, _ = joined.split([*widths, widths[-1]], 1)
    for one, part in zip(stages, parts, strict=True):
        wanted = one
        if one.shape[2] > size[0]:
            wanted = F.adaptive_avg_pool2d(one, size)
        elif one.shape[2] < size[0]:
            wanted = F.interpolate(one, size, mode="bilinear", align_corners=False)
        torch.testing.assert_close(part, wanted)
    assert network.stride == stride


def test_an_image_of_the_crop_has_one_mean_and_a_larger_one_the_mean_of_a_window() -> None:
    network, grid = on_stages(crop=64)
    for size, covered in ((64, True), (128, False)):
        stages = network.read_maps(torch.randint(0, 256, (1, 3, size, size), dtype=torch.uint8))
        assert grid.covers(stages) == covered
        means = grid.join(stages)[:, grid.map_channels :]
        whole = stages[-1].mean((2, 3), keepdim=True)
        assert torch.allclose(means, whole.expand_as(means), atol=1e-5) == covered


@pytest.mark.parametrize("size", [(64, 64), (50, 71), (8, 9)])
def test_any_size_has_as_many_points_as_the_stride_says_rounded_up(size: tuple[int, int]) -> None:
    network, _ = on_stages()
    output = network(torch.zeros(1, 3, *size, dtype=torch.uint8))
    assert output.logits.shape[-2:] == tuple(-(-side // 16) for side in size)


@pytest.mark.parametrize(("backbone", "stride"), [("lite0", 16), ("lite0", 8), ("resnet18", 16)])
def test_folded_and_traced_networks_say_the_same(backbone: str, stride: int) -> None:
    network, _ = on_stages(backbone, grid_stride=stride)
    images = torch.randint(0, 256, (1, 3, 96, 128), dtype=torch.uint8)
    wanted = network(images).logits
    torch.testing.assert_close(network.fused()(images).logits, wanted, rtol=1e-3, atol=1e-3)
    exported = ImageToClasses(Predictor(network))
    torch.testing.assert_close(exported.network(images).logits, wanted, rtol=1e-3, atol=1e-3)


def test_a_model_file_keeps_the_grid_and_its_constants(tmp_path: Any) -> None:
    network, grid = on_stages(grid_stride=8)
    names = ["background", "a", "b"]
    info = ModelInfo(
        classes=names,
        colors=[(0, 0, i) for i in range(3)],
        labels=[0, 1, 2],
        steps=[3],
        lineage=[],
        model={},
        crop=64,
        predict_mode="crop",
        config={},
    )
    save_model(tmp_path / "model.safetensors", network, info, {})
    loaded, _, _ = load_model(tmp_path / "model.safetensors")
    assert isinstance(loaded, DeepLab)
    assert isinstance(loaded.decoder, StageGrid)
    assert loaded.decoder.stride == 8
    assert torch.equal(loaded.decoder.std, grid.std)


def test_a_grid_finer_than_all_stages_is_refused() -> None:
    with pytest.raises(NacreError, match="needs one of stride 16 or less"):
        StageGrid([(96, 32)], stride=16, crop=None)
