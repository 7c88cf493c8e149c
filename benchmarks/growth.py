"""How time and memory of an update grow with classes, crop and steps.

    python benchmarks/growth.py

An update of MiB with EfficientNet-Lite0 and two images, from images to changed parameters. One
thing grows at a time, from 151 classes (half of them old, in one step) and a crop of 256; steps
have one class each. Each case has a process of its own, whose peak above its start counts, and
the shortest of its updates. The figure is the growth from the case before divided by how much
larger the case is: 1 is linear growth, less is better. A crop's size is its pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise

from measuring import PAGE, Row, apart, command, peak_of_process, take_turns
from methods import make_batch, trainer_of
from nacre.models.config import DeepLabConfig
from nacre.training import loop
from nacre.utils.system import keep_freed_memory


@dataclass(frozen=True)
class Case:
    classes: int = 151
    crop: int = 256
    steps: int = 1
    backbone: str = "lite0"


AXES = {
    "classes": [Case(classes=classes) for classes in (21, 151, 500, 1000)],
    "crop": [Case(crop=crop) for crop in (256, 512, 1024)],
    "steps": [Case(classes=steps + 1, steps=steps) for steps in (5, 20, 100)],
}


def update(case: Case, rounds: int) -> tuple[float, float]:
    """Return the seconds of an update and the MiB that networks and update need at most."""
    keep_freed_memory()
    before = peak_of_process()
    old = [1 + case.classes // 2] if case.steps == 1 else [2] + [1] * (case.steps - 2)
    new = case.classes - sum(old)
    model = DeepLabConfig(backbone=case.backbone, decoder_channels=128)
    trainer = trainer_of("mib", model, case.crop, 2, old, new)
    micro_batches = make_batch(case.crop, 2, case.classes, sum(old))
    loop.update(trainer, micro_batches)  # warm-up
    seconds = take_turns({"update": lambda: loop.update(trainer, micro_batches)}, rounds)["update"]
    return seconds, max(peak_of_process() - before, PAGE) / 2**20


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return the growth along each axis."""
    rows = []
    for axis, cases in AXES.items():
        if tiny:
            cases = [replace(case, backbone="tiny", crop=case.crop // 8) for case in cases[:2]]
        measured = [(case, *apart(update, case, rounds)) for case in cases]
        for before, after in pairwise(measured):
            rows += compare(axis, before, after)
    return rows


def compare(
    axis: str, before: tuple[Case, float, float], after: tuple[Case, float, float]
) -> list[Row]:
    sizes = [getattr(one[0], axis) for one in (before, after)]
    larger = (sizes[1] / sizes[0]) ** (2 if axis == "crop" else 1)
    return [
        Row(
            f"update, {axis} {sizes[0]} to {sizes[1]}: growth of {name}, 1 is linear",
            after[i] / before[i] / larger,
            1.1,  # two timings differ by so much
            "most",
            {f"before {unit}": before[i], f"after {unit}": after[i]},
        )
        for i, name, unit in ((1, "time", "s"), (2, "memory", "MiB"))
    ]


if __name__ == "__main__":
    command(measure, __doc__)
