"""Where the time of the preset `small` goes in MiB's incremental step on real images.

    python benchmarks/small_step.py

EfficientNet-Lite0, crops of 160, batches of 16, the second step of voc-animals-4-2 on the part of
VOC in NACRE_TEST_DATA, or generated scenes where that is missing; images are read by the trainer
itself. A few batches are learned as in a run, and the parts are timed by the clock. What is not the
networks' own forward and backward is reading, the losses with their gradients, the optimizer and
the rest. The same is measured with the C library's usual handling of freed memory.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch

from measuring import TEST_DATA, Row, apart, command
from methods import trainer_of
from nacre.data.dataset import train_batches
from nacre.runs.run import open_scenario, step_sampler
from nacre.training.config import RunConfig, build_config
from nacre.training.loop import update
from nacre.utils.system import keep_freed_memory

NETWORKS = ("student forward", "teacher forward", "backward")


class Stopwatch:
    """Adds up the time of functions by name."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}

    def timed(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            result = function(*args, **kwargs)
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start
            return result

        return run


def config_of_step(tiny: bool) -> RunConfig:
    root = TEST_DATA / "voc2012-part"
    values: dict[str, Any] = {"scenario": "voc-animals-4-2", "data": {"root": str(root)}}
    if tiny:
        values = {
            "scenario": "scenes/4-4/overlapped",
            "data": {"train": 48, "val": 12, "size": 32},
            "model": {"backbone": "tiny", "weights": "none"},
            "images": {"crop_size": 32},
        }
    elif not root.exists():
        values = {"scenario": "scenes/4-4/overlapped", "data": {"size": 256}}
    return build_config(preset="small", overrides=values)


def learn_a_little(tiny: bool, keep: bool, batches: int) -> dict[str, float]:
    """Return the seconds of each part of so many updates."""
    if keep:
        keep_freed_memory()
    config = config_of_step(tiny)
    data = open_scenario(config)
    classes = data.scenario.classes
    new = len(classes.new(1))
    trainer = trainer_of(
        "mib",
        config.model,
        config.images.crop_size,
        config.train.batch_size,
        [len(classes.channels(0))],
        new,
    )
    dataset = data.train_dataset(1)
    sampler = step_sampler(config, len(dataset), 1)
    reading = train_batches(dataset, sampler, 0, 0, pin=False)
    update(trainer, next(reading))
    watch = Stopwatch()
    trainer.student = watch.timed("student forward", trainer.network)
    asked = watch.timed("teacher forward", trainer.ask_teacher)
    trainer.ask_teacher = asked  # type: ignore[method-assign]
    trainer.method.losses = watch.timed("losses", trainer.method.losses)
    trainer.scaler.step = watch.timed("optimizer", trainer.scaler.step)
    backward = watch.timed("backward", torch.autograd.backward)
    start = time.perf_counter()
    with mock.patch.object(torch.autograd, "backward", backward):
        for _ in range(batches):
            update(trainer, watch.timed("reading", next)(reading))
    whole = time.perf_counter() - start
    return watch.seconds | {"rest": whole - sum(watch.seconds.values())}


def measure(tiny: bool, rounds: int) -> list[Row]:
    """Return each part's share of the time, and what keeping freed memory saves."""
    sides = {keep: apart(learn_a_little, tiny, keep, 4 * rounds) for keep in (True, False)}
    parts, whole = sides[True], sum(sides[True].values())
    what = "preset small, step of MiB: "
    outside = sum(seconds for name, seconds in parts.items() if name not in NETWORKS)
    rows = [
        Row(
            f"{what}share of time outside the networks",
            outside / whole,
            0.25,
            "most",
            {f"{name} %": 100 * seconds / whole for name, seconds in parts.items()},
        )
    ]
    usual = sum(sides[False].values())
    behind = {"kept s": whole / 4 / rounds, "returned s": usual / 4 / rounds}
    rows.append(Row(f"{what}time if freed memory is returned", usual / whole, behind=behind))
    return rows


if __name__ == "__main__":
    command(measure, __doc__)
