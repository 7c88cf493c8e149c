"""What the ledger costs at the paper's scale, on paper: nothing is learned, products are counted.

    python benchmarks/ledger_scale.py

ResNet-101 at output stride 16 on crops of 512 pixels: multiplications and additions of a forward
pass, of the sums and of a solve, and the bytes that are kept, for VOC 15-1 and ADE20K 100-10 in the
overlapped setup. `tests/facts` has which class is in which image; a class is counted as if it
touched all points of the grid in its images, which is the most that it can.
"""

from __future__ import annotations

import lzma
from pathlib import Path

import torch
from torch.utils.flop_counter import FlopCounterMode

from nacre.labels.channels import from_background
from nacre.losses.pixel_sums import _BLOCK
from nacre.methods import METHODS
from nacre.models.build import build_network
from nacre.models.config import DeepLabConfig

FACTS = Path(__file__).parents[1] / "tests" / "facts"
CROP, STRIDE = 512, 16
TASKS = {
    "VOC 15-1": ("voc_train_aug", [15, 1, 1, 1, 1, 1]),
    "ADE20K 100-10": ("ade20k_train", [100, 10, 10, 10, 10, 10]),
}


def labels_of(name: str) -> list[set[int]]:
    """Return the labels of each training image."""
    with lzma.open(FACTS / f"{name}.csv.xz", "rt") as file:
        lines = file.read().splitlines()[1:]
    return [{int(label) for label in line.split(",")[1].split()} for line in lines]


def main() -> None:
    method = METHODS["ledger"](METHODS["ledger"].Config(), from_background(0, 1))
    model = method.network_config(DeepLabConfig(backbone="resnet101", norm="bn"))
    with torch.device("meta"):
        network = build_network(model, 2, CROP, load=False).eval()
        counter = FlopCounterMode(display=False)
        with torch.no_grad(), counter:
            network.read_maps(torch.zeros(1, 3, CROP, CROP, dtype=torch.uint8))
    head = network.decoder
    maps, features = head.map_channels, head.channels
    forward = counter.get_total_flops()
    points = (CROP // STRIDE) ** 2
    pair = points * maps * (maps + _BLOCK)
    row = 4 * features * (features + 1) // 2 + 8 * features
    print(f"features {features:,}; a row {row / 2**20:.1f} MiB in the file, ", end="")
    print(f"{8 * (features + 1) ** 2 / 2**20:.0f} MiB while it is counted")
    print(f"forward pass {forward / 1e9:.0f} GFLOP; sums of a class in an image {pair / 1e9:.1f}")
    for task, (name, counts) in TASKS.items():
        images, first, held = labels_of(name), 1, []
        for count in counts:
            own = set(range(first, first + count))
            held += [len(labels & own) for labels in images if labels & own]
            first += count
        rows, kept = sum(counts) + len(counts), (sum(counts) + len(counts)) * row / 2**30
        sums = (sum(held) + len(held)) * pair / 1e15
        counting = 8 * (counts[0] + 1) * (features + 1) ** 2 / 2**30
        print(
            f"{task}: {len(held):,} images, {len(held) * forward / 1e15:.1f} PFLOP of forward "
            f"passes, at most {sums:.1f} of sums; {rows} rows, {kept:.1f} GiB kept; step 0 counts "
            f"in {counting:.1f} GiB; a solve {features**3 / 3e12:.2f} TFLOP in float64"
        )


if __name__ == "__main__":
    main()
