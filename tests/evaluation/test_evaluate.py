"""Counting over a whole test: in any precision, with the scores looked at once."""

import contextlib

import pytest
import torch
from torch import Tensor, nn

from nacre.errors import NacreError
from nacre.evaluation.evaluate import evaluate, report_forgetting
from nacre.evaluation.metrics import ConfusionMatrix, confusion_matrix
from nacre.evaluation.predictor import Predictor
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig
from nacre.models.deeplab import DeepLab
from nacre.models.network import Output
from nacre.utils.device import FLOAT32, Precision

CPU = torch.device("cpu")


class ByColor(nn.Module):
    """Tells red, green and blue apart, by a convolution."""

    num_classes = 3
    alignment = 1

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


def colored(seed, size=(6, 10), count=2):
    g = torch.Generator().manual_seed(seed)
    truth = torch.randint(0, 3, (count, *size), generator=g)
    images = nn.functional.one_hot(truth, 3).permute(0, 3, 1, 2) * 255
    wrong = torch.rand(truth.shape, generator=g) < 0.2
    return images.byte(), torch.where(wrong, 255, truth.roll(1, 0)).byte()


def counts_of(network, batches, precision=FLOAT32, on_images=lambda count: None) -> Tensor:
    confusion = ConfusionMatrix(network.num_classes, CPU)
    evaluate(Predictor(network), batches, [confusion], CPU, on_images, precision)
    return confusion.counts()


def test_half_precision_gives_the_same_counts():
    network, batches = ByColor(), [colored(seed) for seed in range(3)]
    counts = [
        counts_of(network, batches, Precision(dtype, "a test"))
        for dtype in (torch.float32, torch.bfloat16)
    ]
    assert torch.equal(*counts)
    assert network.types == {torch.float32, torch.bfloat16}
    assert counts[0].sum() == sum((truth != 255).sum() for _, truth in batches)


def test_every_pixel_is_counted_where_it_is():
    """Images are wider than high: height and width cannot stand for one another."""
    batches = [colored(seed) for seed in range(3)]
    wanted = sum(confusion_matrix(truth, images.argmax(1), 3) for images, truth in batches)
    assert torch.equal(counts_of(ByColor(), batches), wanted)


def test_everyone_is_told_of_every_image():
    told = []
    counts_of(ByColor(), [colored(0, count=3), colored(1, count=1)], on_images=told.append)
    assert told == [3, 1]


def test_a_batch_does_not_change_what_a_network_with_batch_norm_says():
    network = ByColor()
    network.norm = nn.BatchNorm2d(3)
    convolve = network.conv.forward
    network.conv.forward = lambda images: network.norm(convolve(images))
    network.train()
    images, truth = colored(0, count=4)
    alone = [(images[i : i + 1], truth[i : i + 1]) for i in range(4)]
    assert torch.equal(counts_of(network, alone), counts_of(network, [(images, truth)]))
    assert not network.norm.running_mean.any()


def test_scores_that_are_no_numbers_in_any_batch_are_said_at_the_end():
    network, batches = ByColor(), [colored(seed) for seed in range(3)]
    forward, seen = network.forward, []

    def damaged(images):
        output = forward(images)
        seen.append(len(images))
        logits = output.logits.clone()
        if len(seen) == 2:
            logits[0, 0, 3, 4] = torch.nan  # one pixel of one image is enough
        return Output(logits, *[output.features] * 2)

    network.forward = damaged
    with pytest.raises(NacreError, match="not finite numbers"):
        counts_of(network, batches)
    assert len(seen) == 3


@pytest.mark.parametrize("target", [3, 7, 254])
@pytest.mark.parametrize("predicted", [0, 2])
def test_a_target_that_is_no_channel_is_refused(target: int, predicted: int):
    truth = torch.tensor([[0, 1, target]], dtype=torch.uint8)
    found = torch.tensor([[0, 1, predicted]], dtype=torch.uint8)
    counter = ConfusionMatrix(3, CPU)
    counter.update(truth, found)
    for count in (counter.counts, lambda: confusion_matrix(truth, found, 3)):
        with pytest.raises(NacreError, match="1 pixels have a target that is not one of the 3"):
            count()


def test_the_last_of_256_channels_is_compared_with_itself():
    scores = torch.zeros(1, 256, 1, 1)
    scores[:, 255] = 1
    report = report_forgetting(
        lambda images: scores,
        lambda images: scores,
        [(torch.zeros(1, 3, 4, 4), torch.zeros(1, 4, 4).short())],
    )
    assert report.agreement[255] == 1


@pytest.mark.parametrize("fails", [False, True])
def test_every_module_gets_its_own_mode_back(fails):
    network = ByColor()
    network.norm = nn.BatchNorm2d(3)
    network.train()
    network.norm.eval()
    batches = [colored(0)[:1]] if fails else [colored(0)]  # images without labels cannot be counted
    with pytest.raises(ValueError, match="unpack") if fails else contextlib.nullcontext():
        counts_of(network, batches)
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
    assert not after[1].running_mean.any()
    after[1].train()
    report_forgetting(before, after, [(images.float(), truth)])
    assert not after[1].running_mean.any(), "it was looked at in eval mode"


def test_a_report_of_forgetting_counts_unknown_pixels_as_background() -> None:
    torch.manual_seed(0)
    network = build_network(DeepLabConfig(backbone="tiny", decoder_channels=8), 3, 32).eval()
    assert isinstance(network, DeepLab)
    with torch.no_grad():
        network.classifier.rows[0].bias[1] += 6  # without the row, all would be class 1
        network.classifier.add_row("unknown")
        network.classifier.unknown.bias += 12
    images, targets = torch.zeros(1, 3, 32, 32), torch.zeros(1, 32, 32, dtype=torch.long)
    assert report_forgetting(network, network, [(images, targets)]).after[0] == 1
