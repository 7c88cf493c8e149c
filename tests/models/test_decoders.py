"""Decoders: DeepLabv3's sum and pooling, and the light one of several stages."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from nacre.errors import NacreError
from nacre.models.backbone import Backbone
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.decoders import (
    AsppDecoder,
    LightDecoder,
    StageGrid,
    WindowPool,
    default_atrous_rates,
)
from nacre.models.deeplab import DeepLab
from nacre.models.io import find_model, load_model
from nacre.models.resnet import Tiny
from nacre.runs.run import run_scenario
from nacre.training.config import build_config
from nacre.training.loop import make_teacher


def features(*shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(0))


def aspp(window: int | None = 4) -> AsppDecoder:
    torch.manual_seed(0)
    backbone = SimpleNamespace(channels=6, stride=1, atrous_rates=(1, 2, 3))
    return AsppDecoder(cast(Backbone, backbone), width=3, crop=window)


def by_hand(net: AsppDecoder, x: Tensor, pooled: Tensor) -> Tensor:
    """The decoder in eval with fresh norms, which divide by sqrt(1 + eps) alone."""

    def act(y: Tensor) -> Tensor:
        return F.leaky_relu(y / (1 + 1e-5) ** 0.5, 0.01)

    weights = list(net.branches.parameters())
    branches = [F.conv2d(x, weights[0])]
    branches += [F.conv2d(x, weights[d], padding=d, dilation=d) for d in (1, 2, 3)]
    y = F.conv2d(act(torch.cat(branches, 1)), net.reduce.weight)
    z = F.conv2d(act(F.conv2d(pooled, net.pooled.weight)), net.pooled_reduce.weight)
    return act(y + z)


@pytest.mark.parametrize(("window", "size"), [(None, (5, 7)), (4, (4, 4)), (4, (3, 2))])
def test_sum_of_branches_and_the_mean_of_an_image_not_larger_than_the_window(
    window: int | None, size: tuple[int, int]
) -> None:
    net, x = aspp(window).eval(), features(2, 6, *size)
    torch.testing.assert_close(net(x), by_hand(net, x, x.mean((2, 3), keepdim=True)))


def test_window_around_each_feature_of_a_large_image() -> None:
    net, x = aspp(window=4).eval(), features(1, 6, 7, 9)
    means = torch.empty(1, 6, 7, 9)
    for row in range(7):
        for column in range(9):
            # windows begin one feature before theirs, and stay inside the image
            top, left = min(max(row - 1, 0), 7 - 4), min(max(column - 1, 0), 9 - 4)
            means[..., row, column] = x[..., top : top + 4, left : left + 4].mean((2, 3))
    torch.testing.assert_close(net(x), by_hand(net, x, means))


def test_global_mean_in_training_whatever_the_window() -> None:
    x = features(2, 6, 9, 9)
    torch.testing.assert_close(aspp(window=4)(x), aspp(window=None)(x))


def test_dilations_reach_equally_far_at_every_stride() -> None:
    assert default_atrous_rates(16) == (6, 12, 18)
    assert default_atrous_rates(8) == (12, 24, 36)
    assert default_atrous_rates(32) == (3, 6, 9)


@pytest.mark.parametrize("window", [1, 4, 5, 8])
@pytest.mark.parametrize("size", [(1, 1), (3, 9), (4, 5), (8, 8), (9, 20)])
def test_pooling_for_all_sizes_equals_pooling_for_one(window: int, size: tuple[int, int]) -> None:
    pool, x = WindowPool(window).eval(), torch.randn(2, 6, *size)
    wanted = pool(x).expand_as(x)
    pool.any_size = True
    assert torch.allclose(pool(x), wanted, atol=1e-6)


def light(backbone: str = "resnet18", **values: Any) -> DeepLab:
    config = DeepLabConfig(backbone=backbone, decoder="light", decoder_channels=8, **values)
    network = build_network(config, 3, 64)
    assert isinstance(network, DeepLab)
    return network.eval()


@pytest.mark.parametrize(
    ("backbone", "stride", "reads"),
    [
        ("lite0", 16, (2, 4, 5, 6)),
        ("lite0", 32, (4, 5, 6)),
        ("resnet18", 16, (1, 2, 3)),
        ("resnet18", 8, (0, 1, 2, 3)),
    ],
)
def test_the_light_decoder_reads_late_stages_and_the_last_finer_one(
    backbone: str, stride: int, reads: tuple[int, ...]
) -> None:
    network = light(backbone, output_stride=stride)
    assert network.decoder.reads == reads
    assert network.stride == stride // 2
    images = torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8)
    _, stages = network.backbone.forward_stages(torch.zeros(1, 3, 64, 64))
    sides = tuple((stage.shape[1], 64 // stage.shape[-1]) for stage in stages)
    assert sides == network.backbone.stages, "channels and strides are as the backbone says"
    assert network(images).logits.shape == (2, 3, 128 // stride, 192 // stride)


def test_a_backbone_of_one_stride_is_refused_in_one_sentence() -> None:
    backbone = Tiny()
    backbone.stages = ((48, 8), (96, 8))
    with pytest.raises(NacreError, match=r"decoder=light needs stages of two strides.*aspp"):
        LightDecoder(backbone, width=8, crop=None)


def test_a_teacher_that_shares_the_backbone_predicts_what_it_would_alone() -> None:
    network = light()
    teacher = make_teacher(network, "backbone")
    assert isinstance(teacher, DeepLab)
    assert teacher.backbone is network.backbone
    assert teacher.decoder is not network.decoder
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    output = network(images)
    seen = teacher.decode_again(output)
    assert seen is not None
    torch.testing.assert_close(seen.logits, teacher(images).logits, rtol=0, atol=0)


def test_a_backbone_that_is_frozen_from_step_0_on_never_moves(tmp_path: Path) -> None:
    config = build_config(
        overrides={
            "scenario": "scenes/4-4/overlapped",
            "data": {"train": 8, "val": 4, "size": 32, "seed": 3},
            "model": {"backbone": "resnet18", "decoder": "light", "decoder_channels": 8},
            "images": {"crop_size": 32, "crop": "plain"},
            "train": {"epochs": 1, "batch_size": 4, "optimizer": "adamw", "lr": 0.001},
            "method": {"name": "mib", "freeze_step_0": True},
        }
    )
    run_scenario(config, tmp_path)
    torch.manual_seed(config.seed * 1000)  # as step 0 draws its weights
    drawn = build_network(config.model, 5, 32).state_dict()
    learned = load_model(find_model(tmp_path))[0].state_dict()
    moved = {name for name, value in drawn.items() if not torch.equal(learned[name], value)}
    assert not any(name.startswith("backbone.") for name in moved)
    assert any(name.startswith("decoder.") for name in moved)


# The stages of a backbone on one grid


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


@pytest.mark.parametrize(
    ("stride", "size", "coarse"), [(16, 64, 0), (8, 64, 704), (8, 50, 704), (8, 128, 0)]
)
def test_the_parts_of_a_grid_equal_the_joined_grid(stride: int, size: int, coarse: int) -> None:
    network, grid = on_stages("lite0", crop=64, grid_stride=stride)
    stages = network.read_maps(torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8))
    maps, rows, few = grid.parts(stages)
    assert (0 if few is None else few.shape[1]) == coarse
    if few is not None:
        up = F.interpolate(few, maps.shape[-2:], mode="bilinear")
        maps = torch.cat([maps, up], 1)
    beside = rows[:, :, None, None].expand(-1, -1, *maps.shape[-2:])
    torch.testing.assert_close(torch.cat([maps, beside], 1), grid.join(stages))


@pytest.mark.parametrize("size", [(64, 64), (50, 71), (8, 9)])
def test_any_size_has_as_many_points_as_the_stride_says_rounded_up(size: tuple[int, int]) -> None:
    network, _ = on_stages()
    output = network(torch.zeros(1, 3, *size, dtype=torch.uint8))
    assert output.logits.shape[-2:] == tuple(-(-side // 16) for side in size)


@pytest.mark.parametrize("stride", [32, 14])
def test_a_grid_that_no_stage_can_be_averaged_to_is_refused(stride: int) -> None:
    with pytest.raises(NacreError, match=f"whose stride divides 16, but .* are {stride}:"):
        StageGrid([(96, stride)], stride=16, crop=None)


@pytest.mark.parametrize("strides", [(4, 12, 12), (32, 4, 32), (4, 9, 32)])
def test_stages_of_other_strides_are_put_on_the_grid(strides: tuple[int, ...]) -> None:
    """Sums over a grid see three points at most of a coarser stage, and more of another one."""
    grid = StageGrid([(3, stride) for stride in strides], stride=16, crop=None)
    stages = tuple(torch.rand(1, 3, -(-64 // stride), -(-96 // stride)) for stride in strides)
    maps, rows, coarse = grid.parts(stages)
    assert coarse is None
    beside = rows[:, :, None, None].expand(-1, -1, *maps.shape[-2:])
    torch.testing.assert_close(torch.cat([maps, beside], 1), grid.join(stages))
