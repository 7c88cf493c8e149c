"""Real networks of transformers, smp and torchvision: widening forgets nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nacre.losses.reference import unbiased_cross_entropy, unbiased_distillation, upsample
from nacre.models.adapter import Adapter
from nacre.models.external import pixels_of
from nacre.models.probe import scores_of, scoring_layer
from nacre.models.widen import Teacher, widen

CLASSES = 4
SIZE = 64

TINY_VIT = {
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 2,
    "intermediate_size": 16,
    "image_size": SIZE,
}


def hf(model: str, config: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import transformers

        settings = getattr(transformers, config)(num_labels=CLASSES, **options)
        return getattr(transformers, model)(settings)  # type: ignore[no-any-return]

    return build


TRANSFORMERS = {
    "segformer": hf(
        "SegformerForSemanticSegmentation",
        "SegformerConfig",
        hidden_sizes=[8, 16, 16, 16],
        depths=[1, 1, 1, 1],
        decoder_hidden_size=16,
    ),
    "mobilenet-v2": hf("MobileNetV2ForSemanticSegmentation", "MobileNetV2Config"),
    "mobilevit": hf("MobileViTForSemanticSegmentation", "MobileViTConfig", image_size=SIZE),
    "dpt": hf(
        "DPTForSemanticSegmentation",
        "DPTConfig",
        backbone_out_indices=[0, 1, 2, 3],
        neck_hidden_sizes=[8, 8, 8, 8],
        fusion_hidden_size=8,
        **TINY_VIT,
    ),
    "beit": hf(
        "BeitForSemanticSegmentation", "BeitConfig", out_indices=[1, 2, 3, 4], **TINY_VIT
    ),
}  # fmt: skip


def smp(name: str) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        import segmentation_models_pytorch

        make = getattr(segmentation_models_pytorch, name)
        return make("resnet18", encoder_weights=None, classes=CLASSES)  # type: ignore[no-any-return]

    return build


def torchvision(name: str, **options: Any) -> Callable[[], nn.Module]:
    def build() -> nn.Module:
        from torchvision.models import segmentation

        make = getattr(segmentation, name)
        nothing = {"weights": None, "weights_backbone": None}
        return make(num_classes=CLASSES, **nothing, **options)  # type: ignore[no-any-return]

    return build


NEED_TORCHVISION = {
    "smp unet": smp("Unet"),
    "smp deeplabv3+": smp("DeepLabV3Plus"),
    "smp segformer": smp("Segformer"),
    "deeplabv3 with aux": torchvision("deeplabv3_mobilenet_v3_large", aux_loss=True),
    "lraspp": torchvision("lraspp_mobilenet_v3_large"),
}


def trained(build: Callable[[], nn.Module]) -> nn.Module:
    """A network whose norms have the statistics of its features, as after training."""
    torch.manual_seed(0)
    network = build()
    momenta = {m: m.momentum for m in network.modules() if isinstance(m, nn.BatchNorm2d)}
    for module in momenta:
        module.momentum = 1.0
    with torch.no_grad():
        network.train()(images())
    for module, momentum in momenta.items():
        module.momentum = momentum
    return network.eval()


def images() -> Tensor:
    return torch.randn(2, 3, SIZE, SIZE, generator=torch.Generator().manual_seed(5))


def widening_forgets_nothing(network: nn.Module) -> None:
    with torch.no_grad():
        p = scores_of(network(images())).softmax(1)
    teacher = Teacher(network)
    widened = widen(network, ["crack", "rust"])
    with torch.no_grad():
        q = scores_of(network(images())).softmax(1)
    torch.testing.assert_close(q[:, 1:CLASSES], p[:, 1:], rtol=0, atol=1e-5)
    folded = q[:, 0] + q[:, CLASSES:].sum(1)
    torch.testing.assert_close(folded, p[:, 0], rtol=0, atol=1e-5)
    first = update(network, teacher, length=1e-5)
    assert update(network, teacher, length=0) < first
    assert widened.deviation < 1e-4


def update(network: nn.Module, teacher: Teacher, length: float) -> float:
    """Move all parameters by so much against MiB's gradient; return the loss before it."""
    labels = torch.zeros(2, SIZE, SIZE, dtype=torch.long)
    labels[:, 16:48, 16:48] = CLASSES
    logits, old = (
        upsample(one, (SIZE, SIZE)) for one in (scores_of(network(images())), teacher(images()))
    )
    loss = unbiased_cross_entropy(logits, labels, CLASSES) + unbiased_distillation(logits, old)
    network.zero_grad()
    loss.backward()
    gradients = {one: one.grad for one in network.parameters() if one.grad is not None}
    norm = torch.nn.utils.get_total_norm(gradients.values())
    with torch.no_grad():
        for parameter, gradient in gradients.items():
            parameter.sub_(gradient, alpha=length / float(norm))
    return float(loss.detach())


