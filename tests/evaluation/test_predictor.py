"""One way from an image of any size to its class map: scaled, padded, through windows, cut back."""

import itertools

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from nacre.errors import NacreError
from nacre.evaluation.predictor import (
    Predictor,
    input_size,
    resize_weights,
    strip_width,
    window_starts,
)
from nacre.evaluation.upsampling import COLOR_STD, DISTANCE_STD_CELLS
from nacre.export.onnx_file import noise_image
from nacre.losses import upsample
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig

SIZES = [(32, 32), (20, 90), (75, 101), (130, 40), (7, 9)]
MODES = ["full", "crop", "sliding"]


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    network = build_network(DeepLabConfig(backbone="tiny", decoder_channels=8), [4], 32).eval()
    for conv in network.classifier.modules():
        if isinstance(conv, torch.nn.Conv2d):
            # No class is likelier than another over all pixels, so that all of them occur.
            logits = network(torch.randint(0, 256, (1, 3, 64, 64))).logits
            conv.bias.data.sub_(logits.detach().mean((0, 2, 3)))
    return network


def image(size: tuple[int, int], seed: int = 0) -> Tensor:
    return torch.from_numpy(noise_image(size, seed)).permute(2, 0, 1)[None]


@pytest.mark.parametrize("size", SIZES)
def test_odd_sides_are_continued_by_the_last_pixels_and_cut_again(network, size) -> None:
    high, wide = (-side % network.alignment for side in size)
    padded = F.pad(image(size).float(), (0, wide, 0, high), mode="replicate")
    whole = (padded.shape[-2], padded.shape[-1])
    with torch.inference_mode():
        wanted = upsample(network(padded).scores, whole)[..., : size[0], : size[1]]
    found = Predictor(network).scores(image(size))
    assert torch.allclose(found, wanted, atol=1e-5)


@pytest.mark.parametrize("size", SIZES)
def test_a_model_of_scaled_crops_sees_the_whole_image_at_that_scale(network, size) -> None:
    seen = input_size(size, "crop", 32)
    assert min(seen) == 32
    assert seen[0] / seen[1] == pytest.approx(size[0] / size[1], rel=0.1)
    scaled = F.interpolate(image(size).float(), seen, mode="bilinear", antialias=True)
    found = Predictor(network, "crop", 32).scores(image(size))
    low = upsample(Predictor(network).scores(scaled), size)
    assert found.shape == (1, 4, *size)
    # Once upsampled in one go, once in two: the same but for what is lost between
    if min(size) > 32:
        assert (found - low).abs().max() < 0.15 * (low.max() - low.min())


@settings(max_examples=50, deadline=None)
@given(inputs=st.integers(1, 400), outputs=st.integers(1, 400))
def test_scaling_is_a_product_with_triangles(inputs: int, outputs: int) -> None:
    line = torch.rand(1, 1, 1, inputs, generator=torch.Generator().manual_seed(inputs)) * 255
    wanted = F.interpolate(line, (1, outputs), mode="bilinear", antialias=True)
    found = line @ resize_weights(inputs, outputs).T
    assert torch.allclose(found, wanted, atol=0.02)


@pytest.mark.parametrize(("length", "window"), [(10, 10), (5, 10), (11, 10), (100, 32), (97, 30)])
def test_windows_cover_a_side_and_overlap(length, window) -> None:
    begins = window_starts(length, window).tolist()
    assert begins[0] == 0
    assert begins[-1] == max(0, length - window)
    for one, other in itertools.pairwise(begins):
        assert 0 < other - one <= window * 2 / 3 + 1


def test_an_image_of_one_window_is_seen_as_a_whole(network) -> None:
    images = torch.cat([image((24, 32), seed) for seed in range(2)])
    whole, through = Predictor(network), Predictor(network, "sliding", 32)
    assert torch.equal(through.classes(images), whole.classes(images))
    assert torch.allclose(through.scores(images), whole.scores(images).softmax(1))


def test_windows_add_up_their_probabilities(network) -> None:
    """Against every window by itself, several rows and columns of them."""
    images, wanted = image((75, 101)), torch.zeros(1, 4, 75, 101)
    for top, left in itertools.product(*(window_starts(side, 32).tolist() for side in (75, 101))):
        place = (..., slice(top, top + 32), slice(left, left + 32))
        wanted[place] += Predictor(network).scores(images[place]).softmax(1)
    predictor = Predictor(network, "sliding", 32)
    assert torch.allclose(predictor.scores(images), wanted, atol=1e-5)
    shares = predictor.probabilities(images)
    assert torch.allclose(shares, wanted / wanted.sum(1, keepdim=True), atol=1e-5)
    whole = Predictor(network).probabilities(images)
    assert torch.allclose(whole, Predictor(network).scores(images).softmax(1))


def test_windows_look_at_the_scale_that_the_model_learned_at(network) -> None:
    images = image((64, 240))
    scaled = F.interpolate(images.float(), (32, 120), mode="bilinear", antialias=True)
    sums = Predictor(network, window=32).scores(scaled)
    found = Predictor(network, "crop", 32, window=32).classes(images)
    assert torch.equal(found.long(), upsample(sums, (64, 240)).argmax(1))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("options", [{}, {"window": 24}, {"mirror": True, "edges": True}])
