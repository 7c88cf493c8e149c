"""The folder of a run: its files, and the checks before a run resumes in it.

config.yaml              the resolved config
run.json                 every start: version, command, machine, seed, device, precision
events.jsonl             the events
step-0/model.safetensors the network after the step (and model.json, for people)
step-0/metrics.json      its test figures
metrics.json             the figures of all steps
data.json                the classes, training images and test images of every step
exemplars.csv            the old images that each step learns from, if the run has a memory
resume.safetensors       the state in the middle of a step, while there is one

`nacre learn` has one step, whose model and metrics are in the folder itself, and beside them

first.safetensors        a usable model before the first update, until the step is learned
"""

import hashlib
import os
import platform
import re
import shlex
import sys
import time
from collections.abc import Sequence
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

MAX_SHOWN_CHANGES = 6
SHARED_FOLDER_SECONDS = 60.0
"""Seconds until files of another machine must be visible: network file systems show them late."""


class RunFolder:
    """The files of a run.

    Args:
        path: The folder.
        one_step: True for `nacre learn`: model and metrics are in the folder itself.
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

    def step_folder(self, step: int) -> Path:
        """Return the folder of a step's model and metrics."""
        return self.path if self.one_step else self.path / f"step-{step}"

    def model(self, step: int) -> Path:
        """Return the file of the network after a step."""
        return self.step_folder(step) / "model.safetensors"

    def step_metrics(self, step: int) -> Path:
        """Return the file of the test figures after a step."""
        return self.step_folder(step) / "metrics.json"

    def is_finished(self, step: int) -> bool:
        """Return True if a step is learned and tested."""
        return self.model(step).exists() and self.step_metrics(step).exists()

    def _models(self) -> list[Path]:
        folders = [self.path] if self.one_step else sorted(self.path.glob("step-*"))
        models = (folder / "model.safetensors" for folder in folders)
        return [model for model in models if model.exists()]

    @property
    def is_empty(self) -> bool:
        """True if no step and no part of one is learned."""
        return not self.resume.exists() and not self._models()

    def digest(self) -> str:
        """Return a digest of the folder's state, which all processes must agree on."""
        files = [path.read_bytes() for path in (self.config, self.starts) if path.exists()]
        files += [str(path.relative_to(self.path)).encode() for path in self._models()]
        return hashlib.sha256(b"\0".join([*files, b"resume" * self.resume.exists()])).hexdigest()

    def lock(self) -> AbstractContextManager[None]:
        """Lock the folder for this process; create it if it does not exist."""
        return locked(self.path, "run")

    def remove_leftovers(self) -> None:
        """Remove half-written files of killed processes, and the state of a finished step."""
        # A folder without a config may be a user's, with files of other programs.
        name = None if self.config.exists() else self.config.name
        for folder in (self.path, *self.path.glob("step-*")):
            remove_temporaries(folder, name)
        if self.one_step and self._models():
            self.resume.unlink(missing_ok=True)
            self.remove_first()

    def remove_first(self) -> None:
        """Remove the model before the first update."""
        for path in (self.first_model, self.first_model.with_suffix(".json")):
            path.unlink(missing_ok=True)

    def bind_config(self, config: Recipe, fingerprint: dict[str, Any]) -> None:
        """Write the config and the data into the folder; refuse the folder of another run.

        Keys that change no result may differ: the run resumes with the new values.

        Args:
            config: The requested config.
            fingerprint: The classes and images of each step.
        """
        if self.config.exists():
            self.check_kind(read_plain_config(self.path))
            self.check_same(config, fingerprint)
        elif any(file.name != LOCK_NAME for file in self.path.iterdir()):
            raise NacreError(
                f"{self.path} is not empty and not a run folder (it has no config.yaml); "
                "choose another --out"
            )
        save_text(self.config, yaml.safe_dump(with_absolute_paths(config), sort_keys=False))
        save_json(self.fingerprint, fingerprint)

    def check_kind(self, content: dict[str, Any]) -> None:
        """Refuse the folder of another command, even if nothing was learned there."""
        kinds = ("a run of a scenario", "a step of `nacre learn`")
        if ("scenario" in content) == self.one_step:
            held, wanted = kinds if self.one_step else reversed(kinds)
            raise NacreError(f"{self.path} holds {held}, not {wanted}; choose another folder")

    def check_same(self, config: Recipe, fingerprint: dict[str, Any]) -> None:
        """Refuse a folder in which something was learned with another config or other data."""
        if self.is_empty:
            return
        saved = read_config(self.path, LearnConfig if self.one_step else RunConfig)
        saved_data = load_json(self.fingerprint) if self.fingerprint.exists() else fingerprint
        if isinstance(saved, LearnConfig) and isinstance(config, LearnConfig):
            _check_same_folders(self.path, (saved, saved_data), (config, fingerprint))
        changed = {
            "another config": differences(result_values(saved), result_values(config)),
            "other data": _in_words(differences(saved_data, fingerprint), fingerprint),
        }
        reasons = [f"{what} ({_first_few(keys)})" for what, keys in changed.items() if keys]
        if reasons:
            raise NacreError(
                f"{self.path} holds a run with {' and '.join(reasons)}; choose another --out, or "
                "give the folder's own values and data to resume"
            )

    def first_start(self) -> str:
        """Return the time of the first start."""
        starts = Starts.load(self.starts).starts
        return starts[0].time if starts else ""

    def append_start(self, values: dict[str, Any]) -> None:
        """Add this start to run.json."""
        starts = Starts.load(self.starts).plain()["starts"] if self.starts.exists() else []
        save_json(self.starts, {"starts": [*starts, {**_versions(), **values}]})

    def metrics_of(self, step: int) -> dict[str, Any]:
        """Read and check the test figures after a step."""
        kind = LearnMetrics if self.one_step else StepMetrics
        return kind.load(self.step_metrics(step)).plain()


