"""Folding batch norm into the convolutions: time of a forward pass against the network as it is.

    python benchmarks/prediction.py            # lite0, 160 x 160, 1 and 8 images

`nacre predict` and exports fold. Testing and training on a CPU do not, for their results are to be
the same to the bit as ever.
"""

from __future__ import annotations

import torch
from torch import nn

from measuring import Row, command, take_turns
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig


def trained(backbone: str, crop: int) -> nn.Module:
    """Return a network whose norms have seen a batch."""
    torch.manual_seed(0)
    config = DeepLabConfig(backbone=backbone, decoder_channels=128)
    network = build_network(config, 6, crop, load=False)
    with torch.no_grad():
        network(torch.randint(0, 256, (4, 3, crop, crop), dtype=torch.uint8))
    return network.eval()


@torch.inference_mode()
def compare(backbone: str, crop: int, batch: int, rounds: int) -> Row:
    plain = trained(backbone, crop)
    fused = plain.fused()
    images = torch.randint(0, 256, (batch, 3, crop, crop), dtype=torch.uint8)
    expected = plain(images).logits
    assert torch.allclose(fused(images).logits, expected, atol=1e-3 * float(expected.std()))
    jobs = {"plain": lambda: plain(images), "folded": lambda: fused(images)}
    seconds = take_turns(jobs, 4 * rounds)
    return Row(
        f"{backbone}, {batch} of {crop} x {crop}: time with norms folded / as they are",
        seconds["folded"] / seconds["plain"],
        behind={f"{name} s": value for name, value in seconds.items()},
    )


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the times as ratios."""
    if tiny:
        return [compare("tiny", 32, 1, 1)]
    return [compare("lite0", 160, batch, rounds) for batch in (1, 8)]


if __name__ == "__main__":
    command(measure, __doc__)
