"""The light decoder: several stages, logits at half the output stride, like any head elsewhere."""

from pathlib import Path
from typing import Any

import pytest
import torch

from nacre.errors import NacreError
from nacre.export.graph import ImageToClasses
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.fuse_bn import fuse_conv_bn
from nacre.models.io import find_model, load_model
from nacre.models.light import LightDecoder
from nacre.models.tiny import Tiny
from nacre.runs.run import run_scenario
from nacre.training.config import build_config
from nacre.training.step import make_teacher


def light(backbone: str = "resnet18", **values: Any) -> DeepLab:
    config = DeepLabConfig(backbone=backbone, decoder="light", decoder_channels=8, **values)
    network = build_network(config, 3, 64)
    assert isinstance(network, DeepLab)
    for module in network.modules():  # statistics that a mistake in folding would show
        if isinstance(getattr(module, "running_var", None), torch.Tensor):
            torch.nn.init.uniform_(module.running_var, 0.5, 2)  # type: ignore[arg-type]
            torch.nn.init.normal_(module.running_mean)  # type: ignore[arg-type]
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
def test_it_reads_late_stages_and_the_last_finer_one(
    backbone: str, stride: int, reads: tuple[int, ...]
) -> None:
    network = light(backbone, output_stride=stride)
    assert network.head.reads == reads
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


@pytest.mark.parametrize("backbone", ["lite0", "resnet18"])
def test_folded_and_traced_networks_say_the_same(backbone: str) -> None:
    network = light(backbone)
    images = torch.randint(0, 256, (1, 3, 96, 128), dtype=torch.uint8)
    wanted = network(images).logits
    torch.testing.assert_close(fuse_conv_bn(network)(images).logits, wanted, rtol=1e-4, atol=1e-4)
    exported = ImageToClasses(network)  # pools by other operations
    torch.testing.assert_close(exported.network(images).logits, wanted, rtol=1e-4, atol=1e-4)


def test_a_teacher_that_shares_the_backbone_says_what_it_would_say_alone() -> None:
    network = light()
    teacher = make_teacher(network, "backbone")
    assert isinstance(teacher, DeepLab)
    assert teacher.backbone is network.backbone
    assert teacher.head is not network.head
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    output = network(images)
    seen = teacher.decode_again(output)
    torch.testing.assert_close(seen.logits, teacher(images).logits, rtol=0, atol=0)


def test_a_backbone_that_is_frozen_from_step_0_on_never_moves(tmp_path: Path) -> None:
    config = build_config(
        overrides={
            "scenario": "scenes/4-4/overlapped",
            "data": {"train": 8, "val": 4, "size": 32, "seed": 3},
            "model": {"backbone": "resnet18", "decoder": "light", "decoder_channels": 8},
            "images": {"crop_size": 32, "augmentation": "flip"},
            "train": {"epochs": 1, "batch_size": 4, "optimizer": "adamw", "lr": 0.001},
            "method": {"name": "mib", "parts": {"freeze_step_0": True}},
        }
    )
    run_scenario(config, tmp_path)
    torch.manual_seed(config.seed * 1000)  # as step 0 draws its weights
    drawn = build_network(config.model, 5, 32).state_dict()
    learned = load_model(find_model(tmp_path))[0].state_dict()
    for name, value in drawn.items():
        if name.startswith("backbone."):
            assert torch.equal(learned[name], value), name
    assert any(
        not torch.equal(learned[name], value)
        for name, value in drawn.items()
        if name.startswith("head.")
    )
