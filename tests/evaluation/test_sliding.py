import itertools

import pytest
import torch

from nacre.evaluation.inference import predict_classes, sliding_classes, starts
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig


@pytest.mark.parametrize(("length", "window"), [(10, 10), (5, 10), (11, 10), (100, 32), (97, 30)])
def test_windows_cover_a_side_and_overlap(length, window):
    begins = starts(length, window)
    assert begins[0] == 0
    assert begins[-1] == max(0, length - window)
    for one, other in itertools.pairwise(begins):
        assert 0 < other - one <= window * 2 / 3 + 1


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(1)
    config = DeepLabConfig(backbone="tiny", decoder_channels=8)
    return build_network(config, 4, 32).eval()


@torch.inference_mode()
def test_a_picture_of_one_window_is_seen_as_a_whole(network):
    images = torch.randint(0, 255, (2, 3, 24, 32), dtype=torch.uint8)
    expected = predict_classes(network(images).logits, (24, 32))
    assert torch.equal(sliding_classes(network, images, 32), expected)


@torch.inference_mode()
def test_each_window_decides_where_it_is_alone(network):
    images = torch.randint(0, 255, (1, 3, 32, 80), dtype=torch.uint8)
    labels = sliding_classes(network, images, 32)
    assert labels.shape == (1, 32, 80)
    left = predict_classes(network(images[..., :32]).logits, (32, 32))
    alone = starts(80, 32)[1]
    assert torch.equal(labels[..., :alone], left[..., :alone].long())
