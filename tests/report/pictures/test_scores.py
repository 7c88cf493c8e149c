"""Pictures show what the metrics count: a row for what is unknown is background."""

import numpy as np
import pytest
import torch

import nacre
from nacre.evaluation.predictor import Predictor
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.report.pictures.predict import TestImage, predict_masks


@pytest.fixture
def unknowing() -> DeepLab:
    """A network to which everything is unknown."""
    torch.manual_seed(0)
    model = DeepLabConfig(backbone="tiny", decoder_channels=8)
    network = build_network(model, 3, 32).eval()
    assert isinstance(network, DeepLab)
    with torch.no_grad():
        network.classifier.rows[0].bias[1] += 6
        network.classifier.add_row("unknown")
        network.classifier.unknown.bias += 12
    return network


def test_a_picture_shows_what_is_unknown_as_background(unknowing: DeepLab) -> None:
    pixels = np.zeros((32, 32, 3), np.uint8)
    image = TestImage("one", pixels, np.zeros((32, 32), np.uint8))
    assert not predict_masks(Predictor(unknowing), [image])[0].any()
    unknowing.classifier.keep_rows(frozenset())
    assert (predict_masks(Predictor(unknowing), [image])[0] == 1).all()


def test_a_report_of_forgetting_counts_what_is_unknown_as_background(unknowing: DeepLab) -> None:
    images, targets = torch.zeros(1, 3, 32, 32), torch.zeros(1, 32, 32, dtype=torch.long)
    report = nacre.report_forgetting(unknowing, unknowing, [(images, targets)])
    assert report.after[0] == 1
