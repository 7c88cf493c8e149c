"""The folder of a run: what lies where, and that it is the same run when it goes on.

config.yaml              the resolved config
run.json                 every start: version, command, machine, seed, device, precision
events.jsonl             what happened
step-0/model.safetensors the network after the step (and model.json, for people)
step-0/metrics.json      how it tests
metrics.json             what all steps together show
facts.json               which classes are learnt from which images
resume.safetensors       the state in the middle of a step, while there is one
"""

import contextlib
import os
import platform
import shlex
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from nacre.errors import NacreError
from nacre.training.config import RunConfig, differences, resolve_config
from nacre.utils.affects import deciding
from nacre.utils.io import load_json, read_yaml, save_json, save_text
from nacre.version import __version__


@dataclass(frozen=True)
class RunFolder:
    """The paths of a run's files."""

    path: Path

    @property
    def config(self) -> Path:
        """The resolved config."""
        return self.path / "config.yaml"

    @property
    def resume(self) -> Path:
        """The state in the middle of a step."""
        return self.path / "resume.safetensors"

    @property
    def events(self) -> Path:
        """What happened, a line an event."""
        return self.path / "events.jsonl"

    @property
    def metrics(self) -> Path:
        """What all steps together show."""
        return self.path / "metrics.json"

    def model(self, step: int) -> Path:
        """The network after a step."""
        return self.path / f"step-{step}" / "model.safetensors"

    def step_metrics(self, step: int) -> Path:
        """How the network tests after a step."""
        return self.path / f"step-{step}" / "metrics.json"

    @property
    def fingerprint(self) -> Path:
        """Which classes are learnt from which images."""
        return self.path / "facts.json"

    @property
    def nothing_learnt(self) -> bool:
        """Whether no step and no part of one is there yet."""
        return not self.resume.exists() and not any(self.path.glob("step-*"))

    def bind_config(self, config: RunConfig, fingerprint: dict[str, Any]) -> None:
        """Make the folder this config's, or refuse if it is another's.

        Keys that change no result may differ: the run goes on with the new values.

        Args:
            config: What is asked for.
            fingerprint: The classes and images of each step, which the config only points at.
        """
        if self.config.exists() and not self.nothing_learnt:
            self._check_same(config, fingerprint)
        elif not self.config.exists() and any(self.path.iterdir()):
            raise NacreError(
                f"{self.path} is not empty and not a run folder (it has no config.yaml); "
                "choose another --out"
            )
        save_text(self.config, yaml.safe_dump(config.to_dict(), sort_keys=False))
        save_json(self.fingerprint, fingerprint)

    def _check_same(self, config: RunConfig, fingerprint: dict[str, Any]) -> None:
        changed = differences(deciding(read_config(self.path)), deciding(config))
        if self.fingerprint.exists():
            changed += _changed_data(load_json(self.fingerprint), fingerprint)
        if changed:
            raise NacreError(
                f"{self.path} holds a run with another config ({'; '.join(changed)}); "
                "choose another --out, or give the folder's own values to go on"
            )

    @contextlib.contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other processes from working in the folder, which is made if need be."""
        try:
            self.path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise NacreError(f"{self.path} cannot be a run folder: {error.strerror}") from error
        if sys.platform == "win32":
            yield
            return
        import fcntl

        handle = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            os.close(handle)
            raise NacreError(f"{self.path} is in use: another `nacre run` works in it") from error
        except OSError:
            pass  # some network file systems have no locks: there is nothing to hold on to
        try:
            yield
        finally:
            os.close(handle)

    def append_start(self, values: dict[str, Any]) -> None:
        """Add this start to run.json."""
        path = self.path / "run.json"
        starts = load_json(path)["starts"] if path.exists() else []
        save_json(path, {"starts": [*starts, {**_versions(), **values}]})


def default_folder(config: RunConfig) -> Path:
    """Return where a run goes that was not told."""
    scenario = config.scenario.removesuffix(".yaml").strip("./").replace("/", "_")
    return Path("runs") / f"{scenario}-{config.method.name}-{config.seed}"


def read_plain_config(folder: Path) -> dict[str, Any]:
    """Read a run's config as plain data."""
    path = folder / "config.yaml"
    if not path.is_file():
        raise NacreError(f"{folder} is not a run folder: it has no config.yaml")
    return read_yaml(path, "the run's config", "the config of a run")


def _changed_data(before: dict[str, Any], now: dict[str, Any]) -> list[str]:
    """Say where the classes or images of a run are not those that it began with."""
    if len(before["steps"]) != len(now["steps"]):
        return [f"steps: {len(before['steps'])} -> {len(now['steps'])}"]
    changed = differences({"background": before["background"]}, {"background": now["background"]})
    for step, (one, other) in enumerate(zip(before["steps"], now["steps"], strict=True)):
        if list(one["classes"].items()) != list(other["classes"].items()):
            names = [", ".join(these["classes"].values()) for these in (one, other)]
            changed.append(f"classes of step {step}: {names[0]} -> {names[1]}")
        elif one["sha256"] != other["sha256"]:
            counts = f"{one['images']} -> {other['images']}"
            changed.append(f"images of step {step}: other ones ({counts})")
    return changed


def read_config(folder: Path) -> RunConfig:
    """Read the config of a run."""
    return resolve_config(read_plain_config(folder))


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
