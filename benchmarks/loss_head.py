"""Time and peak memory of losses by strips against upsampling first, as ratios in one run.

    python benchmarks/loss_head.py                 # 512 x 512 from stride 16, forward + backward
    python benchmarks/loss_head.py --threads 1     # processor time: steadier on a busy machine
    python benchmarks/loss_head.py --tiny          # for correctness only

The straightforward side does what research code does: upsample both networks' logits, then plain
PyTorch operations on tensors of full resolution. The two sides take turns and the shortest time of
each counts; peak memory is measured in a fresh process for each, above what its inputs take.
Values and gradients of the two are compared as well. Two of the losses are also compared with the
whole update that they are a part of: of the network that `nacre learn` takes by default, and of the
paper's.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from measuring import Row, command, peak_bytes, take_turns
from methods import make_batch, trainer_of
from nacre.losses import (
    IGNORE_INDEX,
    binary_cross_entropy,
    binary_distillation,
    by_strips,
    fused_losses,
    pixel_count,
)
from nacre.models.config import DeepLabConfig
from nacre.training.loop import update
from nacre.utils.system import keep_freed_memory

WEIGHT = 10.0


@dataclass(frozen=True)
class Case:
    method: str
    classes: int
    old: int
    batch: int
    size: int = 512
    stride: int = 16
    faster: float | None = None  # goals
    leaner: float | None = None

    @property
    def name(self) -> str:
        return f"losses of {self.method}, {self.classes} classes, batch {self.batch}"


CASES = [
    Case("mib", 151, 101, 4, faster=9, leaner=12),
    Case("mib", 21, 16, 8, faster=10, leaner=20),
    Case("lwf", 21, 16, 8),
    Case("ft", 21, 16, 8),
    Case("lwf-mc", 21, 16, 8),
    Case("mib", 7, 5, 16, size=160),
    Case("lwf-mc", 7, 5, 16, size=160),
]
DEFAULT = DeepLabConfig(backbone="lite0", decoder="light", decoder_channels=128)
PAPERS = DeepLabConfig(backbone="resnet101", norm="iabn")
UPDATES = [
    *((Case(method, 7, 5, 16, size=160, stride=8), DEFAULT, True) for method in ("mib", "lwf-mc")),
    *((Case(method, 21, 16, 2), PAPERS, False) for method in ("mib", "lwf-mc")),
]
"""What losses are a part of: the network, and whether its backbone is frozen."""

TINY = [Case(method, 7, 4, 2, size=64) for method in ("mib", "lwf", "ft", "lwf-mc")]

Inputs = tuple[str, Tensor, Tensor, Tensor]


def make(case: Case = TINY[0]) -> Inputs:
    """Student's and teacher's logits at stride 16 and labels, nearly half of them background."""
    g = torch.Generator().manual_seed(0)
    low, shape = case.size // case.stride, (case.batch, case.size, case.size)
    logits = torch.randn(case.batch, case.classes, low, low, generator=g) * 2
    old_logits = torch.randn(case.batch, case.old, low, low, generator=g) * 2
    targets = torch.randint(case.old, case.classes, shape, generator=g)
    targets[torch.rand(shape, generator=g) < 0.45] = 0
    targets[torch.rand(shape, generator=g) < 0.05] = IGNORE_INDEX
    return case.method, logits, old_logits, targets.to(torch.uint8)


def straightforward(method: str, logits: Tensor, old_logits: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient with respect to the low-resolution logits."""
    x = logits.clone().requires_grad_()
    size = targets.shape[-2:]
    student = F.interpolate(x, size=size, mode="bilinear", align_corners=False)
    teacher = F.interpolate(old_logits, size=size, mode="bilinear", align_corners=False)
    STRAIGHTFORWARD[method](student, teacher, targets.long()).backward()
    assert x.grad is not None
    return x.grad