def test_blocks_are_the_class_map_of_the_whole(network, mode, size, options, monkeypatch) -> None:
    predictor = Predictor(network, mode, 32, **options)
    pixels, found = image(size), torch.full(size, 255, dtype=torch.uint8)
    for strip in (16, 200):
        monkeypatch.setattr("nacre.evaluation.predictor.strip_width", lambda *_, w=strip: w)
        for block in predictor.blocks(lambda r, c: pixels[0][:, r, c], size):
            found[block.rows, block.columns] = block.classes
        assert (found == predictor.classes(pixels)[0]).float().mean() > 0.999


def parts_read(predictor: Predictor, size: tuple[int, int]) -> list[tuple[slice, slice]]:
    """Return the rows and columns of an image that blocks of it ask for."""
    read = []

    def part(rows, columns):
        read.append((rows, columns))
        return torch.zeros(3, rows.stop - rows.start, columns.stop - columns.start).byte()

    for _ in predictor.blocks(part, size):
        pass
    return read


def test_blocks_read_no_more_than_a_window_at_once(network) -> None:
    read = parts_read(Predictor(network, "sliding", 32), (130, 101))
    assert all(rows.stop - rows.start <= 32 for rows, _ in read)
    places = [(rows.start, columns.start) for rows, columns in read]
    assert len(places) == len(set(places))


def test_a_large_image_that_is_scaled_is_never_read_as_a_whole(network) -> None:
    read = parts_read(Predictor(network, "crop", 32), (960, 320))
    assert max(rows.stop - rows.start for rows, _ in read) <= 2 * 10 + 1


def test_strips_are_as_wide_as_memory_allows_and_a_window_at_least() -> None:
    assert 4 * 21 * 512 * strip_width(512, 21) <= 128 << 20
    assert strip_width(512, 10_000) == 512


@pytest.mark.parametrize("size", [(33, 50), (64, 64)])
def test_the_mirror_image_counts_as_much_as_the_image(network, size) -> None:
    predictor = Predictor(network, mirror=True)
    pixels = image(size)
    high, wide = (-side % network.alignment for side in size)
    padded = F.pad(pixels.float(), (0, wide, 0, high), mode="replicate")
    with torch.inference_mode():
        low = (network(padded).scores + network(padded.flip(-1)).scores.flip(-1)) / 2
    whole = (padded.shape[-2], padded.shape[-1])
    wanted = upsample(low, whole)[..., : size[0], : size[1]]
    assert torch.allclose(predictor.scores(pixels), wanted, atol=1e-5)
    assert not torch.equal(predictor.scores(pixels), Predictor(network).scores(pixels))


def test_edge_aware_upsampling_is_joint_bilateral(network) -> None:
    """Against the formula, pixel by pixel in float64."""
    size = (32, 48)
    pixels = image(size)
    with torch.inference_mode():
        low = network(pixels).scores[0].double()
    cell = size[0] // low.shape[1]
    colors = F.avg_pool2d(pixels.double(), cell)[0] / 255
    found = Predictor(network, edges=True).scores(pixels)[0]
    for y, x in itertools.product(range(0, size[0], 5), range(0, size[1], 7)):
        weights, total = 0.0, torch.zeros(4, dtype=torch.float64)
        for dy, dx in itertools.product((-1, 0, 1), repeat=2):
            i, j = y // cell + dy, x // cell + dx
            inner_i, inner_j = np.clip(i, 0, low.shape[1] - 1), np.clip(j, 0, low.shape[2] - 1)
            far = ((y + 0.5) / cell - i - 0.5) ** 2 + ((x + 0.5) / cell - j - 0.5) ** 2
            other = (pixels[0, :, y, x].double() / 255 - colors[:, inner_i, inner_j]).square().sum()
            weight = torch.exp(-far / (2 * DISTANCE_STD_CELLS**2) - other / (2 * COLOR_STD**2))
            weights, total = weights + weight, total + weight * low[:, inner_i, inner_j]
        assert torch.allclose(found[:, y, x].double(), total / weights, atol=1e-4)


def test_edges_are_followed_strip_by_strip(network, monkeypatch) -> None:
    pixels, predictor = image((40, 48)), Predictor(network, edges=True)
    whole = predictor.scores(pixels)
    monkeypatch.setattr("nacre.evaluation.upsampling._STRIP_BYTES", 4 * 9 * 48 * 7)
    assert torch.allclose(predictor.scores(pixels), whole, atol=1e-5)


def test_a_pixel_of_a_color_that_no_cell_has_takes_the_nearest(network) -> None:
    pixels = torch.zeros(1, 3, 32, 32, dtype=torch.uint8)
    pixels[..., 16, 16] = 255
    found = Predictor(network, edges=True).scores(pixels)
    assert found.isfinite().all()
    assert found[..., 16, 16].abs().sum() > 0


@pytest.mark.parametrize("mode", MODES)
def test_too_many_pixels_at_once_are_refused(network, mode, monkeypatch) -> None:
    monkeypatch.setattr("nacre.evaluation.predictor.MAX_PIXELS", 1000)
    with pytest.raises(
        NacreError, match=r"an image of 3 x 400 pixels is too large: .* the maximum is 1,000"
    ):
        Predictor(network, mode, 64).classes(torch.zeros(1, 3, 400, 3, dtype=torch.uint8))
