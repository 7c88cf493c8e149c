"""The folder of a run: what lies where, and that it is the same run when it goes on.

config.yaml              the resolved config
run.json                 every start: version, command, machine, seed, device, precision
events.jsonl             what happened
step-0/model.safetensors the network after the step (and model.json, for people)
step-0/metrics.json      how it tests
metrics.json             what all steps together show
data.json                which classes are learned from which images, and tested on which
exemplars.csv            which old images each step learns from, where some are kept
resume.safetensors       the state in the middle of a step, while there is one

`nacre learn` has one step, whose model and metrics lie in the folder itself, and beside them

first.safetensors        a model that is of use before the first update, until the next one is there
"""

import hashlib
import os
import platform
import re
import shlex
import sys
import time
from contextlib import AbstractContextManager
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml
from pydantic import BaseModel

from nacre.errors import NacreError
from nacre.models.io import FIRST_MODEL
from nacre.runs.records import LearnMetrics, Starts, StepMetrics
from nacre.training.config import LearnConfig, R, Recipe, RunConfig, differences, resolve
from nacre.utils.config import read_yaml, result_values
from nacre.utils.distributed import Distributed
from nacre.utils.io import LOCK_NAME, load_json, locked, remove_temporaries, save_json, save_text
from nacre.version import __version__

_MOST_CHANGES = 6
"""Differences that the refusal of a folder names."""


class RunFolder:
    """The files of a run.

    Args:
        path: The folder.
        one_step: Whether it is of `nacre learn`: model and metrics lie in the folder itself.
    """

    def __init__(self, path: Path, *, one_step: bool = False) -> None:
        self.path, self.one_step = path, one_step
        self.config = path / "config.yaml"
        self.starts = path / "run.json"
        self.events = path / "events.jsonl"
        self.metrics = path / "metrics.json"
        self.fingerprint = path / "data.json"
        self.exemplars = path / "exemplars.csv"
        self.resume = path / "resume.safetensors"
        self.first_model = path / FIRST_MODEL

    def place(self, step: int) -> Path:
        """Return the folder of a step's model and metrics."""
        return self.path if self.one_step else self.path / f"step-{step}"

    def model(self, step: int) -> Path:
        """Return the file of the network after a step."""
        return self.place(step) / "model.safetensors"

    def step_metrics(self, step: int) -> Path:
        """Return the file of the test figures after a step."""
        return self.place(step) / "metrics.json"

    def _models(self) -> list[Path]:
        places = [self.path] if self.one_step else sorted(self.path.glob("step-*"))
        files = (place / "model.safetensors" for place in places)
        return [file for file in files if file.exists()]

    @property
    def nothing_learned(self) -> bool:
        """True if no step and no part of one is there yet."""
        return not self.resume.exists() and not self._models()

    def remove_first(self) -> None:
        """Remove the network before its first update."""
        for path in (self.first_model, self.first_model.with_suffix(".json")):
            path.unlink(missing_ok=True)

    def is_finished(self, step: int) -> bool:
        """Return whether a step is learned and tested."""
        return self.model(step).exists() and self.step_metrics(step).exists()

    def sight(self) -> str:
        """Return what tells the folder, as a process sees it, from every other folder."""
        parts = [path.read_bytes() for path in (self.config, self.starts) if path.exists()]
        parts += [str(path.relative_to(self.path)).encode() for path in self._models()]
        return hashlib.sha256(b"\0".join([*parts, b"resume" * self.resume.exists()])).hexdigest()

    def tidy(self) -> None:
        """Remove what killed processes left half-written, and the way to a model that is there."""
        # A folder without a config may be a user's, with files of other programs.
        name = None if self.config.exists() else self.config.name
        for place in (self.path, *self.path.glob("step-*")):
            remove_temporaries(place, name)
        if self.one_step and self._models():
            self.resume.unlink(missing_ok=True)
            self.remove_first()

    def bind_config(self, config: Recipe, fingerprint: dict[str, Any]) -> None:
        """Make the folder this config's, or refuse if it is another's.

        Keys that change no result may differ: the run goes on with the new values.

        Args:
            config: What is asked for.
            fingerprint: The classes and images of each step, which the config only points at.
        """
        if self.config.exists():
            self.check_kind(read_plain_config(self.path))
            self.check_same(config, fingerprint)
        elif any(one.name != LOCK_NAME for one in self.path.iterdir()):
            raise NacreError(
                f"{self.path} is not empty and not a run folder (it has no config.yaml); "
                "choose another --out"
            )
        save_text(self.config, yaml.safe_dump(with_absolute_paths(config), sort_keys=False))
        save_json(self.fingerprint, fingerprint)

    def check_kind(self, content: dict[str, Any]) -> None:
        """Refuse the folder of another command, whether or not something was learned there."""
        kinds = ("a run of a scenario", "a step of `nacre learn`")
        if ("scenario" in content) == self.one_step:
            held, wanted = kinds if self.one_step else reversed(kinds)
            raise NacreError(f"{self.path} holds {held}, not {wanted}; choose another folder")

    def check_same(self, config: Recipe, fingerprint: dict[str, Any]) -> None:
        """Refuse a folder in which another config or other data were learned."""
        if self.nothing_learned:
            return
        saved = read_config(self.path, LearnConfig if self.one_step else RunConfig)
        changed = {"another config": differences(result_values(saved), result_values(config))}
        if self.fingerprint.exists():
            begun = {"data.json": load_json(self.fingerprint)}
            changed["other data"] = differences(begun, {"data.json": fingerprint})
        found = [f"{what} ({_first_few(where)})" for what, where in changed.items() if where]
        if found:
            raise NacreError(
                f"{self.path} holds a run with {' and '.join(found)}; choose another --out, or "
                "give the folder's own values and data to go on"
            )

    def lock(self) -> AbstractContextManager[None]:
        """Keep other processes from working in the folder, which is made if need be."""
        return locked(self.path, "run")

    def first_start(self) -> str:
        """Return when the folder was first begun."""
        starts = Starts.load(self.starts).starts
        return starts[0].time if starts else ""

    def metrics_of(self, step: int) -> dict[str, Any]:
        """Return how the network tests after a step, checked."""
        kind = LearnMetrics if self.one_step else StepMetrics
        return kind.load(self.step_metrics(step)).plain()

    def append_start(self, values: dict[str, Any]) -> None:
        """Add this start to run.json."""
        starts = Starts.load(self.starts).plain()["starts"] if self.starts.exists() else []
        save_json(self.starts, {"starts": [*starts, {**_versions(), **values}]})


