"""From low-resolution logits to the confusion matrix, against upsampling first, in one run.

    python benchmarks/evaluation.py                # 512 x 512 from stride 16
    python benchmarks/evaluation.py --threads 1    # processor time: steadier on a busy machine
    python benchmarks/evaluation.py --tiny         # for correctness only

The straightforward side does what research code does: upsample the logits, `max(1)`, select the
pixels that count by a mask, histogram. The two sides take turns and the shortest time of each
counts; peak memory is measured in a fresh process for each, above what its inputs take.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from measuring import Row, command, peak_bytes, take_turns
from nacre.evaluation.metrics import confusion_matrix
from nacre.evaluation.upsampling import predict_classes, whole_maps
from nacre.losses import IGNORE_INDEX


@dataclass(frozen=True)
class Case:
    classes: int
    batch: int
    size: int = 512
    faster: float | None = None  # goal

    @property
    def name(self) -> str:
        return f"{self.classes} classes, batch {self.batch}, {self.size} x {self.size}"


CASES = [Case(151, 4, faster=3), Case(21, 4)]
LARGER = [Case(600, 4), Case(151, 4, size=1024)]
TINY = [Case(7, 2, size=64), Case(300, 1, size=48)]


def make(case: Case = TINY[0]) -> tuple[Tensor, Tensor]:
    """Logits at stride 16 and the truth, some of it ignored."""
    g = torch.Generator().manual_seed(0)
    low, shape = case.size // 16, (case.batch, case.size, case.size)
    logits = torch.randn(case.batch, case.classes, low, low, generator=g)
    truth = torch.randint(0, case.classes, shape, generator=g)
    # A class cannot have the number of the ignored label.
    truth[(truth == IGNORE_INDEX) | (torch.rand(shape, generator=g) < 0.05)] = IGNORE_INDEX
    return logits, truth.to(torch.uint8 if case.classes <= IGNORE_INDEX else torch.int16)


def straightforward(logits: Tensor, truth: Tensor) -> Tensor:
    classes = logits.shape[1]
    full = F.interpolate(logits, size=truth.shape[-2:], mode="bilinear", align_corners=False)
    _, predicted = full.max(1)
    counted = truth != IGNORE_INDEX
    cells = classes * truth[counted].long() + predicted[counted]
    return torch.bincount(cells, minlength=classes**2).view(classes, classes)


def by_strips(logits: Tensor, truth: Tensor) -> Tensor:
    predicted = predict_classes(whole_maps(logits), (truth.shape[-2], truth.shape[-1]))
    return confusion_matrix(truth, predicted, logits.shape[1])


def compare(case: Case, rounds: int) -> Row:
    inputs = make(case)
    expected, actual = straightforward(*inputs), by_strips(*inputs)
    assert actual.sum() == expected.sum()
    # Only a tie within rounding may fall to another class.
    differing = float((actual - expected).abs().sum() / 2 / expected.sum())
    assert differing < 1e-4, f"{case.name}: {differing:.1e} of the pixels differ"
    seconds = take_turns(
        {"straightforward": lambda: straightforward(*inputs), "strips": lambda: by_strips(*inputs)},
        rounds,
        often=("strips",),
    )
    return Row(
        f"testing, {case.name}: times faster",
        seconds["straightforward"] / seconds["strips"],
        case.faster,
        behind={f"{name} s": value for name, value in seconds.items()},
    )


def memory(first: Case, second: Case) -> Row:
    """How peak memory grows from one case to another, for so much more to compute."""
    peaks = [peak_bytes(by_strips, make, case) / 2**20 for case in (first, second)]
    more = second.classes * second.size**2 / (first.classes * first.size**2)
    return Row(
        f"testing, {second.name}: memory for {more:.3g} times the logits",
        peaks[1] / peaks[0],
        1.5 * (second.size / first.size) ** 2,  # it may grow with the pixels, and varies a little
        "most",
        behind={"before MiB": peaks[0], "after MiB": peaks[1]},
    )


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return times as ratios, and how the peak memory grows with classes and pixels."""
    cases, larger = (TINY[:1], TINY[1:]) if tiny else (CASES, LARGER)
    rows = [compare(case, rounds) for case in cases]
    return rows + [memory(cases[0], case) for case in larger]


if __name__ == "__main__":
    command(measure, __doc__)
