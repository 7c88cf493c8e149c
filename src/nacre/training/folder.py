"""The folder of a run: what lies where, and that it is the same run when it goes on.

config.yaml              the resolved config
run.json                 every start: version, command, machine, seed, device, precision
events.jsonl             what happened
step-0/model.safetensors the network after the step (and model.json, for people)
step-0/metrics.json      how it tests
metrics.json             what all steps together show
resume.safetensors       the state in the middle of a step, while there is one
"""

import os
import platform
import shlex
import sys
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import torch
import yaml

import nacre
from nacre.errors import NacreError
from nacre.files import load_json, save_json, save_text
from nacre.training.config import RunConfig, differences, resolve_config


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

    def claim(self, config: RunConfig) -> None:
        """Make the folder this config's, or refuse if it is another's."""
        if not self.config.exists():
            if self.path.exists() and any(self.path.iterdir()):
                raise NacreError(
                    f"{self.path} is not empty and not a run folder (it has no config.yaml); "
                    "choose another --out"
                )
            save_text(self.config, yaml.safe_dump(config.plain(), sort_keys=False))
            return
        changed = differences(read_plain_config(self.path), config.plain())
        if changed:
            raise NacreError(
                f"{self.path} holds a run with another config ({'; '.join(changed)}); "
                "choose another --out, or give the folder's own values to go on"
            )

    def hold(self) -> TextIO:
        """Keep other processes from working in the folder while the returned file is open."""
        file = self.config.open(encoding="utf-8")
        if sys.platform == "win32":
            return file
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            raise NacreError(f"{self.path} is in use: another `nacre run` works in it") from error
        except OSError:
            # Some network file systems have no locks; then there is nothing to hold on to.
            return file
        return file

    def note_start(self, facts: dict[str, Any]) -> None:
        """Add this start to run.json."""
        path = self.path / "run.json"
        starts = load_json(path)["starts"] if path.exists() else []
        save_json(path, {"starts": [*starts, {**_versions(), **facts}]})


def default_folder(config: RunConfig) -> Path:
    """Return where a run goes that was not told."""
    scenario = config.scenario.removesuffix(".yaml").strip("./").replace("/", "_")
    return Path("runs") / f"{scenario}-{config.method.name}-{config.seed}"


def read_plain_config(folder: Path) -> dict[str, Any]:
    """Read a run's config as plain data."""
    path = folder / "config.yaml"
    try:
        content = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, yaml.YAMLError) as error:
        raise NacreError(f"{folder} is not a run folder: could not read {path}") from error
    assert isinstance(content, dict)
    return content


def read_config(folder: Path) -> RunConfig:
    """Read the config of a run."""
    return resolve_config(read_plain_config(folder))


def _versions() -> dict[str, Any]:
    return {
        "time": datetime.now().astimezone().isoformat(timespec="seconds"),
        "command": shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]]),
        "nacre": nacre.__version__,
        "torch": torch.__version__,
        "numpy": np.__version__,
        "python": platform.python_version(),
        "system": platform.platform(),
        "cores": os.cpu_count(),
    }
