"""Labels by strips against upsampling and argmax."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from nacre.errors import NacreError
from nacre.evaluation.predictor import check_finite
from nacre.evaluation.upsampling import Maps, predict_classes, upsample_maps, whole_maps
from nacre.losses import strips, upsample

sides = st.integers(1, 8)


@settings(max_examples=60, deadline=None)
@given(
    low=st.tuples(sides, sides),
    size=st.tuples(st.integers(1, 40), st.integers(1, 40)),
    channels=st.integers(1, 30),
    strip_bytes=st.sampled_from([1, 9000, 1 << 20]),
    seed=st.integers(0, 2**31),
)
def test_equals_argmax_in_float64(
    low: tuple[int, int], size: tuple[int, int], channels: int, strip_bytes: int, seed: int
) -> None:
    g = torch.Generator().manual_seed(seed)
    logits = torch.randn(2, channels, *low, generator=g, dtype=torch.float64)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(strips, "_CPU_STRIP_BYTES", strip_bytes)
        labels = predict_classes(whole_maps(logits), size)
    assert labels.dtype == torch.uint8
    assert torch.equal(labels.long(), upsample(logits, size).argmax(1))


@pytest.mark.parametrize(
    ("low", "size"), [((8, 8), (128, 128)), ((7, 9), (100, 131)), ((33, 33), (33, 33))]
)
def test_equals_argmax_in_float32_but_for_rounding(
    low: tuple[int, int], size: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(2, 151, *low)
    labels = predict_classes(whole_maps(logits), size).long()
    full = upsample(logits, size)
    best, expected = full.max(1)
    assert (labels != expected).sum() <= 2
    torch.testing.assert_close(full.gather(1, labels[:, None])[:, 0], best, rtol=0, atol=1e-5)


def test_first_of_equal_channels_wins() -> None:
    logits = torch.tensor([1.0, 3.0, 3.0, 2.0, 3.0]).view(1, 5, 1, 1)
    assert (predict_classes(whole_maps(logits), (4, 6)) == 1).all()
    assert (predict_classes(whole_maps(torch.zeros(1, 5, 2, 2)), (4, 6)) == 0).all()


@pytest.mark.parametrize("channels", [255, 256, 1000])
def test_last_channel_has_room_in_the_type(channels: int) -> None:
    logits = torch.zeros(1, channels, 2, 2)
    logits[:, -1] = 1
    labels = predict_classes(whole_maps(logits), (5, 5))
    assert labels.dtype == (torch.uint8 if channels <= 255 else torch.int16)
    assert (labels == channels - 1).all()


def test_half_precision_and_autocast_are_computed_in_float32() -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, 21, 6, 6).bfloat16()
    expected = predict_classes(whole_maps(logits.float()), (50, 50))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(predict_classes(whole_maps(logits), (50, 50)), expected)
        assert torch.equal(predict_classes(whole_maps(logits.float()), (50, 50)), expected)


def test_logits_are_left_alone_in_inference_mode_too() -> None:
    with torch.inference_mode():
        logits = torch.randn(1, 3, 4, 4)
        same = logits.clone()
        predict_classes(whole_maps(logits), (4, 4))
        assert torch.equal(logits, same)
    predict_classes(whole_maps(logits), (4, 4))
    assert torch.equal(logits, same)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_logits_that_are_no_numbers_are_refused(bad: float) -> None:
    logits = torch.zeros(1, 3, 4, 4)
    logits[0, 1, 2, 2] = bad
    with pytest.raises(NacreError, match="not finite numbers"):
        check_finite(logits)


@settings(max_examples=40, deadline=None)
@given(
    image=st.tuples(st.integers(1, 60), st.integers(1, 60)),
    size=st.tuples(st.integers(1, 70), st.integers(1, 70)),
    stride=st.sampled_from([1, 4, 16]),
)
def test_what_lies_beyond_the_image_is_cut_off(
    image: tuple[int, int], size: tuple[int, int], stride: int
) -> None:
    """Scores that grow along a side say where a pixel lies in the padded image."""
    grid = [-(-side // stride) for side in image]
    rows = torch.arange(grid[0], dtype=torch.float64)[:, None] + 0.5
    columns = torch.arange(grid[1], dtype=torch.float64) + 0.5
    scores = torch.stack([rows.expand(*grid), columns.expand(*grid)])[None]
    inside = (image[0] / stride, image[1] / stride)
    found = upsample_maps(Maps(scores, inside), size)[0]
    for channel, dim in ((0, 0), (1, 1)):
        place = (torch.arange(size[dim], dtype=torch.float64) + 0.5) * inside[dim] / size[dim]
        wanted = place.clamp(0.5, grid[dim] - 0.5)
        assert torch.allclose(found[channel].movedim(dim, -1)[0], wanted, atol=1e-4)
    classes = predict_classes(Maps(scores, inside), size)
    assert torch.equal(classes[0].long(), found[None].argmax(1)[0])
