"""External networks as students: pixels, channels, feature maps, growing, saving."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from models.small_networks import CLASSES, NETWORKS, Small, conv, make
from nacre.errors import NacreError
from nacre.losses.reference import distillation, upsample
from nacre.losses.softmax import fused_losses
from nacre.models.adapter import IMAGENET, Adapter
from nacre.models.external import pixels_of
from nacre.models.feature_maps import as_map
from nacre.models.probe import scores_of

IMAGES = torch.randint(0, 256, (2, 3, 16, 16), dtype=torch.uint8)


def adapted(name: str = "tensor", **options: Any) -> Adapter:
    return Adapter(make(name), **options).eval()


@pytest.mark.parametrize("name", NETWORKS)
def test_scores_are_the_networks_own(name: str) -> None:
    adapter = adapted(name)
    mean, std = (torch.tensor(c).view(3, 1, 1) for c in (IMAGENET.mean, IMAGENET.std))
    expected = scores_of(adapter.model((IMAGES / 255 - mean) / std))
    logits = adapter(IMAGES).logits
    size = (expected.shape[-2], expected.shape[-1])
    found, expected = upsample(logits, size).log_softmax(1), expected.log_softmax(1)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    assert adapter.stride == 16 // logits.shape[-1]
    assert adapter.num_classes == expected.shape[1]


@pytest.mark.parametrize(
    ("name", "side"), [("tensor", 8), ("out", 8), ("sum", 16), ("linear", 8), ("temperature", 16)]
)
def test_scores_are_read_before_bilinear_upsampling(name: str, side: int) -> None:
    """The fused losses then never keep them at full size."""
    assert adapted(name)(IMAGES).logits.shape[-2:] == (side, side)


def test_scores_are_read_after_any_other_upsampling() -> None:
    class Corners(Small):
        def forward(self, images: Tensor) -> Any:
            scores = self.score(self.body(images))
            size = images.shape[-2:]
            return nn.functional.interpolate(scores, size, mode="bilinear", align_corners=True)

    assert Adapter(Corners(conv()))(IMAGES).logits.shape[-2:] == (16, 16)


def test_pixels_are_normalized_as_by_the_processor() -> None:
    usual = {"image_mean": [0.5] * 3, "image_std": [0.25] * 3}
    seen: list[Tensor] = []

    class Looks(Small):
        def forward(self, images: Tensor) -> Any:
            seen.append(images)
            return self.scores(images)

    for said, expected in [
        ({}, (IMAGES / 255 - 0.5) / 0.25),
        ({"do_normalize": False}, IMAGES / 255),
        ({"do_rescale": False}, IMAGES.float()),
    ]:
        Adapter(Looks(conv()), pixels=pixels_of(usual | said))(IMAGES)
        torch.testing.assert_close(seen[-1], expected)
    for wrong in ([0.5], None):
        with pytest.raises(NacreError, match="image_mean and image_std"):
            pixels_of(usual | {"image_mean": wrong})


@pytest.mark.parametrize("background", [0, 2, None])
def test_background_comes_first_and_new_classes_last(background: int | None) -> None:
    adapter = adapted(background=background)
    own = adapter(IMAGES).logits
    adapter.grow(2, "background")
    output = adapter(IMAGES).logits
    inner = scores_of(adapter.model(adapter.normalize(IMAGES)))
    order = [c for c in range(CLASSES + 2) if c != background]
    torch.testing.assert_close(upsample(output[:, 1:], (16, 16)), inner[:, order])
    assert output.shape[1] == adapter.num_classes == CLASSES + 2 + (background is None)
    if background is None:
        assert (output.softmax(1)[:, 0] == 0).all()
    else:
        old, kept = (one[:, 1:CLASSES].softmax(1) for one in (own, output))
        torch.testing.assert_close(kept, old)


def test_without_background_an_unlabeled_pixel_may_be_any_old_class() -> None:
    """The fused losses handle the constant channel without NaN."""
    adapter = adapted(background=None)
    teacher = copy.deepcopy(adapter)
    adapter.grow(2, "background")
    student, old = adapter(IMAGES).logits, teacher(IMAGES).logits
    student = student.detach().requires_grad_()
    labels = torch.zeros(2, 8, 8, dtype=torch.uint8)
    labels[0] = CLASSES + 2  # the second new class; the rest is not labeled
    losses = fused_losses(student, labels, old, ce="unbiased", kd="plain")
    log_q = student.log_softmax(1)
    any_old = log_q[1, 1 : CLASSES + 1].logsumexp(0)
    expected = -(log_q[0, CLASSES + 2] + any_old).mean() / 2
    torch.testing.assert_close(losses["ce"], expected)
    # over the K + 1 channels that the teacher is said to have, of which one is always 0
    kept = distillation(student[:, 1:], old[:, 1:]) * CLASSES / (CLASSES + 1)
    torch.testing.assert_close(losses["kd"], kept)
    (losses["ce"] + losses["kd"]).backward()
    assert student.grad is not None
    assert student.grad.isfinite().all()
    assert (student.grad[:, 0] == 0).all()


def test_the_input_of_the_scoring_layer_is_the_decoders_output() -> None:
    output = adapted()(IMAGES)
    assert output.decoder_features.shape == (2, 6, 8, 8)
    tokens = adapted("linear")(IMAGES)
    assert tokens.decoder_features.shape == (2, 6, 8, 8)


def test_stages_by_name() -> None:
    adapter = adapted(stages=("body.0", "body.3"))
    output = adapter(IMAGES)
    assert output.features.shape == (2, 6, 8, 8)
    torch.testing.assert_close(output.features.relu(), output.decoder_features)
    with pytest.raises(NacreError, match=r"no module 'body.9' \(did you mean 'body"):
        adapted(stages=("body.9",))


@pytest.mark.parametrize("extra", [0, 1, 5])
def test_tokens_become_a_map_of_the_images_proportions(extra: int) -> None:
    features = torch.randn(2, 7, 4, 6)
    tokens = torch.cat([torch.zeros(2, extra, 7), features.flatten(2).transpose(1, 2)], 1)
    found = as_map(tokens, (64, 96))
    assert found is not None
    assert torch.equal(found, features)
    assert as_map(torch.ones(2, 13, 7), (64, 96)) is None
    assert as_map(torch.ones(2, 7), (64, 96)) is None


def test_a_copy_shares_nothing_with_the_original() -> None:
    adapter = adapted(stages=("body",))
    before = adapter(IMAGES).logits
    teacher = copy.deepcopy(adapter)
    adapter.grow(1, "background")
    nn.init.zeros_(adapter.model.body[0].weight)  # type: ignore[index, arg-type]
    assert torch.equal(teacher(IMAGES).logits, before)
    assert teacher(IMAGES).features.std() > adapter(IMAGES).features.std()


@pytest.mark.parametrize("name", NETWORKS)
def test_a_saved_state_loads_into_a_new_adapter(name: str) -> None:
    adapter = adapted(name)
    adapter.grow(2, "background")
    adapter.grow(1, "random")
    state = adapter.state_dict()
    anew = Adapter(NETWORKS[name][0]()).eval()
    count = anew.num_classes
    anew.match_state(state)
    anew.load_state_dict(state)
    assert anew.num_classes == count + 3
    if name == "linear":  # whose forward pass asks for the number
        anew.model.num_classes = count + 3  # type: ignore[assignment]
    torch.testing.assert_close(anew(IMAGES).logits, adapter(IMAGES).logits)
    anew.grow(1, "background")
    assert anew(IMAGES).logits.shape[1] == count + 4


def test_logits_are_float32_under_autocast() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert adapted()(IMAGES).logits.dtype == torch.float32