def default_folder(config: RunConfig) -> Path:
    """Return the folder of a run without --out."""
    scenario = re.sub(r"[/\\:]", "_", config.scenario.removesuffix(".yaml").strip("./\\"))
    return Path("runs") / f"{scenario}-{config.method.name}-{config.seed}"


def read_plain_config(folder: Path) -> dict[str, Any]:
    """Read a run's config as plain data."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise NacreError(f"{folder} is not a run folder: it has no config.yaml")
    return read_yaml(path, "the run's config", "the config of a run")


def read_config(folder: Path, kind: type[R]) -> R:
    """Read the config of a run (`RunConfig`) or of a step of `nacre learn` (`LearnConfig`)."""
    content = read_plain_config(folder)
    RunFolder(folder, one_step=kind is LearnConfig).check_kind(content)
    return resolve(kind, content)


def with_absolute_paths(config: BaseModel) -> dict[str, Any]:
    """Return a config as plain data that means the same in another working folder."""
    plain = config.model_dump(mode="json")
    for key, value in config:
        if isinstance(value, BaseModel):
            plain[key] = with_absolute_paths(value)
        elif isinstance(value, Path):
            plain[key] = str(value.expanduser().absolute())
        elif isinstance(value, tuple) and value and isinstance(value[0], Path):
            plain[key] = [str(path.expanduser().absolute()) for path in value]
    return plain


def check_shared(folder: RunFolder, fingerprint: dict[str, Any], dist: Distributed) -> None:
    """Refuse processes that see another folder or other data than the main process.

    Otherwise one could resume where another starts anew, and their gradients would mix.
    """
    if dist.world_size == 1:
        return
    digest, expected = dist.from_main((folder.digest(), fingerprint))
    until = time.monotonic() + SHARED_FOLDER_SECONDS
    while folder.digest() != digest and time.monotonic() < until:
        time.sleep(0.2)
    answers = dist.all((fingerprint == expected, folder.digest() == digest))

    def refuse() -> None:
        for rank, (same_data, same_folder) in enumerate(answers):
            if not same_data:
                raise NacreError(
                    f"the data differ between the processes: process {rank} sees other classes or "
                    "images than the main process; --root must hold the same data on every machine"
                )
            if not same_folder:
                raise NacreError(
                    f"the run folder {folder.path} is not shared: process {rank} sees nothing of "
                    "what the main process wrote; with several machines --out must be on a shared "
                    "file system"
                )

    dist.on_main(refuse)


def _check_same_folders(
    path: Path,
    saved: tuple[LearnConfig, dict[str, Any]],
    given: tuple[LearnConfig, dict[str, Any]],
) -> None:
    """Refuse a folder that learned from other folders or another start, or has other tests."""
    (config, data), (new_config, new_data) = saved, given

    def names(content: dict[str, Any], key: str) -> list[str]:
        return [str(one.get("name")) for one in content.get(key, [])]

    if names(data, "data") != names(new_data, "data"):
        classes = _first_few(data.get("new", []), ", ")
        raise NacreError(
            f"{path} contains the model learned from {', '.join(names(data, 'data'))} ({classes}); "
            "choose another --out"
        )
    options = []
    if data.get("start") != new_data.get("start"):
        start = new_config.start and new_config.start.expanduser().absolute()
        if start is not None and start == config.start:
            raise NacreError(
                f"{config.start} has changed since {path} was learned from it; choose another --out"
            )
        options.append(_was_given("--start", [config.start], [start]))
    if names(data, "tests") != names(new_data, "tests"):
        tests = [[path.name for path in one.tests] for one in (config, new_config)]
        options.append(_was_given("--test", *tests))
    if options:
        raise NacreError(
            f"{path} was learned {' and '.join(options)}; give the same options, or choose another "
            "--out"
        )


def _was_given(option: str, old: Sequence[object], new: Sequence[object]) -> str:
    """Describe an option of a step that was learned, beside the values that are given now."""
    was, now = (" ".join(f"{option} {x}" for x in values if x) for values in (old, new))
    learned = f"with {was}" if was else f"without {option}"
    return f"{learned}, not with {now}" if now else learned


def _in_words(lines: Sequence[str], fingerprint: dict[str, Any]) -> list[str]:
    """Name the data that differ, without digests."""
    words: dict[str, str] = {}
    for line in lines:
        key, _, change = line.partition(": ")
        part, is_digest = _name_part(key.split("."), fingerprint), "…" in change
        words[part] = words.get(part, "") if is_digest else f": {change}"
    return [part + change for part, change in words.items()]


def _name_part(keys: list[str], fingerprint: dict[str, Any]) -> str:
    """Name a part of data.json, given by its keys."""
    splits = {"train": "training", "val": "test"}
    match keys:
        case ["steps", step, "classes", label]:
            return f"class {label} of step {step}"
        case ["steps", step, _]:
            return f"training images of step {step}"
        case ["tests", step, _]:
            return f"test images after step {step}"
        case ["data" | "tests" as kind, i, "classes", label]:
            return f"class {label} of {fingerprint[kind][int(i)]['name']}"
        case ["data" | "tests" as kind, i, split, _]:
            name = fingerprint[kind][int(i)]["name"]
            return f"{splits.get(split, split)} images or masks of {name}"
        case ["known"]:
            return "classes of the start model"
        case ["new"]:
            return "new classes"
    return ".".join(keys)


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


def _first_few(changes: list[str], separator: str = "; ") -> str:
    """Join differences; count those beyond a limit."""
    more = len(changes) - MAX_SHOWN_CHANGES
    return separator.join(changes[:MAX_SHOWN_CHANGES] + [f"and {more} more"] * (more > 0))
