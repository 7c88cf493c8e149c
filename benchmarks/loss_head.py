"""Time and peak memory of the fused losses against upsampling first, as ratios in one run.

    python benchmarks/loss_head.py                 # 512 x 512 from stride 16, forward + backward
    python benchmarks/loss_head.py --threads 1     # processor time: steadier on a busy machine
    python benchmarks/loss_head.py --tiny          # for correctness only

The straightforward side does what research code does: upsample both networks' logits, then plain
PyTorch operations on tensors of full resolution. The two sides take turns and the shortest time of
each counts; peak memory is measured in a fresh process for each, above what its inputs take.
Values and gradients of the two are compared as well.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from measuring import peak_bytes, shortest_times
from nacre.losses import IGNORED, fused_binary_losses, fused_losses

WEIGHT = 10.0


@dataclass(frozen=True)
class Case:
    method: str
    classes: int
    old: int
    batch: int
    size: int = 512
    faster: float | None = None  # goals
    leaner: float | None = None

    @property
    def name(self) -> str:
        return f"{self.method}, {self.classes} classes ({self.old} old), batch {self.batch}"


CASES = [
    Case("mib", 151, 101, 4, faster=9, leaner=12),
    Case("mib", 21, 16, 8, faster=10, leaner=20),
    Case("lwf", 21, 16, 8),
    Case("ft", 21, 16, 8),
    Case("lwf-mc", 21, 16, 8),
]
TINY = [Case(method, 7, 4, 2, size=64) for method in ("mib", "lwf", "ft", "lwf-mc")]

Inputs = tuple[str, Tensor, Tensor, Tensor]


def make(case: Case = TINY[0]) -> Inputs:
    """Student's and teacher's logits at stride 16 and labels, nearly half of them background."""
    g = torch.Generator().manual_seed(0)
    low, shape = case.size // 16, (case.batch, case.size, case.size)
    logits = torch.randn(case.batch, case.classes, low, low, generator=g) * 2
    old_logits = torch.randn(case.batch, case.old, low, low, generator=g) * 2
    labels = torch.randint(case.old, case.classes, shape, generator=g)
    labels[torch.rand(shape, generator=g) < 0.45] = 0
    labels[torch.rand(shape, generator=g) < 0.05] = IGNORED
    return case.method, logits, old_logits, labels.to(torch.uint8)


def straightforward(method: str, logits: Tensor, old_logits: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient with respect to the low-resolution logits."""
    x = logits.clone().requires_grad_()
    size = labels.shape[-2:]
    student = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
    teacher = F.interpolate(old_logits, size=size, mode="bilinear", align_corners=False)
    STRAIGHTFORWARD[method](student, teacher, labels.long()).backward()
    assert x.grad is not None
    return x.grad


def straightforward_mib(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    old = teacher.shape[1]
    total = torch.logsumexp(student, dim=1)
    scores = torch.zeros_like(student)
    scores[:, 0] = torch.logsumexp(student[:, :old], dim=1) - total
    scores[:, old:] = student[:, old:] - total.unsqueeze(1)
    ce = F.nll_loss(scores, labels, ignore_index=IGNORED)
    new_or_background = [0, *range(old, student.shape[1])]
    log_background = torch.logsumexp(student[:, new_or_background], dim=1) - total
    log_old = student[:, 1:old] - total.unsqueeze(1)
    p = torch.softmax(teacher, dim=1)
    kd = -(p[:, 0] * log_background + (p[:, 1:] * log_old).sum(1)) / old
    return ce + WEIGHT * kd.mean()


def straightforward_lwf(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    ce = F.cross_entropy(student, labels, ignore_index=IGNORED)
    log_q = torch.log_softmax(student[:, : teacher.shape[1]], dim=1)
    kd = -(torch.softmax(teacher, dim=1) * log_q).mean(1)
    return ce + WEIGHT * kd.mean()


def straightforward_ft(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    return F.cross_entropy(student, labels, ignore_index=IGNORED)


def straightforward_lwf_mc(student: Tensor, teacher: Tensor, labels: Tensor) -> Tensor:
    classes, old = student.shape[1], teacher.shape[1]
    counted = labels != IGNORED
    one_hot = F.one_hot(torch.where(counted, labels, classes), classes + 1)
    targets = one_hot.permute(0, 3, 1, 2)[:, :classes].float()
    bce = F.binary_cross_entropy_with_logits(student, targets, reduction="none").sum(1)
    kd = F.binary_cross_entropy_with_logits(student[:, :old], torch.sigmoid(teacher))
    return bce[counted].mean() + WEIGHT * old * kd


STRAIGHTFORWARD: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mib": straightforward_mib,
    "lwf": straightforward_lwf,
    "ft": straightforward_ft,
    "lwf-mc": straightforward_lwf_mc,
}


def fused(method: str, logits: Tensor, old_logits: Tensor, labels: Tensor) -> Tensor:
    """Return the gradient with respect to the low-resolution logits."""
    x = logits.clone().requires_grad_()
    if method == "mib":
        losses = fused_losses(x, labels, old_logits, ce="unbiased", kd="unbiased")
    elif method == "lwf":
        losses = fused_losses(x, labels, old_logits, ce="plain", kd="plain")
    elif method == "ft":
        losses = fused_losses(x, labels)
    else:
        losses = fused_binary_losses(x, labels, old_logits, distil=True)
    supervised, *distilled = losses.values()
    (supervised + WEIGHT * sum(distilled)).backward()
    assert x.grad is not None
    return x.grad


def measure_case(case: Case, rounds: int) -> dict[str, float]:
    inputs = make(case)
    expected, actual = straightforward(*inputs), fused(*inputs)
    error = float((actual - expected).abs().max() / expected.abs().max())
    assert error < 1e-5, f"{case.name}: gradients differ by {error:.1e}"
    slow, fast = shortest_times(
        lambda: straightforward(*inputs), lambda: fused(*inputs), rounds=rounds
    )
    slow_peak = peak_bytes(straightforward, make, case)
    fast_peak = peak_bytes(fused, make, case)
    return {
        "straightforward_s": slow,
        "fused_s": fast,
        "times_faster": slow / fast,
        "straightforward_mib": slow_peak / 2**20,
        "fused_mib": fast_peak / 2**20,
        "times_less_memory": slow_peak / max(fast_peak, 1),
        "gradient_error": error,
    }


def measure(tiny: bool = False, rounds: int = 3) -> dict[str, dict[str, float]]:
    """Return times, peak memory and ratios by case; the goals are in `CASES`."""
    cases = TINY if tiny else CASES
    return {case.name: measure_case(case, 1 if tiny else rounds) for case in cases}


def print_table(results: dict[str, dict[str, float]]) -> None:
    goals = {case.name: (case.faster, case.leaner) for case in CASES}
    print(f"{'':42}{'seconds':>16}{'faster':>16}{'peak MiB':>16}{'less memory':>16}")
    for name, r in results.items():
        faster, leaner = (f"(goal {g:g})" if g else "" for g in goals.get(name, (None, None)))
        print(
            f"{name:42}"
            f"{r['straightforward_s']:8.2f}{r['fused_s']:8.3f}"
            f"{r['times_faster']:6.1f} {faster:9}"
            f"{r['straightforward_mib']:8.0f}{r['fused_mib']:8.1f}"
            f"{r['times_less_memory']:6.1f} {leaner:9}"
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