def default_folder(config: RunConfig) -> Path:
    """Return where a run goes that was not told."""
    scenario = re.sub(r"[/\\:]", "_", config.scenario.removesuffix(".yaml").strip("./\\"))
    return Path("runs") / f"{scenario}-{config.method.name}-{config.seed}"


def read_plain_config(folder: Path) -> dict[str, Any]:
    """Read a run's config as plain data."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise NacreError(f"{folder} is not a run folder: it has no config.yaml")
    return read_yaml(path, "the run's config", "the config of a run")


def with_absolute_paths(config: BaseModel) -> dict[str, Any]:
    """Return a config as plain data that means the same in another working folder."""
    plain = config.model_dump(mode="json")
    for key, value in config:
        if isinstance(value, BaseModel):
            plain[key] = with_absolute_paths(value)
        elif isinstance(value, Path):
            plain[key] = str(value.expanduser().absolute())
        elif isinstance(value, tuple) and value and isinstance(value[0], Path):
            plain[key] = [str(one.expanduser().absolute()) for one in value]
    return plain


def read_config(folder: Path, kind: type[R]) -> R:
    """Read the config of a run (`RunConfig`) or of a step of `nacre learn` (`LearnConfig`)."""
    content = read_plain_config(folder)
    RunFolder(folder, one_step=kind is LearnConfig).check_kind(content)
    return resolve(kind, content)


def _versions() -> dict[str, Any]:
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "nacre": __version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
    }


# Network file systems show another machine's new files after a while.
def _first_few(changed: list[str]) -> str:
    """Return differences as one text; count those beyond a few."""
    more = len(changed) - _MOST_CHANGES
    return "; ".join(changed[:_MOST_CHANGES] + [f"and {more} more"] * (more > 0))


PATIENCE_SECONDS = 60.0


def check_shared(folder: RunFolder, fingerprint: dict[str, Any], dist: Distributed) -> None:
    """Refuse processes that do not see what the main one has just written, or see other data.

    Otherwise one of them would go on where another begins anew, and their gradients would mix.
    """
    if dist.world_size == 1:
        return
    written, wanted = dist.from_main((folder.sight(), fingerprint))
    found = dist.all((fingerprint == wanted, _sees(folder, written)))
    other_data, blind = (
        [rank for rank, sees in enumerate(one) if not sees] for one in zip(*found, strict=True)
    )

    def refuse() -> None:
        if other_data:
            raise NacreError(
                f"the data differ between the processes: process {other_data[0]} sees other "
                "classes or images than the main one; --root must hold the same data on every "
                "machine"
            )
        if blind:
            raise NacreError(
                f"the run folder {folder.path} is not shared: process {blind[0]} sees nothing of "
                "what the main one wrote there; with several machines --out must lie on a file "
                "system that they share"
            )

    dist.on_main(refuse)


def _sees(folder: RunFolder, written: str) -> bool:
    """Wait until this process sees what the main one wrote, with patience."""
    until = time.monotonic() + PATIENCE_SECONDS
    while folder.sight() != written:
        if time.monotonic() > until:
            return False
        time.sleep(0.2)
    return True
