"""Counting over a whole test: in any precision, with the scores looked at once."""

import contextlib

import pytest
import torch
from torch import nn

from nacre.errors import NacreError
from nacre.evaluation.evaluate import ConfusionCounter, evaluate
from nacre.evaluation.forgetting import report_forgetting
from nacre.evaluation.metrics import confusion_matrix
from nacre.models.network import Output
from nacre.utils.device import Precision

CPU = torch.device("cpu")


class ByColor(nn.Module):
    """Tells red, green and blue apart, by a convolution."""

    num_classes = 3

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 1)
        self.types = set()
        with torch.no_grad():
            self.conv.weight.copy_(torch.eye(3)[:, :, None, None])
            self.conv.bias.zero_()

    def forward(self, images):
        scores = self.conv(images.float() / 255)
        self.types.add(scores.dtype)
        return Output(scores, scores, scores)


def colored(seed):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, 3, (2, 8, 8), generator=g)
    images = nn.functional.one_hot(truth, 3).permute(0, 3, 1, 2) * 255
    wrong = torch.rand(truth.shape, generator=g) < 0.2
    return images.byte(), torch.where(wrong, 255, truth.roll(1, 0)).byte()


def test_half_precision_gives_the_same_counts():
    network, batches = ByColor(), [colored(seed) for seed in range(3)]
    counts = [
        evaluate(network, batches, CPU, precision=Precision(dtype, "a test"))
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert torch.equal(*counts)
    assert network.types == {torch.float32, torch.bfloat16}
    assert counts[0].sum() == sum((truth != 255).sum() for _, truth in batches)


def test_scores_that_are_no_numbers_in_any_batch_are_said_at_the_end():
    network, batches = ByColor(), [colored(seed) for seed in range(3)]
    forward, seen = network.forward, []

    def damaged(images):
        output = forward(images)
        seen.append(len(images))
        return Output(output.logits * (torch.nan if len(seen) == 2 else 1), *[output.features] * 2)

    network.forward = damaged
    with pytest.raises(NacreError, match="not finite numbers"):
        evaluate(network, batches, CPU)
    assert len(seen) == 3


@pytest.mark.parametrize("copies", [1, 5, 64])
def test_a_gpu_counts_in_several_matrices_what_a_cpu_counts_in_one(copies, monkeypatch):
    batches = [colored(seed)[1] for seed in range(4)]
    counter = ConfusionCounter(3, CPU)
    counter._counts = torch.zeros(copies, 10, dtype=torch.int64)
    expected = torch.zeros(3, 3, dtype=torch.int64)
    for truth in batches:
        predicted = truth.roll(2, 1).clamp(max=2)
        counter.add_on_device(truth, predicted)
        expected += confusion_matrix(truth, predicted, 3)
    assert torch.equal(counter.total(), expected)


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_gets_its_own_mode_back(fails):
    network = ByColor()
    network.norm = nn.BatchNorm2d(3)
    network.train()
    network.norm.eval()
    batches = [colored(0)[:1]] if fails else [colored(0)]  # images without labels cannot be counted
    with pytest.raises(ValueError, match="unpack") if fails else contextlib.nullcontext():
        evaluate(network, batches, CPU)
    assert (network.training, network.conv.training, network.norm.training) == (True, True, False)


def test_a_report_of_forgetting_leaves_frozen_batch_norm_frozen():
    before = ByColor().eval()
    after = nn.Sequential(nn.Conv2d(3, 4, 1), nn.BatchNorm2d(4))
    after.train()
    after[1].eval()
    images, truth = colored(0)
    report_forgetting(before, after, [(images.float(), truth)])
    assert [module.training for module in (before, after, after[0], after[1])] == [
        False,
        True,
        True,
        False,
    ]
