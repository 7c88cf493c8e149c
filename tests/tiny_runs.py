"""Runs that take a second: a few tiny scenes, a tiny network."""

import json
from pathlib import Path
from typing import Any

import pytest

from nacre.runs.run import run_scenario
from nacre.training.config import RunConfig, build_config, deep_merge
from nacre.utils.signals import Interrupted

TINY: dict[str, Any] = {
    "scenario": "scenes/4-2-2/overlapped",
    "data": {"train": 48, "val": 12, "size": 32, "seed": 3},
    "model": {"backbone": "tiny", "decoder_channels": 8},
    "images": {"crop_size": 32, "crop": "plain"},
    "train": {"epochs": 1, "batch_size": 8, "lr": 0.05, "incremental_lr": 0.01},
}


def tiny_config(**changes: Any) -> RunConfig:
    return build_config(overrides=deep_merge(TINY, changes))


def set_options(values: dict[str, Any]) -> list[str]:
    """Return sections of a config as the options of a command."""
    return [
        part
        for section, keys in values.items()
        for key, value in keys.items()
        for part in ("--set", f"{section}.{key}={value}")
    ]


class StopAfter:
    """A stop at the given call."""

    def __init__(self, count: int) -> None:
        self.left = count

    def __call__(self) -> bool:
        self.left -= 1
        return self.left <= 0


def tiny_run(out: Path, **changes: Any) -> dict[str, Any]:
    return run_scenario(tiny_config(**changes), out)


def stopped_run(out: Path, config: RunConfig | None = None, after: int = 2) -> None:
    """Begin a run and stop it at its given check."""
    with pytest.raises(Interrupted):
        run_scenario(config or tiny_config(), out, should_stop=StopAfter(after))


def results(run: Path) -> dict[str, bytes]:
    """Return the models, metrics and lists of kept images, by name."""
    names = ("model.safetensors", "metrics.json", "exemplars.csv")
    found = [path for name in names for path in run.rglob(name)]
    return {str(path.relative_to(run)): path.read_bytes() for path in found}


def learning(run: Path) -> list[list[Any]]:
    """Return the events of a run that do not depend on interruptions."""
    lines = [json.loads(line) for line in (run / "events.jsonl").read_text().splitlines()]
    keys = ("event", "step", "iteration", "losses", "mean_iou")
    kept = [line for line in lines if line["event"] in ("train", "learned", "end")]
    return [[line.get(key) for key in keys] for line in kept]