def straightforward_mib(student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
    old = teacher.shape[1]
    total = torch.logsumexp(student, dim=1)
    scores = torch.zeros_like(student)
    scores[:, 0] = torch.logsumexp(student[:, :old], dim=1) - total
    scores[:, old:] = student[:, old:] - total.unsqueeze(1)
    ce = F.nll_loss(scores, targets, ignore_index=IGNORE_INDEX)
    new_or_background = [0, *range(old, student.shape[1])]
    log_background = torch.logsumexp(student[:, new_or_background], dim=1) - total
    log_old = student[:, 1:old] - total.unsqueeze(1)
    p = torch.softmax(teacher, dim=1)
    kd = -(p[:, 0] * log_background + (p[:, 1:] * log_old).sum(1)) / old
    return ce + WEIGHT * kd.mean()


def straightforward_lwf(student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
    ce = F.cross_entropy(student, targets, ignore_index=IGNORE_INDEX)
    log_q = torch.log_softmax(student[:, : teacher.shape[1]], dim=1)
    kd = -(torch.softmax(teacher, dim=1) * log_q).mean(1)
    return ce + WEIGHT * kd.mean()


def straightforward_ft(student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(student, targets, ignore_index=IGNORE_INDEX)


def straightforward_lwf_mc(student: Tensor, teacher: Tensor, targets: Tensor) -> Tensor:
    classes, old = student.shape[1], teacher.shape[1]
    counted = targets != IGNORE_INDEX
    one_hot = F.one_hot(torch.where(counted, targets, classes), classes + 1)
    old_targets = one_hot.permute(0, 3, 1, 2)[:, :classes].float()
    bce = F.binary_cross_entropy_with_logits(student, old_targets, reduction="none").sum(1)
    kd = F.binary_cross_entropy_with_logits(student[:, :old], torch.sigmoid(teacher))
    return bce[counted].mean() + WEIGHT * old * kd


STRAIGHTFORWARD: dict[str, Callable[[Tensor, Tensor, Tensor], Tensor]] = {
    "mib": straightforward_mib,
    "lwf": straightforward_lwf,
    "ft": straightforward_ft,
    "lwf-mc": straightforward_lwf_mc,
}


def fused(method: str, logits: Tensor, old_logits: Tensor, targets: Tensor) -> Tensor:
    """Return the gradient with respect to the low-resolution logits."""
    x = logits.clone().requires_grad_()
    if method == "mib":
        losses = fused_losses(x, targets, old_logits, ce="unbiased", kd="unbiased")
    elif method == "lwf":
        losses = fused_losses(x, targets, old_logits, ce="plain", kd="plain")
    elif method == "ft":
        losses = fused_losses(x, targets)
    else:
        losses = by_strips(lwf_mc_terms(x, targets), x, old_logits, targets)
    supervised, *distilled = losses.values()
    (supervised + WEIGHT * sum(distilled)).backward()
    assert x.grad is not None
    return x.grad


def lwf_mc_terms(x: Tensor, targets: Tensor) -> Callable[..., dict[str, Tensor]]:
    labeled, every = pixel_count(x, targets), targets.numel()
    return lambda x, z, y: {
        "bce": binary_cross_entropy(x, y, num_pixels=labeled),
        "kd": binary_distillation(x, z, num_pixels=every),
    }


def measure_case(case: Case, rounds: int) -> list[Row]:
    inputs = make(case)
    expected, actual = straightforward(*inputs), fused(*inputs)
    error = float((actual - expected).abs().max() / expected.abs().max())
    assert error < 1e-5, f"{case.name}: gradients differ by {error:.1e}"
    seconds = take_turns(
        {"straightforward": lambda: straightforward(*inputs), "fused": lambda: fused(*inputs)},
        rounds,
        often=("fused",),
    )
    mib = {side.__name__: peak_bytes(side, make, case) / 2**20 for side in (straightforward, fused)}
    return [
        Row(
            f"{case.name}: times faster",
            seconds["straightforward"] / seconds["fused"],
            case.faster,
            behind={f"{name} s": value for name, value in seconds.items()},
        ),
        Row(
            f"{case.name}: times less memory",
            mib["straightforward"] / mib["fused"],
            case.leaner,
            behind={f"{name} MiB": value for name, value in mib.items()},
        ),
    ]


def measure_share(case: Case, model: DeepLabConfig, is_frozen: bool, rounds: int) -> Row:
    """Return the time of a case's losses as a share of that of an update."""
    keep_freed_memory()  # as in the commands that train
    name = f"{case.method} with a frozen backbone" if is_frozen else case.method
    trainer = trainer_of(name, model, case.size, case.batch, [case.old], case.classes - case.old)
    assert trainer.network.stride == case.stride, trainer.network.stride
    images = make_batch(case.size, case.batch, case.classes, case.old)
    inputs = make(case)
    jobs = {
        "update": lambda: update(trainer, images),
        "upsampling first": lambda: straightforward(*inputs),
        "here": lambda: fused(*inputs),
    }
    for job in jobs.values():
        job()  # warm-up
    seconds = take_turns(jobs, rounds, often=("here",))
    size = f"{case.batch} x {case.size} x {case.size}"
    return Row(
        f"losses of {case.method}, {model.backbone}{', frozen' if is_frozen else ''}, {size}: "
        "share of an update",
        seconds["here"] / seconds["update"],
        None,
        "most",
        {f"{name} s": value for name, value in seconds.items()},
    )


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return time and peak memory of each case as ratios, and its share of an update."""
    rows = [row for case in (TINY if tiny else CASES) for row in measure_case(case, rounds)]
    updates = [(replace(TINY[0], stride=8), DeepLabConfig(backbone="tiny"), True)]
    return rows + [measure_share(*one, rounds) for one in (updates if tiny else UPDATES)]


if __name__ == "__main__":
    command(measure, __doc__)
