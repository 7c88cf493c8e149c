"""A folder of learned steps that runs share: a step is found by the digest of what decides it.

An entry is the folder of a step, model and metrics, under the digest of its config, its data and
the step that it starts from. Its name ends with what the method collected for later steps: methods
that learn step 0 alike share it, and one that collects more serves those that collect less.
One process at a time learns a step; the others wait until it is there. Nothing needs the folder
when the runs have ended: it may be deleted.
"""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import torch

from nacre.data.step_data import ScenarioData
from nacre.methods import find_method
from nacre.runs.folder import with_absolute_paths
from nacre.training.config import RunConfig
from nacre.utils.config import result_values
from nacre.utils.io import InUse, locked, remove_temporaries, save
from nacre.version import __version__

FILES = ("model.json", "model.safetensors", "metrics.json")
"""The files of a step; it is whole when the last one is there."""

CACHE = "steps"
"""The name of the folder where grids and searches keep their steps."""

Answer = Literal["taken", "learn", "wait"]


def step_keys(config: RunConfig, fingerprint: dict[str, Any], masks: str) -> list[str]:
    """Return the digest of what decides each step of a run.

    Args:
        config: Of the run.
        fingerprint: The classes and images of each step (`ScenarioData.fingerprint`).
        masks: The digest of the data's masks (`digest_masks`).
    """
    # A class that no step learns is background in tests, so figures depend on all steps.
    classes = sorted(label for step in fingerprint["steps"] for label in step["classes"])
    data = with_absolute_paths(config.data)
    before = _digest([__version__, torch.__version__, data, masks, classes])
    loss = find_method(config.method.name).step_0_of(config.method)
    keys: list[str] = []
    for step, images in enumerate(fingerprint["steps"]):
        recipe = result_values(config, step_0=step == 0)
        before = _digest([before, loss, recipe, images, fingerprint["tests"][step]])
        keys.append(before)
    return keys


def digest_masks(data: ScenarioData) -> str:
    """Return the digest of a data set's masks, as the index knows them."""
    content = []
    for index in (data.source.index(split) for split in ("train", "val")):
        content.append([index.names, index.pixel_counts])
    return _digest(content)


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, default=str).encode()).hexdigest()[:32]


class StepCache:
    """The learned steps in a folder, as one run sees them.

    Args:
        folder: Where they are; made if need be.
        keys: By step, the digest of what decides it.
        state: What the run's method collects in a step for later ones.
    """

    def __init__(self, folder: Path, keys: Sequence[str], state: frozenset[str]) -> None:
        self.folder, self.keys, self.state = folder, keys, state
        self.held = contextlib.ExitStack()

    def ask(self, step: int, target: Path) -> Answer:
        """Take a step into a run's folder, or reserve it for this run to learn.

        Returns:
            `wait` where another process is learning the step now: ask again.
        """
        if self._take(step, target):
            return "taken"
        try:
            self.held.enter_context(locked(self._entry(step), "run"))
        except InUse:
            return "wait"
        if self._take(step, target):  # stored between the look and the lock
            self.release()
            return "taken"
        return "learn"

    def store(self, step: int, source: Path) -> None:
        """Keep a step that this run learned and tested, for others to take."""
        remove_temporaries(self._entry(step))
        _share(source, self._entry(step))

    def release(self) -> None:
        """Leave the step to others if this run has not."""
        self.held.close()

    def _entry(self, step: int) -> Path:
        return self.folder / "-".join([self.keys[step], *sorted(self.state)])

    def _take(self, step: int, target: Path) -> bool:
        for entry in sorted(self.folder.glob(f"{self.keys[step]}*")):
            if self.state <= {*entry.name.split("-")[1:]} and (entry / FILES[-1]).exists():
                _share(entry, target)
                return True
        return False


def _share(source: Path, target: Path) -> None:
    """Put the files of a step into another folder."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FILES:
        _link(source / name, target / name)


def _link(source: Path, target: Path) -> None:
    """Give a file a second name, or copy it where the file system has no such."""
    target.unlink(missing_ok=True)
    try:
        os.link(source, target)
    except OSError:
        save(target, lambda temporary: shutil.copyfile(source, temporary))
