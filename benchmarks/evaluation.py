"""From low-resolution logits to the confusion matrix, against upsampling first, in one run.

    python benchmarks/evaluation.py                # 512 x 512 from stride 16
    python benchmarks/evaluation.py --threads 1    # processor time: steadier on a busy machine
    python benchmarks/evaluation.py --tiny         # for correctness only

The straightforward side does what research code does: upsample the logits, `max(1)`, select the
pixels that count by a mask, histogram. The two sides take turns and the shortest time of each
counts; peak memory is measured in a fresh process for each, above what its inputs take.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from measuring import peak_bytes, shortest_times
from nacre.evaluation.argmax import predict_labels
from nacre.evaluation.confusion import confusion_matrix
from nacre.losses import IGNORED


@dataclass(frozen=True)
class Case:
    classes: int
    batch: int
    size: int = 512
    faster: float | None = None  # goal

    @property
    def name(self) -> str:
        return f"{self.classes} classes, batch {self.batch}, {self.size} x {self.size}"


CASES = [
    Case(151, 4, faster=3),
    Case(21, 4),
    # For the memory: four times the pixels, or nearly four times the classes.
    Case(151, 4, size=1024),
    Case(600, 4),
]
TINY = [Case(7, 2, size=64), Case(300, 1, size=48)]


def make(case: Case = TINY[0]) -> tuple[Tensor, Tensor]:
    """Logits at stride 16 and the truth, some of it ignored."""
    g = torch.Generator().manual_seed(0)
    low, shape = case.size // 16, (case.batch, case.size, case.size)
    logits = torch.randn(case.batch, case.classes, low, low, generator=g)
    truth = torch.randint(0, case.classes, shape, generator=g)
    # A class cannot have the number of the ignored label.
    truth[(truth == IGNORED) | (torch.rand(shape, generator=g) < 0.05)] = IGNORED
    return logits, truth.to(torch.uint8 if case.classes <= IGNORED else torch.int16)


def straightforward(logits: Tensor, truth: Tensor) -> Tensor:
    classes = logits.shape[1]
    full = F.interpolate(logits, size=truth.shape[-2:], mode="bilinear", align_corners=False)
    _, predicted = full.max(1)
    counted = truth != IGNORED
    cells = classes * truth[counted].long() + predicted[counted]
    return torch.bincount(cells, minlength=classes**2).view(classes, classes)


def by_strips(logits: Tensor, truth: Tensor) -> Tensor:
    predicted = predict_labels(logits, (truth.shape[-2], truth.shape[-1]))
    return confusion_matrix(truth, predicted, logits.shape[1])


def measure_case(case: Case, rounds: int) -> dict[str, float]:
    inputs = make(case)
    expected, actual = straightforward(*inputs), by_strips(*inputs)
    assert actual.sum() == expected.sum()
    # Only a tie within rounding may fall to another class.
    differing = float((actual - expected).abs().sum() / 2 / expected.sum())
    assert differing < 1e-4, f"{case.name}: {differing:.1e} of the pixels differ"
    slow, fast = shortest_times(
        lambda: straightforward(*inputs), lambda: by_strips(*inputs), rounds=rounds
    )
    slow_peak = peak_bytes(straightforward, make, case)
    fast_peak = peak_bytes(by_strips, make, case)
    return {
        "straightforward_s": slow,
        "strips_s": fast,
        "times_faster": slow / fast,
        "straightforward_mib": slow_peak / 2**20,
        "strips_mib": fast_peak / 2**20,
        "strips_bytes_per_pixel": fast_peak / inputs[1].numel(),
    }


def measure(tiny: bool = False, rounds: int = 3) -> dict[str, dict[str, float]]:
    """Return times, peak memory and ratios by case; the goal is in `CASES`."""
    cases = TINY if tiny else CASES
    return {case.name: measure_case(case, 1 if tiny else rounds) for case in cases}


def print_table(results: dict[str, dict[str, float]]) -> None:
    goals = {case.name: case.faster for case in CASES}
    print(f"{'':36}{'seconds':>16}{'faster':>16}{'peak MiB':>16}{'bytes a pixel':>16}")
    for name, r in results.items():
        goal = goals.get(name)
        print(
            f"{name:36}"
            f"{r['straightforward_s']:8.2f}{r['strips_s']:8.3f}"
            f"{r['times_faster']:7.1f} {f'(goal {goal:g})' if goal else '':8}"
            f"{r['straightforward_mib']:8.0f}{r['strips_mib']:8.1f}"
            f"{r['strips_bytes_per_pixel']:16.1f}"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiny", action="store_true", help="small, for correctness only")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    results = measure(args.tiny, args.rounds)
    if args.json:
        print(json.dumps(results, indent=2))
    else:
        print_table(results)


if __name__ == "__main__":
    main()
