"""Blocks of a large picture are what windows over the whole picture give."""

import pytest
import torch

from nacre.evaluation.inference import sliding_classes
from nacre.evaluation.tiles import strip_width, tiled_classes
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig


@pytest.fixture(scope="module")
def network():
    torch.manual_seed(0)
    config = DeepLabConfig(backbone="tiny", decoder_channels=8)
    network = build_network(config, [4], crop=32).eval()
    for conv in network.classifier.modules():
        if isinstance(conv, torch.nn.Conv2d):
            # No class is likelier than another over all pixels, so that all of them occur.
            logits = network(torch.randint(0, 256, (1, 3, 64, 64))).logits
            conv.bias.data.sub_(logits.detach().mean((0, 2, 3)))
    return network


@pytest.mark.parametrize("size", [(32, 32), (20, 90), (75, 101), (130, 40)])
@pytest.mark.parametrize("strip", [16, 40, 200])
def test_blocks_are_the_sliding_windows_of_the_whole(network, size, strip) -> None:
    image = torch.randint(0, 256, (3, *size), dtype=torch.uint8)
    read = []

    def part(rows, columns):
        read.append((rows, columns))
        return image[:, rows, columns]

    found = torch.full(size, 255, dtype=torch.uint8)
    for block in tiled_classes(network, part, size, 32, strip):
        found[block.rows, block.columns] = block.classes
    with torch.inference_mode():
        wanted = sliding_classes(network, image[None], 32)[0]
    assert len(wanted.unique()) > 1
    assert (found == wanted).float().mean() > 0.999
    assert all(rows.stop - rows.start <= 32 for rows, _ in read)


def test_every_window_of_a_strip_is_seen_once(network) -> None:
    image = torch.zeros(3, 130, 101, dtype=torch.uint8)
    read = []

    def part(rows, columns):
        read.append((rows.start, columns.start))
        return image[:, rows, columns]

    for _ in tiled_classes(network, part, (130, 101), 32, 101):
        pass
    assert len(read) == len(set(read))


def test_strips_are_as_wide_as_memory_allows_and_a_window_at_least() -> None:
    assert 4 * 21 * 512 * strip_width(512, 21) <= 128 << 20
    assert strip_width(512, 10_000) == 512