def its_backbone_is_found(network: nn.Module) -> None:
    adapter = Adapter(network)
    assert "backbone" in adapter.provides
    part = adapter.backbone_or_none
    assert part is not None
    inside, score = (
        {*part.parameters()},
        {*scoring_layer(network, adapter._main_layer).parameters()},
    )
    assert inside
    assert not inside & score
    before = adapter(images()).logits
    with torch.no_grad():
        for one in inside:
            one.mul_(1.5)
    assert not torch.allclose(adapter(images()).logits, before), "scores are made of it"


@pytest.mark.parametrize("name", [*TRANSFORMERS, *NEED_TORCHVISION])
def test_widening_forgets_nothing_and_the_backbone_is_found(
    name: str, request: pytest.FixtureRequest
) -> None:
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    else:
        request.getfixturevalue("foreign_libraries")
    network = trained({**TRANSFORMERS, **NEED_TORCHVISION}[name])
    widening_forgets_nothing(network)
    its_backbone_is_found(network)
    if name in TRANSFORMERS:
        assert network.config.num_labels == CLASSES + 2  # type: ignore[union-attr]
        assert network.config.id2label[CLASSES + 1] == "rust"  # type: ignore[union-attr]


def test_transformers_save_and_load_a_widened_network(tmp_path: Any) -> None:
    transformers = pytest.importorskip("transformers")
    network = trained(TRANSFORMERS["segformer"])
    widen(network, ["crack"])
    network.save_pretrained(tmp_path)  # type: ignore[operator]
    again = transformers.SegformerForSemanticSegmentation.from_pretrained(tmp_path)
    torch.testing.assert_close(again(images()).logits, network(images()).logits)
    assert again.config.id2label[CLASSES] == "crack"


def test_stages_and_pixels_of_segformer() -> None:
    transformers = pytest.importorskip("transformers")
    network = trained(TRANSFORMERS["segformer"])
    pixels = pixels_of(transformers.SegformerImageProcessor().to_dict())
    stages = tuple(f"segformer.stages.{i}.layer_norm" for i in range(4))
    adapter = Adapter(network, pixels=pixels, stages=stages)
    output = adapter(torch.zeros(1, 3, SIZE, 2 * SIZE, dtype=torch.uint8))
    assert adapter.stride == 4
    assert output.logits.shape == (1, CLASSES, SIZE // 4, SIZE // 2)
    assert output.features.shape == (1, 16, SIZE // 32, SIZE // 16)


@pytest.mark.usefixtures("foreign_libraries")
def test_torchvisions_scores_are_read_before_upsampling() -> None:
    adapter = Adapter(trained(NEED_TORCHVISION["deeplabv3 with aux"]))
    assert adapter.upsamples
    assert adapter.stride == 16
    corners = Adapter(trained(NEED_TORCHVISION["smp deeplabv3+"]))
    assert not corners.upsamples  # smp aligns corners
